//! A reader that keeps within a number of bytes per second.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sws_format::{Clock, ReadOp, ShardReader};

/// Time of reading at the full rate that an idle drive has in store.
const BURST: Duration = Duration::from_millis(100);

/// A reader with a limit on bytes per second, for drives that throttle or wear when they are read at
/// full speed. Its bytes are those of the reader within.
///
/// A token bucket: in any time, reads begin for at most the rate times that time, a tenth of a second of
/// the rate, and one read.
pub struct LimitedReader {
    inner: Arc<dyn ShardReader>,
    bytes_per_second: u64,
    clock: Clock,
    /// Time at which the rate has paid for all reads that have begun.
    paid: Mutex<Duration>,
}

impl LimitedReader {
    /// Limits `inner` to a rate of at least 1.
    pub fn new(inner: Arc<dyn ShardReader>, bytes_per_second: u64, clock: Clock) -> LimitedReader {
        let bytes_per_second = bytes_per_second.max(1);
        LimitedReader { inner, bytes_per_second, clock, paid: Mutex::default() }
    }

    /// Waits until the bucket has room for a read of so many bytes.
    fn wait_for(&self, bytes: usize) {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let begin = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = paid.saturating_sub(BURST);
            *paid = self.clock.now().max(*paid).saturating_add(cost);
            begin
        };
        if begin > self.clock.now() {
            self.clock.sleep_until(begin);
        }
    }
}

impl fmt::Debug for LimitedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.inner.name();
        write!(f, "LimitedReader({name}, {} bytes per second)", self.bytes_per_second)
    }
}

impl ShardReader for LimitedReader {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.wait_for(into.len());
        self.inner.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.wait_for(into.len());
        self.inner.reread_at(file, offset, into)
    }

    fn batch(&self) -> usize {
        self.inner.batch()
    }

    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        self.wait_for(reads.iter().map(|read| read.into.len()).sum());
        self.inner.read_batch(reads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills every read with its offset, in no time.
    #[derive(Debug)]
    struct Instant;

    impl ShardReader for Instant {
        fn name(&self) -> &'static str {
            "instant"
        }

        fn read_at(&self, _file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
            into.fill(offset as u8);
            Ok(into.len())
        }
    }

    fn limited(rate: u64) -> (LimitedReader, Clock) {
        let clock = Clock::simulated();
        (LimitedReader::new(Arc::new(Instant), rate, clock.clone()), clock)
    }

    #[test]
    fn reads_take_the_time_of_the_rate() {
        const MIB: u64 = 1 << 20;
        for (rate, len, reads) in
            [(MIB, 1 << 20, 10), (100 * MIB, 1 << 20, 500), (3, 7, 20), (1 << 40, 4096, 9)]
        {
            let (reader, clock) = limited(rate);
            let mut bytes = vec![0; len];
            for read in 0..reads {
                assert_eq!(reader.read_at(0, read, &mut bytes).unwrap(), len);
                assert!(bytes.iter().all(|&byte| byte == read as u8));
                // What has begun is within the rate, the burst and one read.
                let most = (clock.now() + BURST).as_secs_f64() * rate as f64 + len as f64;
                assert!(((read + 1) * len as u64) as f64 <= most * 1.001, "{rate}: read {read}");
            }
            // No slower than that, either.
            let least = (reads * len as u64) as f64 / rate as f64;
            assert!(clock.now().as_secs_f64() <= least, "{rate}: {:?}", clock.now());
        }
    }

    #[test]
    fn idle_time_saves_up_no_more_than_the_burst() {
        let (reader, clock) = limited(1000);
        clock.sleep(Duration::from_secs(3600));
        let begun = clock.now();
        let mut bytes = [0; 100];
        for _ in 0..11 {
            reader.read_at(0, 0, &mut bytes).unwrap();
        }
        assert_eq!(clock.now() - begun, Duration::from_millis(900));
    }

    #[test]
    fn batches_and_second_reads_count() {
        let (reader, clock) = limited(1000);
        let [mut a, mut b] = [[0; 500], [0; 500]];
        let op = |into| ReadOp { file: 0, offset: 7, into, result: Ok(0) };
        reader.read_batch(&mut [op(&mut a), op(&mut b)]);
        reader.reread_at(0, 9, &mut [0; 1000]).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(900));
        reader.read_at(0, 9, &mut [0; 1]).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(1900));
        assert!(a == [7; 500] && b == [7; 500]);
        assert_eq!((reader.name(), reader.batch()), ("instant", 1));
    }
}
