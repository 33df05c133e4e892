//! Replays the fuzzers' corpora and every input that once failed, on stable Rust.

use std::fs;
use std::path::Path;

#[path = "../../../../fuzz/src/generation.rs"]
mod generation;
#[path = "../../../../fuzz/src/reply.rs"]
mod reply;
#[path = "../../../../fuzz/src/template.rs"]
mod template;
#[path = "../../../../fuzz/src/tokenizer.rs"]
mod tokenizer;

fn replay(target: &str, check: fn(&[u8]) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let inputs: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    let accepted = inputs.iter().filter(|input| check(&fs::read(input).unwrap())).count();
    assert!((10..inputs.len() - 10).contains(&accepted), "{accepted} of {}", inputs.len());
}

#[test]
fn tokenizers() {
    replay("tokenizer", tokenizer::check);
}

#[test]
fn chat_templates() {
    replay("template", template::check);
}

#[test]
fn replies() {
    replay("reply", reply::check);
}

#[test]
fn generation_configurations() {
    replay("generation", generation::check);
}
