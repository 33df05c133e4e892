//! The only source of time in the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of time: the machine's clock, or a virtual one that advances only when a caller waits
/// on it.
///
/// All measuring and waiting goes through a `Clock`, so that tests and gates can assert durations
/// exactly. Times are durations since the clock was created. Clones share the same time.
///
/// ```
/// use std::time::Duration;
/// use sws_format::Clock;
///
/// let clock = Clock::simulated();
/// clock.sleep(Duration::from_secs(3600)); // returns at once
/// assert_eq!(clock.now(), Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    Real(Instant),
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, starting at zero now.
    #[allow(clippy::disallowed_methods, reason = "this is the Clock that everything else asks")]
    pub fn real() -> Self {
        Clock(ClockSource::Real(Instant::now()))
    }

    /// A virtual clock at zero.
    pub fn simulated() -> Self {
        Clock(ClockSource::Virtual(Arc::default()))
    }

    /// Returns the time since the clock was created.
    pub fn now(&self) -> Duration {
        match &self.0 {
            ClockSource::Real(start) => start.elapsed(),
            ClockSource::Virtual(nanos) => Duration::from_nanos(nanos.load(Ordering::SeqCst)),
        }
    }

    /// Returns the date in seconds since 1970. A virtual clock starts at 0.
    pub fn unix_seconds(&self) -> i64 {
        let since = match &self.0 {
            ClockSource::Real(_) => std::time::UNIX_EPOCH.elapsed().unwrap_or_default(),
            ClockSource::Virtual(_) => self.now(),
        };
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }

    /// Waits until `deadline`.
    ///
    /// A virtual clock jumps there instead. Waits of several threads overlap, as they do on a real
    /// clock: time becomes the latest deadline, not the sum of the waits.
    #[allow(clippy::disallowed_methods, reason = "this is the Clock that everything else asks")]
    pub fn sleep_until(&self, deadline: Duration) {
        match &self.0 {
            ClockSource::Real(_) => std::thread::sleep(deadline.saturating_sub(self.now())),
            ClockSource::Virtual(nanos) => {
                let target = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
                nanos.fetch_max(target, Ordering::SeqCst);
            }
        }
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now().saturating_add(duration));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_is_shared_and_never_goes_back() {
        let clock = Clock::simulated();
        let other = clock.clone();
        clock.sleep(Duration::from_millis(5));
        other.sleep_until(Duration::from_millis(3));
        assert_eq!(clock.now(), Duration::from_millis(5));
        other.sleep_until(Duration::MAX);
        assert_eq!(clock.now(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn real_time_waits_at_least_as_long_as_asked() {
        let clock = Clock::real();
        clock.sleep(Duration::from_millis(2));
        assert!(clock.now() >= Duration::from_millis(2));
    }
}
