//! What the store has done.

use std::time::Duration;

/// Counters since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// For demanded fetches.
    pub demanded: Traffic,
    /// For fetches that are certain to be needed, until they are promoted.
    pub ahead: Traffic,
    /// For speculative fetches, until they are promoted.
    pub speculative: Traffic,
    /// Fetches of which something waits to be started.
    pub queued: usize,
    /// The most there were at once.
    pub most_queued: usize,
    /// Reads on the device now.
    pub on_device: usize,
    /// Time in which at least one read was on the device.
    pub busy: Duration,
    /// Other fetches that became demanded.
    pub promoted: u64,
    /// Time taken by checksums, which overlaps with reading.
    pub checksum: Duration,
    /// Blocks that did not agree with their checksum and were read again.
    pub mismatches: u64,
    /// Those of them that then did.
    pub corrected: u64,
}

/// What was read for one priority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads asked of the device.
    pub reads: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Fetches complete and verified.
    pub completed: u64,
    /// Fetches that failed.
    pub failed: u64,
    /// Fetches cancelled.
    pub cancelled: u64,
    /// Time between asking for a fetch and its first read, summed over fetches.
    pub waited: Duration,
    /// Time on the device, summed over reads, which may overlap.
    pub on_device: Duration,
}
