//! A drive with every trouble at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use sws_format::{Clock, ShardReader};

use crate::random::Random;

/// Reads of a thousand with each trouble.
#[derive(Clone, Copy, Debug, Default)]
pub struct Troubles {
    /// Those that fail.
    pub failing: u32,
    /// Those that fail after a long time.
    pub stuck: u32,
    /// Those that take a long time.
    pub late: u32,
    /// The long time, at most.
    pub delay: Duration,
    /// Those that return fewer bytes.
    pub short: u32,
    /// Those with a wrong bit.
    pub flipped: u32,
    /// Those whose second half is of zeros.
    pub torn: u32,
    /// Those with the bytes of another place.
    pub misdirected: u32,
}

impl Troubles {
    /// The same without wrong bytes, which are not noticed at the first read of a file without checksums.
    pub fn honest(self) -> Troubles {
        Troubles { flipped: 0, torn: 0, misdirected: 0, ..self }
    }
}

/// Numbers of reads with each trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TroubleCounts {
    /// Those that failed.
    pub failed: u64,
    /// Those that failed after a long time.
    pub stuck: u64,
    /// Those that took a long time.
    pub late: u64,
    /// Those that returned fewer bytes.
    pub short: u64,
    /// Those with a wrong bit.
    pub flipped: u64,
    /// Those whose second half was of zeros.
    pub torn: u64,
    /// Those with the bytes of another place.
    pub misdirected: u64,
}

impl TroubleCounts {
    /// Sum of all that an answer can suffer from.
    pub fn harmful(&self) -> u64 {
        let TroubleCounts { failed, stuck, late: _, short, flipped, torn, misdirected } = self;
        failed + stuck + short + flipped + torn + misdirected
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &TroubleCounts) {
        let TroubleCounts { failed, stuck, late, short, flipped, torn, misdirected } = other;
        self.failed += failed;
        self.stuck += stuck;
        self.late += late;
        self.short += short;
        self.flipped += flipped;
        self.torn += torn;
        self.misdirected += misdirected;
    }
}

/// A reader with troubles, which begin when it is told.
pub struct Troubled {
    inner: Arc<dyn ShardReader>,
    clock: Clock,
    troubles: Troubles,
    began: AtomicBool,
    state: Mutex<(Random, TroubleCounts)>,
}

impl Troubled {
    /// A reader without troubles for now.
    pub fn new(inner: Arc<dyn ShardReader>, clock: Clock, troubles: Troubles, seed: u64) -> Self {
        let state = Mutex::new((Random::new(seed), TroubleCounts::default()));
        Troubled { inner, clock, troubles, began: AtomicBool::new(false), state }
    }

    /// Begins the troubles.
    pub fn begin(&self) {
        self.began.store(true, Ordering::Relaxed);
    }

    /// Numbers of troubled reads so far.
    pub fn counts(&self) -> TroubleCounts {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    fn read(
        &self,
        (file, offset): (u32, u64),
        into: &mut [u8],
        inner: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if !self.began.load(Ordering::Relaxed) {
            return inner(offset, into);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (random, counts) = &mut *state;
        let Troubles { failing, stuck, late, delay, short, flipped, torn, misdirected } =
            self.troubles;
        let long = delay.mul_f64(random.below(1000) as f64 / 1000.0);
        if random.chance(late) {
            counts.late += 1;
            self.clock.sleep(long);
        }
        if random.chance(stuck) {
            counts.stuck += 1;
            self.clock.sleep(long);
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a request that was stuck"));
        }
        if random.chance(failing) {
            counts.failed += 1;
            return Err(io::Error::other(format!("injected failure at {offset} of file {file}")));
        }
        if random.chance(misdirected) {
            // The block before or behind, which is there in most files.
            let other = if offset >= 4096 { offset - 4096 } else { offset + 4096 };
            let got = inner(other, into)?;
            counts.misdirected += 1;
            return Ok(got);
        }
        let got = inner(offset, into)?;
        if random.chance(torn) {
            counts.torn += 1;
            into[got / 2..got].fill(0);
        }
        if got > 0 && random.chance(flipped) {
            counts.flipped += 1;
            into[random.below(got as u64) as usize] ^= 1 << random.below(8);
        }
        if got > 0 && random.chance(short) {
            counts.short += 1;
            return Ok(random.below(got as u64) as usize);
        }
        Ok(got)
    }
}

impl ShardReader for Troubled {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read((file, offset), into, |offset, into| self.inner.read_at(file, offset, into))
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read((file, offset), into, |offset, into| self.inner.reread_at(file, offset, into))
    }
}
