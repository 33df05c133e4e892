//! A disk in virtual time, driven by the callers that wait for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::scheduler::ReadJob;
use crate::shared::StoreShared;

/// Bytes of a file on one device, before the next device continues.
const STRIPE: u64 = 1 << 20;

/// Speed of a simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedDisk {
    /// Throughput of each device.
    pub bytes_per_second: u64,
    /// Time to the first byte when a device was idle. Between back-to-back reads the latency is
    /// hidden.
    pub latency: Duration,
    /// Devices that the disk is striped over. Each serves one read at a time; with several, as many reads
    /// are in flight as on a real disk.
    pub devices: usize,
}

/// The reads in flight, in place of the lanes' threads. Queueing, issuing, verification and
/// completion run the same code.
pub(crate) struct Simulation {
    /// The disk of each drive.
    disks: Vec<SimulatedDisk>,
    /// Maximum number of reads in flight.
    depth: usize,
    devices: Mutex<Devices>,
}

struct Devices {
    reading: Vec<SimulatedRead>,
    /// End of the last read of each device, by drive.
    free_since: Vec<Vec<Option<Duration>>>,
}

/// A read in flight.
struct SimulatedRead {
    drive: usize,
    job: ReadJob,
    started: Duration,
    over: Duration,
}

impl Simulation {
    /// A disk for each drive of a store, with `depth` reads in flight on each.
    pub(crate) fn new(disks: Vec<SimulatedDisk>, depth: usize) -> Simulation {
        let free_since: Vec<Vec<Option<Duration>>> =
            disks.iter().map(|disk| vec![None; disk.devices.max(1)]).collect();
        let depth = match free_since.as_slice() {
            [devices] if devices.len() == 1 => 1,
            drives => depth * drives.len(),
        };
        let devices = Devices { reading: Vec::new(), free_since };
        Simulation { disks, depth, devices: Mutex::new(devices) }
    }

    /// Advances to the end of the next read. False if there is nothing to read.
    pub(crate) fn step(&self, shared: &StoreShared) -> bool {
        self.go_on(shared, &mut self.lock(), Duration::MAX)
    }

    /// Advances by `time`.
    pub(crate) fn advance(&self, shared: &StoreShared, time: Duration) {
        let until = shared.verifier.clock.now().saturating_add(time);
        let mut devices = self.lock();
        while self.go_on(shared, &mut devices, until) {}
        shared.verifier.clock.sleep_until(until);
    }

    /// Completes the read that ends first, unless it ends after `until`.
    fn go_on(&self, shared: &StoreShared, devices: &mut Devices, until: Duration) -> bool {
        let clock = &shared.verifier.clock;
        while devices.reading.len() < self.depth
            && let Some((drive, job)) = shared.next_job()
        {
            let started = clock.now();
            let over = issue(self.disks[drive], &job, started, &mut devices.free_since[drive]);
            devices.reading.push(SimulatedRead { drive, job, started, over });
        }
        let ends = devices.reading.iter().map(|read| read.over).enumerate();
        let Some((first, over)) = ends.min_by_key(|(_, over)| *over) else { return false };
        if over > until {
            return false;
        }
        let SimulatedRead { drive, job, started, over } = devices.reading.remove(first);
        clock.sleep_until(over);
        shared.run(drive, vec![job], started);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a read to the work of the devices that store its bytes. Returns the time at which it ends.
fn issue(
    disk: SimulatedDisk,
    job: &ReadJob,
    now: Duration,
    free_since: &mut [Option<Duration>],
) -> Duration {
    let end = job.offset + job.range.len() as u64;
    let mut at = job.offset;
    let mut over = now;
    loop {
        let part = end.min((at / STRIPE + 1) * STRIPE);
        let part = if free_since.len() == 1 { end } else { part };
        let number = (u64::from(job.file) + at / STRIPE) as usize % free_since.len();
        let free = &mut free_since[number];
        let begun = free.map_or(now, |since| since.max(now));
        let latency = if *free == Some(begun) { Duration::ZERO } else { disk.latency };
        let nanos = u128::from(part - at) * 1_000_000_000;
        let nanos = nanos / u128::from(disk.bytes_per_second.max(1));
        let transfer = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let ended = begun.saturating_add(latency).saturating_add(transfer);
        *free = Some(ended);
        over = over.max(ended);
        at = part;
        if at >= end {
            return over;
        }
    }
}
