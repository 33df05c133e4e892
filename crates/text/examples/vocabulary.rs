//! Time and memory of a large vocabulary, as one line of JSON for each file.
//!
//! ```sh
//! cargo run --release -p sws-text --example vocabulary -- make DIR
//! cargo run --release -p sws-text --example vocabulary -- measure DIR/*
//! ```
//!
//! `make` writes a synthetic vocabulary of as many tokens as Gemma 3 has: merges trained on the
//! texts of this repository, and random words. It comes as `tokenizer.json` and in GGUF files, of
//! which `model.gguf` is a whole model with random weights.

use std::alloc::System;
use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap::Cap;
use serde_json::{Value, json};
use sws_format::Clock;
use sws_testing::gguf::{GgufFile, Key, converted};
use sws_testing::goldens::golden_dir;
use sws_testing::root;
use sws_text::gguf::{GgufTextError, tokenizer};
use sws_text::grammar::GrammarVocabulary;
use sws_text::{SplitMix64, Tokenizer};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{AddedToken, Trainer};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Number of tokens.
const TOKENS: usize = 1 << 18;
/// Maximum number of tokens that are trained.
const TRAINED: usize = 60_000;
/// Maximum size of a random word in bytes.
const LONGEST: usize = 16;
/// Number of added tokens, as in Gemma 3.
const ADDED: usize = 6400;

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Done<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", dir] => make(Path::new(dir)),
        ["measure", ref files @ ..] if !files.is_empty() => {
            files.iter().try_for_each(|file| measure(Path::new(file)))
        }
        _ => Err("usage: vocabulary make DIR, or vocabulary measure FILE...".into()),
    }
}

fn make(dir: &Path) -> Done<()> {
    fs::create_dir_all(dir)?;
    let tokens = tokens()?;
    let ids: HashMap<&str, usize> = tokens.iter().map(String::as_str).zip(0..).collect();
    let merges = merges(&tokens, &ids);
    fs::write(dir.join("tokenizer.json"), file(&tokens, &merges).to_string())?;
    let scores = (0..TOKENS).map(|id| -(id as f32)).collect();
    let mut header = GgufFile::default();
    add_tokens(&mut header, &tokens, "llama");
    header.key("tokenizer.ggml.scores", Key::Floats(scores));
    header.key("tokenizer.ggml.add_space_prefix", Key::Bool(false));
    fs::write(dir.join("scores.gguf"), header.header())?;
    let mut model = converted(&golden_dir("gemma3_text")).ok_or("no architecture")?;
    model.keys.extend(header.keys);
    let table = model.tensors.iter_mut().find(|tensor| tensor.name == "token_embd.weight");
    let table = table.ok_or("no embedding")?;
    let rows = table.shape[0] as usize;
    table.bytes = table.bytes.repeat(TOKENS / rows + 1);
    table.bytes.truncate(table.bytes.len() / (TOKENS / rows + 1) / rows * TOKENS);
    table.shape[0] = TOKENS as u64;
    fs::write(dir.join("model.gguf"), model.bytes())?;
    let mut header = GgufFile::default();
    add_tokens(&mut header, &tokens, "gemma4");
    let texts = merges.iter().map(|[left, right]| format!("{left} {right}")).collect();
    header.key("tokenizer.ggml.merges", Key::Texts(texts));
    fs::write(dir.join("merges.gguf"), header.header())?;
    Ok(())
}

/// The texts of all files of this repository in English or Rust.
fn corpus(dir: &Path, text: &mut String) -> Done<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Done<_>>()?;
    entries.sort();
    for path in entries {
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
            corpus(&path, text)?;
        } else if matches!(ending, Some("md" | "rs")) {
            text.push_str(&fs::read_to_string(path)?);
        }
    }
    Ok(())
}

/// The tokens by id: added ones, bytes, trained ones, and random words made of them.
fn tokens() -> Done<Vec<String>> {
    let mut text = String::new();
    corpus(&root(), &mut text)?;
    let mut trainer = BpeTrainer::builder().show_progress(false).vocab_size(TRAINED).build();
    trainer.feed(std::iter::once(text), |text| {
        Ok(text.split(' ').map(|word| format!("▁{word}")).collect())
    })?;
    let mut trained = BPE::default();
    trainer.train(&mut trained)?;
    let special = ["<pad>", "<eos>", "<bos>", "<unk>"].map(str::to_owned);
    let unused = (special.len()..ADDED).map(|n| format!("<unused{n}>"));
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let mut tokens: Vec<String> = special.into_iter().chain(unused).chain(bytes).collect();
    let first = tokens.len();
    let mut learned: Vec<(u32, String)> =
        trained.get_vocab().into_iter().map(|(text, id)| (id, text)).collect();
    learned.sort();
    tokens.extend(learned.into_iter().map(|(_, text)| text));
    let mut known: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    let mut random = SplitMix64::new(7);
    while tokens.len() < TOKENS {
        let mut any = || &tokens[first + random.next_u64() as usize % (tokens.len() - first)];
        let [left, right] = [any().clone(), any().clone()];
        let word = left + right.trim_start_matches('▁');
        if word.len() <= LONGEST && known.insert(word.clone()) {
            tokens.push(word);
        }
    }
    Ok(tokens)
}

/// All pairs of tokens that make a token, best first.
fn merges<'a>(tokens: &'a [String], ids: &HashMap<&str, usize>) -> Vec<[&'a str; 2]> {
    let mut merges = Vec::new();
    for text in &tokens[ADDED + 256..] {
        let splits = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let mut splits: Vec<[&str; 2]> = splits
            .map(Into::into)
            .filter(|split: &[&str; 2]| split.iter().all(|part| ids.contains_key(part)))
            .collect();
        splits.sort_by_key(|split| split.map(|part| ids[part]));
        merges.extend(splits);
    }
    merges
}

/// A `tokenizer.json`.
fn file(tokens: &[String], merges: &[[&str; 2]]) -> Value {
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().cloned().zip((0..TOKENS).map(Value::from)).collect();
    let added: Vec<Value> = (0..ADDED)
        .map(|id| {
            let mut token = json!(AddedToken::from(tokens[id].clone(), true));
            token["id"] = id.into();
            token
        })
        .collect();
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let decoders = json!([replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]);
    json!({
        "version": "1.0", "added_tokens": added, "normalizer": replace(" ", "▁"),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>",
            "fuse_unk": true, "byte_fallback": true,
        },
    })
}

fn add_tokens(file: &mut GgufFile, tokens: &[String], model: &str) {
    let kind = |(id, _): (usize, &String)| match id {
        3 => 2,
        ..ADDED => 3,
        id if id < ADDED + 256 => 6,
        _ => 1,
    };
    file.key("tokenizer.ggml.model", model.into());
    file.key("tokenizer.ggml.tokens", Key::Texts(tokens.to_vec()));
    file.key("tokenizer.ggml.token_type", Key::Ints(tokens.iter().enumerate().map(kind).collect()));
    file.key("tokenizer.ggml.bos_token_id", Key::U32(2));
    file.key("tokenizer.ggml.eos_token_id", Key::U32(1));
    file.key("tokenizer.ggml.unknown_token_id", Key::U32(3));
}

/// Runs something; returns its result, the seconds, the most bytes by which the heap grew, and the
/// bytes by which it is larger afterwards.
fn measured<T>(run: impl FnOnce() -> T) -> (T, Value) {
    // The heap is as large as it has ever been, so that its next maximum is that of `run`.
    let ballast: Vec<u8> = Vec::with_capacity(HEAP.max_allocated() - HEAP.allocated());
    let before = HEAP.allocated();
    let clock = Clock::real();
    let started = clock.now();
    let made = run();
    let seconds = (clock.now() - started).as_secs_f64();
    let peak = HEAP.max_allocated().saturating_sub(before);
    let held = HEAP.allocated().saturating_sub(before);
    drop(ballast);
    let mib = |bytes: usize| (bytes as f64 / 1048.576).round() / 1e3;
    let seconds = (seconds * 1e4).round() / 1e4;
    (made, json!({"seconds": seconds, "peak_mib": mib(peak), "held_mib": mib(held)}))
}

fn measure(path: &Path) -> Done<()> {
    let (bytes, file) = measured(|| fs::read(path));
    let bytes = bytes?;
    let (tokenizer, read) = measured(|| -> Done<Tokenizer> {
        Ok(match path.extension().is_some_and(|ending| ending == "gguf") {
            true => {
                let found = tokenizer::<GgufTextError>(&bytes, |_| Ok(()))?;
                found.ok_or("no tokenizer")?
            }
            false => Tokenizer::from_bytes(&bytes)?,
        })
    });
    let tokenizer = Arc::new(tokenizer?);
    let mut text = String::new();
    corpus(&root().join("docs"), &mut text)?;
    let (ids, encode) = measured(|| tokenizer.encode(&text, false));
    let ids = ids?;
    // Differs if any token does.
    let sum =
        ids.iter().fold(0, |sum: u64, &id| sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(id));
    let count = tokenizer.vocab_size();
    let (_, grammar) = measured(|| GrammarVocabulary::new(Arc::clone(&tokenizer), count, &[], &[]));
    let line = json!({
        "file": path.file_name().map(|name| name.to_string_lossy()), "bytes": bytes.len(),
        "tokens": count, "stages": {"file": file, "read": read, "encode": encode, "grammar": grammar},
        "encoded": {"bytes": text.len(), "tokens": ids.len(), "sum": format!("{sum:016x}")},
    });
    #[expect(clippy::print_stdout, reason = "the output of this program")]
    {
        println!("{line}");
    }
    Ok(())
}
