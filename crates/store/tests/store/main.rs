//! Tests of the store through its public API.

/// Checkpoints without checksums: every later reading must agree with the first.
mod book;
/// Copies on several drives.
mod drives;
/// Reads that fail, fall short or come back wrong.
mod faults;
/// Layout of pieces in a slot.
mod layout;
/// Memory limits of the process.
mod limits;
/// Order of service by priority.
mod order;
/// The measurement at start-up.
mod probe;
/// Every reader gives the same bytes.
mod readers;
/// Reads in virtual time, without threads.
mod simulation;
mod support;
