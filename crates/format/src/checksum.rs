//! The checksum of extents and records.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Checksum of extents: xxh3, 64 bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The [`checksum`] of bytes that arrive in several parts.
#[derive(Default)]
pub struct Checksum(Box<Xxh3>);

impl Checksum {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes so far, and begins anew.
    pub fn finish(&mut self) -> u64 {
        let sum = self.0.digest();
        self.0.reset();
        sum
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checksum").finish_non_exhaustive()
    }
}
