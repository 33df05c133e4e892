//! Replays the fuzzing corpus of the bf12 decoder and every input that once failed.

#![allow(unreachable_pub)]

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/bf12.rs"]
mod bf12;

#[test]
fn bf12_matrices() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/bf12");
    let inputs: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    let matrices = inputs.iter().filter(|input| bf12::check(&fs::read(input).unwrap())).count();
    assert!(matrices > 10 && matrices < inputs.len(), "{matrices} of {}", inputs.len());
}
