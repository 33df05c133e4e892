//! Tests that a flipped bit anywhere in a model's files is detected or has no effect on the output.
#![expect(clippy::print_stdout, reason = "the figures are those of docs/security.md")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use sws_format::open_checkpoint;
use sws_model::{CausalLm, ForwardPass as Forward, KvPrecision, Session};
use sws_os::file::{read_exact_at, write_all_at};
use sws_shard::{ShardOptions, shard};
use sws_store::ReaderKind;
use sws_testing::{goldens, is_night};
use sws_text::{ChatOptions, GenerationOptions, Message};

use super::Model;
use crate::Options;
use crate::load::resident;

const TEXT: &str = "a small boat sails\n";
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}> {{ m.content }}{{ eos_token }}{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}";
/// Files that are read as a whole, besides the manifest.
const SMALL: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Everything that a model's files determine.
#[derive(PartialEq)]
struct Outputs {
    logits: Vec<u32>,
    ids: Vec<u32>,
    prompt: String,
    generation: String,
}

impl Outputs {
    /// Calls the same functions as every command.
    fn of(dir: &Path, cache: Option<&Path>) -> Result<Outputs, Box<dyn Error>> {
        let model = Model::at(dir.to_owned(), cache.map(Path::to_owned), None, None)?;
        let tokenizer = model.tokenizer()?.ok_or("no tokenizer")?;
        let template = model.chat_template()?;
        let ids = tokenizer.encode(TEXT, true)?;
        let message = Message::new("user", TEXT);
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        let prompt = template.render(&[message], &options)?;
        let typed = GenerationOptions { seed: Some(1), ..GenerationOptions::default() };
        let generation = format!("{:?}", model.generation(&typed)?);
        let options = Options { reader: ReaderKind::Mmap, ..Options::default() };
        let source = resident::load(&mut model.with(options))?;
        let forward = Forward::new(model.spec().clone());
        let mut session = Session::new(forward, source, 16, KvPrecision::F32);
        let mut logits = Vec::new();
        for tokens in [&[1, 5, 9, 2][..], &[17]] {
            logits.extend(session.prefill(tokens)?.iter().map(|logit| logit.to_bits()));
        }
        Ok(Outputs { logits, ids, prompt, generation })
    }
}

/// A golden checkpoint with a tokenizer and a template.
fn checkpoint(name: &str, dir: &Path) {
    goldens::copy(name, dir);
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    let config = r#"{"eos_token": "<end>", "model_max_length": 256}"#;
    std::fs::write(dir.join("tokenizer_config.json"), config).unwrap();
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(n)) >> 64) as u64
    }
}

/// Number of detected flips, and of those without effect.
#[derive(Debug, Default)]
struct FlipCount {
    detected: usize,
    harmless: usize,
}

/// Flips bits one at a time and restores them, cycling through the files. Modification times are
/// preserved.
fn flip(dir: &Path, cache: Option<&Path>, flips: usize, random: &mut Random) -> FlipCount {
    let before = Outputs::of(dir, cache).unwrap();
    let mut count = FlipCount::default();
    let mut missed: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in files(dir).iter().cycle().take(flips) {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let about = file.metadata().unwrap();
        let at = random.below(about.len());
        let bit = random.below(8);
        let mut byte = [0];
        read_exact_at(&file, &mut byte, at).unwrap();
        let put = |file: &File, byte: u8| {
            write_all_at(file, &[byte], at).unwrap();
            file.set_modified(about.modified().unwrap()).unwrap();
        };
        put(&file, byte[0] ^ 1 << bit);
        match Outputs::of(dir, cache) {
            Err(_) => count.detected += 1,
            Ok(outputs) => {
                let case = format!("bit {bit} of byte {at} of {}", path.display());
                assert!(outputs == before, "{case} changed the output and was not detected");
                count.harmless += 1;
                *missed.entry(path.clone()).or_default() += 1;
            }
        }
        put(&file, byte[0]);
    }
    for name in SMALL.into_iter().chain(["manifest.json"]) {
        assert_eq!(missed.get(&dir.join(name)), None, "{name} in {}", dir.display());
    }
    assert!(Outputs::of(dir, cache).unwrap() == before);
    count
}

#[test]
fn a_flipped_bit_in_shards_is_detected_or_harmless() {
    let flips = if is_night() { 400 } else { 100 };
    let mut random = Random(12);
    let mut detected = 0;
    let mut harmless = 0;
    for name in ["qwen3_moe", "llama_linear_tied", "mixtral", "olmoe", "qwen2_moe_swa"] {
        let temp = tempfile::tempdir().unwrap();
        let from = temp.path().join("from");
        let out = temp.path().join("shards");
        checkpoint(name, &from);
        let source = open_checkpoint(&from, None).unwrap();
        let naming = sws_model::naming(source.config()).unwrap();
        shard(&*source, &*naming, &out, &ShardOptions::default(), &|_| ()).unwrap();
        let count = flip(&out, None, flips, &mut random);
        println!("{name}: {count:?}");
        detected += count.detected;
        harmless += count.harmless;
    }
    let all = 5 * flips;
    println!("{all} flips: {detected} detected, {harmless} without effect, 0 silent changes");
    assert_eq!(detected + harmless, all);
}

#[test]
fn a_flipped_bit_in_a_checkpoint_is_detected_or_harmless_from_the_second_reading_on() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("checkpoint");
    let cache = temp.path().join("cache");
    checkpoint("qwen3_moe", &dir);
    let count = flip(&dir, Some(&cache), 400, &mut Random(13));
    println!("400 flips: {count:?}");
    assert_eq!(count.detected + count.harmless, 400);
}
