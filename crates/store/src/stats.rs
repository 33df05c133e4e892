//! Counters of a store.

use std::time::Duration;

/// Counters since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Traffic of demanded fetches.
    pub demanded: Traffic,
    /// Traffic of fetches that are certain to be needed, until they are promoted.
    pub ahead: Traffic,
    /// Traffic of speculative fetches, until they are promoted.
    pub speculative: Traffic,
    /// Fetches with reads still to be issued.
    pub queued: usize,
    /// Largest value of `queued`.
    pub most_queued: usize,
    /// Reads on the device now.
    pub on_device: usize,
    /// Time in which at least one read was on the device.
    pub busy: Duration,
    /// Fetches promoted to demanded ones.
    pub promoted: u64,
    /// Time taken by checksums, which overlaps with reading.
    pub checksum: Duration,
    /// Blocks that did not agree with their checksum and were read again.
    pub mismatches: u64,
    /// Blocks that agreed with their checksum when read again.
    pub corrected: u64,
    /// Counters of each drive, the store's own directory first; empty without mirrors.
    pub drives: Vec<DriveStats>,
}

/// Counters of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveStats {
    /// Bytes read from it.
    pub bytes: u64,
    /// True if it failed, or had wrong bytes, and serves only what no other drive has.
    pub is_left_out: bool,
}

/// Traffic of one priority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads issued to the device.
    pub reads: u64,
    /// Bytes of those reads.
    pub bytes: u64,
    /// Fetches complete and verified.
    pub completed: u64,
    /// Fetches that failed.
    pub failed: u64,
    /// Fetches cancelled.
    pub cancelled: u64,
    /// Time from the request of a fetch to its first read, summed over fetches.
    pub waited: Duration,
    /// Time on the device, summed over reads, which may overlap.
    pub on_device: Duration,
}
