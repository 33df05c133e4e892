//! A disk in virtual time, driven by the callers that wait for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::scheduler::Job;
use crate::store::Shared;

/// Speed of a simulated disk, which serves one read at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedDisk {
    /// Throughput.
    pub bytes_per_second: u64,
    /// Time to the first byte when the disk was idle. Between back-to-back reads the latency is
    /// hidden.
    pub latency: Duration,
}

/// The one read in flight, in place of the lanes' threads. Queueing, issuing, verification and
/// completion run the same code.
pub(crate) struct Simulation {
    disk: SimulatedDisk,
    device: Mutex<Device>,
}

struct Device {
    /// Read in flight, with its start and end times.
    reading: Option<(Job, Duration, Duration)>,
    /// End of the last read.
    free_since: Option<Duration>,
}

impl Simulation {
    pub(crate) fn new(disk: SimulatedDisk) -> Simulation {
        Simulation { disk, device: Mutex::new(Device { reading: None, free_since: None }) }
    }

    /// Advances to the end of the next read. False if there is nothing to read.
    pub(crate) fn step(&self, shared: &Shared) -> bool {
        self.go_on(shared, &mut self.lock(), Duration::MAX)
    }

    /// Advances by `time`.
    pub(crate) fn advance(&self, shared: &Shared, time: Duration) {
        let until = shared.verifier.clock.now().saturating_add(time);
        let mut device = self.lock();
        while self.go_on(shared, &mut device, until) {}
        shared.verifier.clock.sleep_until(until);
    }

    /// Completes the read in flight, or else the next one, unless it ends after `until`.
    fn go_on(&self, shared: &Shared, device: &mut Device, until: Duration) -> bool {
        let clock = &shared.verifier.clock;
        if device.reading.is_none() {
            let Some(job) = shared.next_job() else { return false };
            let now = clock.now();
            let latency = match device.free_since {
                Some(since) if since == now => Duration::ZERO,
                _ => self.disk.latency,
            };
            let nanos = job.range.len() as u128 * 1_000_000_000;
            let nanos = nanos / u128::from(self.disk.bytes_per_second.max(1));
            let transfer = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            let over = now.saturating_add(latency).saturating_add(transfer);
            device.reading = Some((job, now, over));
        }
        let Some((job, started, over)) = device.reading.take_if(|(_, _, over)| *over <= until)
        else {
            return false;
        };
        clock.sleep_until(over);
        device.free_since = Some(over);
        shared.run(vec![job], started);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
