//! What a process is said to take: alone in a program of its own, as other tests come and go.

use std::path::Path;

use sws_engine::{Process, memory};
use sws_store::Manifest;

#[test]
fn a_process_is_at_least_what_is_there_of_it() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe");
    let manifest = Manifest::load(&dir).unwrap();
    let process = Process::measure(&dir, &manifest);
    let Some(here) = memory() else { return };
    let sum: u64 = process.lines().into_iter().map(|(_, bytes)| bytes).sum();
    assert!(sum >= here && sum < here + (400 << 20), "{process:?} beside {here}");
    assert!(process.files > 100 << 10 && process.peak >= here / 2);
}
