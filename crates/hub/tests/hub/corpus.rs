//! Replays the fuzzing corpus of listings, with every input that once failed, on stable Rust.

use std::fs;
use std::path::Path;

#[path = "../../../../fuzz/src/listing.rs"]
mod listing;

#[test]
fn listings() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/listing");
    let inputs: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    let accepted = inputs.iter().filter(|input| listing::check(&fs::read(input).unwrap())).count();
    assert!((10..inputs.len() - 10).contains(&accepted), "{accepted} of {}", inputs.len());
}
