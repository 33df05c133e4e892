//! Pace of a drive: its rate, and its reads in flight.

use std::time::Duration;

/// Bytes after which the rate of a drive is its own alone. Before, it is partly that of the fastest, as
/// the first reads also open files.
const LEARNED: u64 = 8 << 20;
/// Time of reading, in seconds, after which earlier reads count half.
const WINDOW: f64 = 0.25;
/// Idle time after which a slow drive is tried again, in times that the read would take there. Trying
/// it then costs at most one part in so many.
const PATIENCE: f64 = 100.0;

/// Pace of a drive. Its rate is that of the time in which it had something to read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Bytes of the reads in flight.
    in_flight: u64,
    /// Time up to which `busy` counts.
    since: Duration,
    /// Bytes read and seconds taken, recent ones above all.
    bytes: f64,
    busy: f64,
    /// All bytes read.
    total: u64,
}

impl Pace {
    /// Measured bytes per second; `None` before the first read has ended.
    pub(super) fn rate(&self) -> Option<f64> {
        (self.bytes > 0.0 && self.busy > 0.0).then(|| self.bytes / self.busy)
    }

    /// Expected bytes per second, where the fastest drive reads `best`.
    fn expected(&self, best: f64) -> f64 {
        let assumed = LEARNED.saturating_sub(self.total) as f64;
        match self.rate() {
            None => best,
            Some(_) => (self.bytes + assumed) / (self.busy + assumed / best),
        }
    }

    /// True while the first read is in flight.
    pub(super) fn is_first(&self) -> bool {
        self.in_flight > 0 && self.bytes == 0.0
    }

    /// Seconds until a further read of `len` bytes would end, where the fastest drive reads `best`
    /// bytes per second. A slow drive that has been idle for long is tried again, as it may have become
    /// faster.
    pub(super) fn seconds(&self, len: u64, best: f64, now: Duration) -> f64 {
        let seconds = (self.in_flight + len) as f64 / self.expected(best);
        let idle = now.saturating_sub(self.since).as_secs_f64();
        match self.in_flight == 0 && self.bytes > 0.0 && idle > PATIENCE * seconds {
            true => 0.0,
            false => seconds,
        }
    }

    pub(super) fn begin(&mut self, len: u64, now: Duration) {
        self.count(now);
        self.in_flight += len;
    }

    /// Ends a read of `len` bytes, of which `got` have come.
    pub(super) fn end(&mut self, len: u64, got: u64, now: Duration) {
        self.count(now);
        self.in_flight = self.in_flight.saturating_sub(len);
        self.bytes += got as f64;
        self.total += got;
        if self.busy > WINDOW {
            self.busy /= 2.0;
            self.bytes /= 2.0;
        }
    }

    fn count(&mut self, now: Duration) {
        if self.in_flight > 0 {
            self.busy += now.saturating_sub(self.since).as_secs_f64();
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rate_counts_busy_time_alone() {
        let mut pace = Pace::default();
        assert_eq!((pace.rate(), pace.seconds(100, 50.0, MS)), (None, 2.0));
        pace.begin(1000, MS);
        pace.begin(1000, 2 * MS);
        assert_eq!(pace.seconds(500, 1000.0, 2 * MS), 2.5);
        assert!(pace.is_first());
        pace.end(1000, 1000, 3 * MS);
        pace.end(1000, 1000, 5 * MS);
        assert!(!pace.is_first());
        assert_eq!(pace.rate(), Some(2000.0 / 0.004));
        // An hour of idleness is none of it.
        let later = Duration::from_secs(3600);
        pace.begin(1000, later);
        pace.end(1000, 1000, later + 2 * MS);
        assert_eq!(pace.rate(), Some(3000.0 / 0.006));
    }

    #[test]
    fn recent_reads_decide() {
        let mut pace = Pace::default();
        let mut now = Duration::ZERO;
        let mut read = |times: u32, each: Duration| {
            for _ in 0..times {
                pace.begin(1000, now);
                now += each;
                pace.end(1000, 1000, now);
            }
            pace.rate().unwrap()
        };
        assert!((read(1000, MS) / 1e6 - 1.0).abs() < 1e-9);
        let slow = read(100, 100 * MS);
        assert!((slow / 1e4 - 1.0).abs() < 0.05, "{slow}");
    }

    #[test]
    fn rate_is_learned_by_and_by() {
        let mut pace = Pace::default();
        let mut now = Duration::ZERO;
        let mut rates = Vec::new();
        for _ in 0..16 {
            pace.begin(LEARNED / 8, now);
            now += MS;
            pace.end(LEARNED / 8, LEARNED / 8, now);
            rates.push(pace.expected(1e12) / pace.rate().unwrap());
        }
        assert!(rates[0] > 7.0 && rates[..8].is_sorted_by(|a, b| a > b), "{rates:?}");
        assert!(rates[7..].iter().all(|rate| (rate - 1.0).abs() < 1e-9), "{rates:?}");
    }

    #[test]
    fn idle_drive_is_tried_again_after_a_while() {
        let mut pace = Pace::default();
        pace.begin(LEARNED, Duration::ZERO);
        pace.end(LEARNED, LEARNED, 10 * MS);
        let seconds = |idle: Duration| pace.seconds(LEARNED, 1e12, 10 * MS + idle);
        assert_eq!(seconds(Duration::ZERO), 0.01);
        assert_eq!(seconds(900 * MS), 0.01);
        assert_eq!(seconds(1100 * MS), 0.0);
    }
}
