//! Replays the fuzzing corpus, including every input that once failed, on stable Rust.

use std::fs;
use std::path::Path;

#[path = "../../../../fuzz/src/gguf.rs"]
mod gguf;
#[path = "../../../../fuzz/src/header.rs"]
mod header;
#[path = "../../../../fuzz/src/manifest.rs"]
mod manifest;

fn replay(target: &str, check: fn(&[u8]) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let inputs: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    let accepted = inputs.iter().filter(|input| check(&fs::read(input).unwrap())).count();
    assert!(accepted > 10 && accepted < inputs.len() - 10, "{accepted} of {}", inputs.len());
}

#[test]
fn gguf_files() {
    replay("gguf", gguf::check);
}

#[test]
fn headers() {
    replay("header", header::check);
}

#[test]
fn manifests() {
    replay("manifest", manifest::check);
}
