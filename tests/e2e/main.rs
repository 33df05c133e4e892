//! End-to-end tests of the `sws` command, one module a subject.

mod checkpoints;
mod faults;
mod full_disk;
mod kill;
mod memory;
mod refusals;
mod roundtrip;
mod sws;
