//! The estimate of a process's memory, in a test program of its own because other tests allocate.

use std::path::Path;

use sws_engine::{ProcessMemory, memory};
use sws_format::Manifest;

#[test]
fn process_estimate_covers_resident_memory() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe");
    let manifest = Manifest::load(&dir).unwrap();
    let process = ProcessMemory::measure(&dir, &manifest);
    let Some(here) = memory() else { return };
    let sum: u64 = process.lines().into_iter().map(|(_, bytes)| bytes).sum();
    assert!(sum >= here && sum < here + (400 << 20), "{process:?}, {here} resident");
    assert!(process.files > 100 << 10 && process.peak >= here / 2);
}
