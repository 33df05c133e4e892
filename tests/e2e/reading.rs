//! The files of a model are read within `--ram`, whatever their sizes: control groups of that size kill
//! above it.

use std::path::{Path, PathBuf};

use serde_json::json;
use sws_testing::gguf::{Key, converted};
use sws_testing::goldens::{self, Tensors};
use sws_testing::tales;

use crate::cgroup::Group;
use crate::outputs::copied;

const MIB: u64 = 1 << 20;
/// Tokens in the vocabulary of Gemma.
const TOKENS: usize = 262_144;

/// The words of up to four letters, the shortest first.
fn words(count: usize) -> Vec<String> {
    let letters = || (b'a'..=b'z').map(char::from);
    let mut words: Vec<String> = letters().map(String::from).collect();
    let mut at = 0;
    while words.len() < count {
        words.extend(letters().map(|letter| format!("{}{letter}", words[at])).collect::<Vec<_>>());
        at += 1;
    }
    words.truncate(count);
    words
}

/// Writes a golden with a large vocabulary as a GGUF file. Its merges follow from scores.
fn large_vocabulary(dir: &Path) -> PathBuf {
    let from = dir.join("safetensors");
    goldens::copy("mixtral", &from);
    let config = goldens::change(&from, "config.json", |json| json["vocab_size"] = json!(TOKENS));
    let width = config["hidden_size"].as_u64().unwrap() as usize;
    let weights = from.join("model.safetensors");
    let mut tensors = Tensors::read(&weights);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let (dtype, shape, bytes) = tensors.0.get_mut(name).unwrap();
        *shape = vec![TOKENS, width];
        *bytes = vec![0; TOKENS * width * dtype.bitsize() / 8];
    }
    tensors.write(&weights);
    let mut file = converted(&from).unwrap();
    file.key("tokenizer.ggml.model", "llama".into());
    file.key("tokenizer.ggml.scores", Key::Floats((0..TOKENS).map(|id| -(id as f32)).collect()));
    file.key("tokenizer.ggml.token_type", Key::Ints(vec![1; TOKENS]));
    file.key("tokenizer.ggml.tokens", Key::Texts(words(TOKENS)));
    let path = dir.join("large.gguf");
    file.write(&path);
    path
}

#[test]
fn a_large_vocabulary_is_read_within_the_budget_or_refused_with_one_that_works() {
    let temp = tempfile::tempdir().unwrap();
    let path = large_vocabulary(temp.path());
    let Some(group) = Group::new("vocabulary", MIB) else { return };
    let run = |mib: u64| {
        group.allow(mib * MIB);
        let ram = format!("{mib}MiB");
        let path = path.to_str().unwrap();
        group.sws(&["run", path, "-p", "abcd", "-n", "2", "--no-warm-start", "--ram", &ram])
    };
    // Vocabularies of this size once took 660 MiB.
    run(200).succeeded();
    for small in [40, 72] {
        let refused = run(small).refused(2, &["too small", "--ram min"]);
        let (_, rest) = refused.sentence().split_once("here is --ram ").unwrap();
        let smallest = rest.split("MiB").next().unwrap().parse().unwrap();
        assert!(smallest > small && smallest < 200, "{refused:?}");
        run(smallest).succeeded();
    }
}

/// Where weights are kept in memory, there is no budget in which files could be read.
#[test]
fn a_large_vocabulary_is_read_without_a_budget() {
    let temp = tempfile::tempdir().unwrap();
    let path = large_vocabulary(temp.path());
    // No more than `auto` leaves free for other programs.
    let Some(group) = Group::new("resident", 400 * MIB) else { return };
    group.sws(&["run", path.to_str().unwrap(), "-p", "abcd", "-n", "2", "--resident"]).succeeded();
}

#[test]
fn a_large_manifest_is_refused_within_the_budget() {
    let temp = tempfile::tempdir().unwrap();
    let copy = temp.path().join("copy");
    copied(&tales(), &copy);
    let manifest = copy.join("manifest.json");
    let mut json = std::fs::read(&manifest).unwrap();
    json.resize(json.len() + (200 << 20), b' ');
    std::fs::write(&manifest, json).unwrap();
    let Some(group) = Group::new("manifest", 64 * MIB) else { return };
    let args = ["run", copy.to_str().unwrap(), "-p", "a", "-n", "1", "--ram", "64MiB"];
    group.sws(&args).refused(2, &["manifest.json", "a budget of 64 MiB", "give --ram "]);
}

/// Files that no plan knows of have no more memory than the others.
#[test]
fn a_large_template_is_refused_within_the_budget() {
    let temp = tempfile::tempdir().unwrap();
    let copy = temp.path().join("copy");
    goldens::copy("mixtral", &copy);
    std::fs::write(copy.join("chat_template.jinja"), vec![b' '; 60 << 20]).unwrap();
    let Some(group) = Group::new("template", 56 * MIB) else { return };
    let args = ["chat", copy.to_str().unwrap(), "a", "-n", "1", "--ram", "56MiB"];
    group.sws(&args).refused(2, &["files of this model", "the 56 MiB of --ram"]);
}
