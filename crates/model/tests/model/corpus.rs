//! Replays the fuzzer's corpus and every input that once failed, on stable Rust.

use std::fs;
use std::path::Path;

#[path = "../../../../fuzz/src/config.rs"]
mod config;

fn replay(target: &str, check: fn(&[u8]) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let inputs: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    let accepted = inputs.iter().filter(|input| check(&fs::read(input).unwrap())).count();
    assert!((10..inputs.len() - 10).contains(&accepted), "{accepted} of {}", inputs.len());
}

#[test]
fn configurations() {
    replay("config", config::check);
}
