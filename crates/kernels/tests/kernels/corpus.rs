//! Replays the fuzzing corpora of the decoders and every input that once failed.

#![allow(unreachable_pub)]

use std::fs;
use std::path::Path;

#[path = "../../../../fuzz/src/blocks.rs"]
mod blocks;
#[path = "../../../../fuzz/src/patches.rs"]
mod patches;

fn replay(target: &str, check: fn(&[u8]) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let inputs: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    let matrices = inputs.iter().filter(|input| check(&fs::read(input).unwrap())).count();
    assert!(matrices > 10 && matrices < inputs.len(), "{matrices} of {}", inputs.len());
}

#[test]
fn bf12_matrices() {
    replay("bf12", patches::bf12);
}

#[test]
fn bf11_matrices() {
    replay("bf11", patches::bf11);
}

#[test]
fn nested_matrices() {
    replay("nested", patches::nested);
}

#[test]
fn fp7_matrices() {
    replay("fp7", patches::fp7);
}

#[test]
fn matrices_of_other_encodings() {
    replay("blocks", blocks::check);
}
