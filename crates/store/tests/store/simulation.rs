//! A disk in virtual time.

use std::sync::Arc;
use std::time::Duration;

use sws_format::{Clock, PieceId, ShardReader};
use sws_store::{
    Arena, FetchError, NVMeWeightStore, Priority, Read, SimulatedDisk, StoreOptions, Ticket,
};
use sws_testing::readers::{MemoryReader, Short};

use crate::support::{MIB, Model};

const MS: Duration = Duration::from_millis(1);

struct Bench {
    store: NVMeWeightStore,
    arena: Arena,
    clock: Clock,
}

/// Experts of 3 MiB on a disk that takes 1 ms per MiB, after a latency of 5 ms.
fn bench(reader: impl FnOnce(MemoryReader) -> Arc<dyn ShardReader>) -> Bench {
    striped(1, reader)
}

/// The same with several such devices.
fn striped(devices: usize, reader: impl FnOnce(MemoryReader) -> Arc<dyn ShardReader>) -> Bench {
    let model = Model::experts(8, 3 * MIB);
    let clock = Clock::simulated();
    let options = StoreOptions {
        reader: Some(reader(MemoryReader::new(model.files.clone()))),
        cache: None,
        clock: clock.clone(),
        simulated: Some(SimulatedDisk {
            bytes_per_second: 1000 * MIB as u64,
            latency: 5 * MS,
            devices,
        }),
        ..StoreOptions::default()
    };
    let nowhere = std::path::Path::new("/nowhere");
    let store = NVMeWeightStore::open(Arc::new(model.manifest), nowhere, options).unwrap();
    Bench { store, arena: Arena::new(32 * MIB).unwrap(), clock }
}

impl Bench {
    fn fetch(&self, expert: u32, priority: Priority) -> Ticket {
        let layout = self.store.layout(Read::Piece(PieceId::expert(0, expert))).unwrap();
        let slot = self.arena.take(layout.slot_len()).unwrap();
        self.store.fetch(layout, priority, slot).unwrap()
    }

    /// Waits for the next completion. Returns its ticket and time.
    fn next(&self) -> Option<(Ticket, Duration)> {
        let done = self.store.wait(self.store.completions())?;
        done.result.unwrap();
        assert_eq!(done.timing.finished, self.clock.now());
        Some((done.ticket, self.clock.now()))
    }
}

#[test]
fn queued_reads_run_while_the_caller_computes() {
    let b = bench(|reader| Arc::new(reader));
    let [first, second, third] = [0, 1, 2].map(|expert| b.fetch(expert, Priority::Demanded));
    assert_eq!(b.clock.now(), Duration::ZERO, "asking takes no time");
    b.store.spend(12 * MS);
    assert_eq!(b.clock.now(), 12 * MS);
    assert_eq!(b.store.stats().demanded.completed, 2, "5 + 3 + 3 ms");
    assert_eq!(b.store.stats().on_device, 1);
    let ends: Vec<_> = (0..2).map(|_| b.store.completions().try_recv().unwrap()).collect();
    assert_eq!(
        ends.iter().map(|c| (c.ticket, c.timing.finished)).collect::<Vec<_>>(),
        [(first, 8 * MS), (second, 11 * MS),]
    );
    assert_eq!(b.next(), Some((third, 14 * MS)));
    assert_eq!(b.next(), None, "nothing is left, and waiting for it takes no time");
    b.store.spend(6 * MS);
    assert_eq!(b.clock.now(), 20 * MS, "time passes without reads, too");
    let late = b.fetch(3, Priority::Demanded);
    assert_eq!(b.next(), Some((late, 28 * MS)), "an idle disk takes its time to begin");
    assert_eq!(b.store.stats().busy, 22 * MS);
}

#[test]
fn a_demand_waits_for_one_speculative_chunk() {
    let b = bench(|reader| Arc::new(reader));
    let guess = b.fetch(0, Priority::Speculative);
    b.store.spend(MS);
    let demand = b.fetch(1, Priority::Demanded);
    assert_eq!(b.next(), Some((demand, 9 * MS)), "one chunk, then its own three");
    assert!(b.store.promote(guess));
    assert_eq!(b.next(), Some((guess, 11 * MS)));
    assert_eq!(b.store.stats().speculative.reads, 1);
}

#[test]
fn failures_are_reported_and_a_store_closes_mid_read() {
    let b = bench(|reader| Arc::new(Short::new(reader, 0, 100)));
    b.fetch(0, Priority::Demanded);
    let end = b.store.wait(b.store.completions()).unwrap();
    assert!(matches!(end.result, Err(FetchError::Short { wanted: 1048576, got: 1048476, .. })));
    b.fetch(1, Priority::Demanded);
    b.store.spend(MS);
    drop((end, b.store));
    assert_eq!(b.arena.free_bytes(), b.arena.bytes(), "its slot has come back");
}

#[test]
fn a_disk_of_several_devices_reads_as_many_times_as_fast() {
    for devices in [1, 2, 3] {
        let b = striped(devices, |reader| Arc::new(reader));
        let tickets: Vec<_> = (0..8).map(|expert| b.fetch(expert, Priority::Demanded)).collect();
        let done: Vec<_> = std::iter::from_fn(|| b.next()).collect();
        let order: Vec<_> = done.iter().map(|(ticket, _)| *ticket).collect();
        assert_eq!(order, tickets, "{devices} devices: demands end in their order");
        let (_, end) = done[7];
        assert_eq!(end, 5 * MS + 24 * MS / devices as u32, "{devices} devices");
        assert_eq!(b.store.stats().demanded.bytes, 24 << 20);
    }
}
