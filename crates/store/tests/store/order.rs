use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_format::{Clock, PieceId, ShardReader};
use sws_store::{
    Arena, Cancelled, FetchError, NVMeWeightStore, NotLanded, Priority, Read, Slot, Ticket,
};
use sws_testing::readers::{MemoryReader, Slow};

use crate::support::{MIB, Model, noise};

/// Announces every read, and blocks it until it is released.
struct Gate<R> {
    inner: R,
    asked: Sender<(u32, u64, usize)>,
    go: Receiver<()>,
}

impl<R: ShardReader> ShardReader for Gate<R> {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.asked.send((file, offset, into.len())).unwrap();
        // When the test is over, all reads continue.
        let _ = self.go.recv();
        self.inner.read_at(file, offset, into)
    }
}

struct Bench {
    store: NVMeWeightStore,
    arena: Arena,
    asked: Receiver<(u32, u64, usize)>,
    go: Sender<()>,
}

/// Eight experts of `mib` MiB.
fn bench(mib: usize) -> Bench {
    bench_of(&Model::experts(8, mib * MIB), 8 * mib)
}

/// A device that takes 1 ms per MiB, with one read in flight, and an arena of `room` MiB.
fn bench_of(model: &Model, room: usize) -> Bench {
    let clock = Clock::simulated();
    let disk = MemoryReader::new(model.files.clone());
    let slow = Slow::new(disk, clock.clone(), 1000 * MIB as u64, Duration::ZERO);
    let (asked_in, asked) = unbounded();
    let (go, go_out) = unbounded();
    let gate = Arc::new(Gate { inner: slow, asked: asked_in, go: go_out });
    let store = model.open(gate, 1, clock);
    Bench { store, arena: Arena::new(room * MIB).unwrap(), asked, go }
}

impl Bench {
    fn fetch(&self, expert: u32, priority: Priority) -> Ticket {
        let layout = self.store.layout(Read::Piece(PieceId::expert(0, expert))).unwrap();
        let slot = self.arena.take(layout.slot_len()).unwrap();
        self.store.fetch(layout, priority, slot).unwrap()
    }

    /// Releases the waiting read, which must be of this expert and MiB.
    fn step(&self, expert: u32, mib: u64) {
        self.expect(expert, mib);
        self.go.send(()).unwrap();
    }

    fn expect(&self, expert: u32, mib: u64) {
        assert_eq!(self.asked.recv().unwrap(), (expert, mib * MIB as u64, MIB));
    }

    fn finished(&self, ticket: Ticket) -> Duration {
        let done = self.store.completions().recv().unwrap();
        assert_eq!(done.ticket, ticket);
        done.result.unwrap();
        done.timing.finished
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_demand_overtakes_speculation_after_one_chunk() {
    let b = bench(3);
    let guess = b.fetch(0, Priority::Speculative);
    b.expect(0, 0);
    let later = b.fetch(1, Priority::Speculative);
    let first = b.fetch(2, Priority::Demanded);
    let second = b.fetch(3, Priority::Demanded);
    b.go.send(()).unwrap();
    for (expert, mib) in [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2)] {
        b.step(expert, mib);
    }
    assert_eq!(b.finished(first), 4 * MS, "one speculative chunk, then its own three");
    assert_eq!(b.finished(second), 7 * MS);
    for (expert, mib) in [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        b.step(expert, mib);
    }
    assert_eq!(b.finished(guess), 9 * MS);
    assert_eq!(b.finished(later), 12 * MS);
    let stats = b.store.stats();
    assert_eq!((stats.demanded.reads, stats.speculative.reads), (6, 6));
    assert_eq!((stats.demanded.completed, stats.speculative.completed), (2, 2));
    assert_eq!(stats.busy, 12 * MS);
    assert_eq!(stats.demanded.on_device, 6 * MS);
    assert_eq!(stats.demanded.waited, MS + 4 * MS, "from 0 to 1 ms, and from 0 to 4 ms");
    assert_eq!((stats.queued, stats.most_queued), (0, 4));
}

#[test]
fn a_promoted_fetch_keeps_what_was_read() {
    let b = bench(3);
    let promoted = b.fetch(0, Priority::Speculative);
    let other = b.fetch(1, Priority::Speculative);
    b.expect(0, 0);
    let demanded = b.fetch(2, Priority::Demanded);
    assert!(b.store.promote(promoted));
    assert!(b.store.promote(demanded), "to promote a demanded one changes nothing");
    b.go.send(()).unwrap();
    for (expert, mib) in [(2, 0), (2, 1), (2, 2), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        b.step(expert, mib);
    }
    for ticket in [demanded, promoted, other] {
        b.finished(ticket);
    }
    assert!(!b.store.promote(promoted), "it is over");
    assert_eq!(b.store.stats().promoted, 1);
    let bytes = b.store.stats().demanded.bytes + b.store.stats().speculative.bytes;
    assert_eq!(bytes, 9 * MIB as u64, "nothing was read twice");
}

#[test]
fn reads_ahead_yield_to_demand_until_promoted() {
    let b = bench(2);
    let running = b.fetch(0, Priority::Ahead);
    b.expect(0, 0);
    let guess = b.fetch(1, Priority::Speculative);
    let later = b.fetch(2, Priority::Ahead);
    let needed = b.fetch(3, Priority::Ahead);
    let demanded = b.fetch(4, Priority::Demanded);
    b.go.send(()).unwrap();
    b.expect(4, 0);
    assert!(b.store.promote(needed), "computing has come to it");
    b.go.send(()).unwrap();
    for (expert, mib) in [(3, 0), (3, 1), (4, 1), (0, 1), (2, 0), (2, 1), (1, 0), (1, 1)] {
        b.step(expert, mib);
    }
    for ticket in [needed, demanded, running, later, guess] {
        b.finished(ticket);
    }
    let stats = b.store.stats();
    let reads = [stats.demanded.reads, stats.ahead.reads, stats.speculative.reads];
    assert_eq!(reads, [4, 4, 2]);
}

#[test]
fn unstarted_fetches_are_withdrawn_at_no_cost() {
    let b = bench(2);
    let running = b.fetch(0, Priority::Demanded);
    b.expect(0, 0);
    for priority in [Priority::Speculative, Priority::Demanded] {
        let waiting = b.fetch(1, priority);
        let Cancelled::Withdrawn(slot) = b.store.cancel(waiting) else { panic!("not started") };
        assert_eq!(slot.len(), 2 * MIB);
        assert!(matches!(b.store.cancel(waiting), Cancelled::Finished));
    }
    assert!(matches!(b.store.cancel(running), Cancelled::Stopping));
    b.go.send(()).unwrap();
    let done = b.store.completions().recv().unwrap();
    assert!(matches!(done.result, Err(FetchError::Cancelled)));
    assert_eq!(done.ticket, running);
    assert!(b.asked.try_recv().is_err(), "its second chunk was never read");
    assert_eq!(b.store.stats().demanded.bytes, MIB as u64);
    drop(done);
    assert_eq!(b.arena.free_bytes(), b.arena.bytes());
}

#[test]
fn overtaken_speculation_is_withdrawn_midway() {
    let b = bench(2);
    let guess = b.fetch(0, Priority::Speculative);
    b.expect(0, 0);
    b.fetch(1, Priority::Demanded);
    b.go.send(()).unwrap();
    b.expect(1, 0);
    // The checksum of its first chunk may still be under way.
    let mut outcome = b.store.cancel(guess);
    if matches!(outcome, Cancelled::Stopping) {
        let done = b.store.completions().recv().unwrap();
        assert_eq!(done.ticket, guess);
        outcome = Cancelled::Withdrawn(done.slot);
    }
    assert!(matches!(outcome, Cancelled::Withdrawn(_)));
    b.go.send(()).unwrap();
    b.step(1, 1);
}

#[test]
fn closing_gives_every_slot_back() {
    let b = bench(2);
    for (expert, priority) in [Priority::Demanded, Priority::Speculative].into_iter().enumerate() {
        b.fetch(expert as u32, priority);
    }
    b.expect(0, 0);
    let completions = b.store.completions().clone();
    let Bench { store, arena, go, .. } = b;
    drop(go);
    drop(store);
    let ends: Vec<_> = completions.iter().collect();
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|end| matches!(end.result, Err(FetchError::Cancelled))));
    drop(ends);
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn a_slot_too_small_comes_back() {
    let b = bench(2);
    let layout = b.store.layout(Read::Piece(PieceId::expert(0, 0))).unwrap();
    let refused = b.store.fetch(layout, Priority::Demanded, Slot::alone(MIB).unwrap()).unwrap_err();
    assert_eq!((refused.need, refused.have, refused.slot.len()), (2 * MIB, MIB, MIB));
}

/// Counts speculative reads in flight, recognised by their files.
struct Watch<R> {
    inner: R,
    /// Files from this index on are only read speculatively.
    speculative_from: u32,
    in_flight: AtomicUsize,
    most: AtomicUsize,
    most_bytes: AtomicUsize,
}

impl<R: ShardReader> ShardReader for Watch<R> {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if file < self.speculative_from {
            return self.inner.read_at(file, offset, into);
        }
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.most_bytes.fetch_max(into.len(), Ordering::SeqCst);
        std::thread::yield_now();
        let result = self.inner.read_at(file, offset, into);
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

#[test]
fn one_speculative_chunk_is_in_flight_under_any_load() {
    let model = Model::experts(16, 3 * MIB + 4096);
    let watch = Arc::new(Watch {
        inner: MemoryReader::new(model.files.clone()),
        speculative_from: 8,
        in_flight: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        most_bytes: AtomicUsize::new(0),
    });
    let store = model.open(watch.clone(), 6, Clock::real());
    let arena = Arena::new(16 * 4 * MIB).unwrap();
    let mut state = 12345u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % n
    };
    let (mut under_way, mut ended) = (Vec::new(), 0);
    let mut total = 0;
    while ended < 600 {
        let expert = random(16) as u32;
        let speculative = expert >= 8;
        let priority = if speculative { Priority::Speculative } else { Priority::Demanded };
        let layout = store.layout(Read::Piece(PieceId::expert(0, expert))).unwrap();
        if let Some(slot) = arena.take(layout.slot_len()) {
            under_way.push(store.fetch(layout, priority, slot).unwrap());
            total += 1;
        }
        if random(5) == 0 && !under_way.is_empty() {
            let ticket = under_way.swap_remove(random(under_way.len() as u64) as usize);
            if matches!(store.cancel(ticket), Cancelled::Withdrawn(_)) {
                ended += 1;
            }
        }
        while let Ok(done) = store.completions().recv_timeout(Duration::from_micros(50)) {
            ended += 1;
            if done.result.is_ok() {
                let tensor = &done.layout.tensors()[0];
                let file = done.layout.segments()[0].file as usize;
                assert_eq!(tensor.part(&done.slot, 0).unwrap(), model.files[file]);
            }
        }
    }
    while ended < total {
        store.completions().recv().unwrap();
        ended += 1;
    }
    assert!(watch.most.load(Ordering::SeqCst) <= 1);
    assert!(watch.most_bytes.load(Ordering::SeqCst) <= MIB);
    assert!(store.stats().speculative.completed > 0, "some speculation got through");
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn selection_is_read_in_disk_order_in_any_arena() {
    let model = Model::experts(12, MIB);
    let order = |room: usize| {
        let reader = Arc::new(MemoryReader::new(model.files.clone()));
        let store = model.open(reader, 1, Clock::simulated());
        let arena = Arena::new(room * MIB).unwrap();
        let selection: Vec<Read> =
            [7, 2, 11, 0, 5, 3].map(|n| Read::Piece(PieceId::expert(0, n))).to_vec();
        let mut order = Vec::new();
        store
            .extract_pieces(&selection, &arena, |done| {
                done.result.unwrap();
                order.push(done.layout.segments()[0].file);
            })
            .unwrap();
        order
    };
    assert_eq!(order(12), [0, 2, 3, 5, 7, 11]);
    assert_eq!(order(1), [0, 2, 3, 5, 7, 11]);
    let reader = Arc::new(MemoryReader::new(model.files.clone()));
    let store = model.open(reader, 1, Clock::simulated());
    let arena = Arena::new(4096).unwrap();
    let error = store.read(Read::Piece(PieceId::expert(0, 1)), &arena).unwrap_err();
    assert!(matches!(error, FetchError::NoSlot { .. }), "{error}");
}

#[test]
fn broken_off_selection_stops_reading() {
    let model = Model::experts(12, MIB);
    let reader = Arc::new(MemoryReader::new(model.files.clone()));
    let store = model.open(reader, 1, Clock::simulated());
    let arena = Arena::new(2 * MIB).unwrap();
    let selection: Vec<Read> = (0..12).map(|n| Read::Piece(PieceId::expert(0, n))).collect();
    let mut seen = 0;
    let broken_off = store.extract_while(&selection, &arena, |_| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    broken_off.unwrap();
    assert_eq!(seen, 3);
    // One more read was in flight; its slot comes back too.
    while arena.free_bytes() < arena.bytes() {
        std::thread::yield_now();
    }
    assert!(store.stats().demanded.completed <= 4, "{:?}", store.stats());
}

/// A fetch of 3 MiB with a checksum for each: a prefix is available as soon as it is verified, and
/// the fetch does not end while the prefix is borrowed.
#[test]
fn landed_prefix_is_lent_before_the_rest_arrives() {
    let mut model = Model::new(vec![noise(3 * MIB, 5)]);
    let tensor = model.tensor(0, 0..3 * MIB, MIB / 2, true);
    model.piece(PieceId::expert(0, 0), vec![tensor]);
    let bench = bench_of(&model, 3);
    let ticket = bench.fetch(0, Priority::Demanded);
    let ask = |len: usize, wait: bool| {
        let timeout = if wait { Duration::MAX } else { Duration::ZERO };
        bench.store.landed(ticket, len, timeout)
    };
    assert_eq!(ask(1, false).unwrap_err(), NotLanded::Later);
    bench.step(0, 0);
    let first = ask(MIB, true).unwrap();
    assert_eq!(*first, model.files[0][..MIB]);
    assert_eq!(ask(MIB + 1, false).unwrap_err(), NotLanded::Later);
    bench.step(0, 1);
    bench.step(0, 2);
    let all = ask(3 * MIB, true).unwrap();
    assert_eq!(*all, model.files[0][..]);
    drop(first);
    assert!(bench.store.completions().is_empty(), "completed while a prefix is borrowed");
    drop(all);
    bench.finished(ticket);
    assert_eq!(ask(1, false).unwrap_err(), NotLanded::Over);
}

/// Bytes that do not match their checksum are never lent, and neither are the bytes after them.
#[test]
fn corrupt_bytes_never_land() {
    let mut model = Model::new(vec![noise(3 * MIB, 5)]);
    let mut tensor = model.tensor(0, 0..3 * MIB, MIB / 2, true);
    tensor.parts[0].checks[1] ^= 1;
    model.piece(PieceId::expert(0, 0), vec![tensor]);
    let bench = bench_of(&model, 3);
    let ticket = bench.fetch(0, Priority::Demanded);
    // Three chunks, and a reread of the second.
    (0..4).for_each(|_| bench.go.send(()).unwrap());
    let done = bench.store.completions().recv().unwrap();
    assert!(matches!(done.result, Err(FetchError::Corrupt { .. })), "{:?}", done.result);
    for len in [1, MIB, 2 * MIB] {
        let landed = bench.store.landed(ticket, len, Duration::ZERO);
        assert_eq!(landed.unwrap_err(), NotLanded::Over);
    }
}
