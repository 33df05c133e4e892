//! Readers for tests: of files in memory, and with faults on top of any other reader.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sws_format::{Clock, ShardReader};

use crate::random::Random;

/// Reads from memory.
#[derive(Clone, Debug)]
pub struct MemoryReader {
    files: Vec<Vec<u8>>,
}

impl MemoryReader {
    /// Creates a reader of these files, in the order of the manifest's.
    pub fn new(files: Vec<Vec<u8>>) -> MemoryReader {
        MemoryReader { files }
    }
}

impl ShardReader for MemoryReader {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.files.get(file as usize).ok_or(io::ErrorKind::NotFound)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let len = into.len().min(bytes.len() - from);
        into[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }
}

/// Fails selected reads.
#[derive(Debug)]
pub struct Failing<R> {
    inner: R,
    first: u64,
    last: u64,
    count: AtomicU64,
}

impl<R> Failing<R> {
    /// Fails the `n`-th read, counted from 0, and no other.
    pub fn nth(inner: R, n: u64) -> Self {
        Failing { inner, first: n, last: n, count: AtomicU64::new(0) }
    }

    /// Fails the `n`-th read, counted from 0, and all after it.
    pub fn from(inner: R, n: u64) -> Self {
        Failing { inner, first: n, last: u64::MAX, count: AtomicU64::new(0) }
    }
}

impl<R: ShardReader> ShardReader for Failing<R> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        if (self.first..=self.last).contains(&n) {
            return Err(io::Error::other("injected failure"));
        }
        self.inner.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.inner.reread_at(file, offset, into)
    }
}

/// Fails reads at random, once it is told to.
#[derive(Debug)]
pub struct Flaky<R> {
    inner: R,
    per_mille: AtomicU32,
    random: Mutex<Random>,
    failed: AtomicU64,
}

impl<R> Flaky<R> {
    /// Fails none at first.
    pub fn new(inner: R, seed: u64) -> Self {
        let per_mille = AtomicU32::new(0);
        let failed = AtomicU64::new(0);
        Flaky { inner, per_mille, random: Mutex::new(Random::new(seed)), failed }
    }

    /// Fails so many reads of a thousand from now on.
    pub fn fail(&self, per_mille: u32) {
        self.per_mille.store(per_mille, Ordering::Relaxed);
    }

    /// Number of reads that have failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    fn fails(&self) -> bool {
        let per_mille = self.per_mille.load(Ordering::Relaxed);
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = random.chance(per_mille);
        self.failed.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }
}

impl<R: ShardReader> ShardReader for Flaky<R> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.fails() {
            return Err(io::Error::other("injected failure"));
        }
        self.inner.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.inner.reread_at(file, offset, into)
    }
}

/// Cuts one read short.
#[derive(Debug)]
pub struct Short<R> {
    inner: R,
    nth: u64,
    by: usize,
    count: AtomicU64,
}

impl<R> Short<R> {
    /// Cuts the `nth` read, counted from 0, short by `by` bytes.
    pub fn new(inner: R, nth: u64, by: usize) -> Self {
        Short { inner, nth, by, count: AtomicU64::new(0) }
    }
}

impl<R: ShardReader> ShardReader for Short<R> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read_at(file, offset, into)?;
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        Ok(if n == self.nth { got.saturating_sub(self.by) } else { got })
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.inner.reread_at(file, offset, into)
    }
}

/// A bit flipped by [`BitFlip`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flip {
    /// Index of the file.
    pub file: u32,
    /// Offset of the byte.
    pub offset: u64,
    /// Index of the bit in the byte.
    pub bit: u8,
}

/// Flips bits and records them.
#[derive(Debug)]
pub struct BitFlip<R> {
    inner: R,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The generator, and the flips so far.
    Passing {
        one_in: u64,
        state: Mutex<(Random, Vec<Flip>)>,
    },
    Lasting(Vec<Flip>),
}

impl<R> BitFlip<R> {
    /// Transient errors: about one read in `one_in` has a wrong bit, and is right when repeated.
    pub fn passing(inner: R, seed: u64, one_in: u64) -> Self {
        let state = Mutex::new((Random::new(seed), Vec::new()));
        BitFlip { inner, kind: Kind::Passing { one_in: one_in.max(1), state } }
    }

    /// Permanent errors: these bits are wrong whenever they are read.
    pub fn lasting(inner: R, flips: Vec<Flip>) -> Self {
        BitFlip { inner, kind: Kind::Lasting(flips) }
    }

    /// All flipped bits.
    pub fn injected(&self) -> Vec<Flip> {
        match &self.kind {
            Kind::Passing { state, .. } => {
                state.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
            }
            Kind::Lasting(flips) => flips.clone(),
        }
    }

    fn apply_lasting(&self, file: u32, offset: u64, bytes: &mut [u8]) {
        let Kind::Lasting(flips) = &self.kind else { return };
        let here = offset..offset + bytes.len() as u64;
        for flip in flips.iter().filter(|flip| flip.file == file && here.contains(&flip.offset)) {
            bytes[(flip.offset - offset) as usize] ^= 1 << flip.bit;
        }
    }
}

impl<R: ShardReader> ShardReader for BitFlip<R> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read_at(file, offset, into)?;
        self.apply_lasting(file, offset, &mut into[..got]);
        if let Kind::Passing { one_in, state } = &self.kind {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let (random, flips) = &mut *state;
            if got > 0 && random.below(*one_in) == 0 {
                let at = random.below(got as u64);
                let flip = Flip { file, offset: offset + at, bit: random.below(8) as u8 };
                into[at as usize] ^= 1 << flip.bit;
                flips.push(flip);
            }
        }
        Ok(got)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.reread_at(file, offset, into)?;
        self.apply_lasting(file, offset, &mut into[..got]);
        Ok(got)
    }
}

/// A device of a given speed, which serves one read after another. The latency of a read is hidden
/// behind the reads before it.
#[derive(Debug)]
pub struct Slow<R> {
    inner: R,
    clock: Clock,
    bytes_per_second: u64,
    latency: Duration,
    free_at: Mutex<Duration>,
}

impl<R> Slow<R> {
    /// Creates a device that delivers `bytes_per_second`, the first byte `latency` after the
    /// request.
    pub fn new(inner: R, clock: Clock, bytes_per_second: u64, latency: Duration) -> Self {
        let free_at = Mutex::new(Duration::ZERO);
        Slow { inner, clock, bytes_per_second: bytes_per_second.max(1), latency, free_at }
    }

    fn wait(&self, len: usize) {
        let nanos = len as u128 * 1_000_000_000 / u128::from(self.bytes_per_second);
        let transfer = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let done = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = (self.clock.now() + self.latency).max(*free_at) + transfer;
            *free_at
        };
        self.clock.sleep_until(done);
    }
}

impl<R: ShardReader> ShardReader for Slow<R> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.wait(into.len());
        self.inner.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.wait(into.len());
        self.inner.reread_at(file, offset, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaky_reads_fail_as_often_as_they_are_told_to() {
        let flaky = Flaky::new(MemoryReader::new(vec![vec![7; 8]]), 1);
        let mut into = [0; 8];
        let mut failures =
            || (0..10_000).filter(|_| flaky.read_at(0, 0, &mut into).is_err()).count();
        assert_eq!(failures(), 0);
        flaky.fail(100);
        let found = failures();
        assert!((800..1200).contains(&found), "{found}");
        assert_eq!(flaky.failed(), found as u64);
        flaky.fail(0);
        assert_eq!(failures(), 0);
    }
}
