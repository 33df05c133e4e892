//! Bounded encoding gives the same ids as `encode_fast` of the `tokenizers` crate.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use sws_text::Tokenizer;

use crate::tokenizer::{byte_level, metaspace, sentencepiece};

fn split(pattern: &Value, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps, "normalizers": steps})
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn bytes(space: bool, regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true, "use_regex": regex})
}

/// Pre-tokenizers before a byte-level vocabulary.
fn pre_tokenizers() -> Vec<Value> {
    let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let patterns = [
        json!({"Regex": qwen}),
        json!({"Regex": r"(?<=e)\s|\p{Lu}(?=\p{Ll})|(.)\1"}),
        json!({"Regex": r"\d{3}|x*"}),
        json!({"String": " "}),
        json!({"String": "."}),
    ];
    let behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    let mut splits = Vec::new();
    for pattern in &patterns {
        for behavior in behaviors {
            splits.extend([false, true].map(|invert| split(pattern, behavior, invert)));
        }
    }
    splits.extend([
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Digits", "individual_digits": false}),
        json!({"type": "Punctuation", "behavior": "Contiguous"}),
        json!({"type": "Whitespace"}),
        json!({"type": "WhitespaceSplit"}),
        json!({"type": "BertPreTokenizer"}),
        json!({"type": "FixedLength", "length": 3}),
        json!({"type": "CharDelimiterSplit", "delimiter": "e"}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}),
        sequence(&[]),
    ]);
    let mut all = vec![bytes(false, false), bytes(true, true), bytes(true, false)];
    all.extend(splits.iter().map(|one| sequence(&[one.clone(), bytes(false, false)])));
    let nested = sequence(&[splits[50].clone(), splits[52].clone()]);
    all.push(sequence(&[splits[2].clone(), nested, bytes(true, true)]));
    all
}

fn normalizers() -> Vec<Value> {
    let plain = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"];
    let mut all: Vec<Value> = plain.iter().map(|name| json!({"type": name})).collect();
    all.extend([
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
        json!({"type": "Prepend", "prepend": "▁"}),
        replace(json!({"String": "e"}), "ee"),
        replace(json!({"String": " the"}), ""),
        replace(json!({"Regex": " {2,}"}), "▁"),
        replace(json!({"Regex": r"(?<=a)\p{L}+"}), "é"),
    ]);
    let nested = sequence(&[all[11].clone(), all[4].clone()]);
    all.push(sequence(&[all[3].clone(), nested, all[13].clone()]));
    all
}

fn added(id: usize, content: &str, flags: [bool; 4]) -> Value {
    let [single_word, lstrip, rstrip, normalized] = flags;
    json!({
        "id": id, "content": content, "single_word": single_word, "lstrip": lstrip,
        "rstrip": rstrip, "normalized": normalized, "special": false,
    })
}

/// Models other than BPE.
fn models() -> Vec<Value> {
    let words = ["[UNK]", "the", "cat", "##s", "a", "##t", "t", "##h", "##e", "é", "1", "."];
    let vocab: serde_json::Map<_, _> =
        (0..).zip(words).map(|(id, word)| (word.to_owned(), json!(id))).collect();
    let bert = json!({"type": "BertProcessing", "sep": ["the", 1], "cls": ["cat", 2]});
    let pieces = json!({
        "version": "1.0", "added_tokens": [], "normalizer": normalizers()[9], "decoder": null,
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": bert,
        "model": {
            "type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 10,
        },
    });
    let mut words = pieces.clone();
    words["model"]["type"] = json!("WordLevel");
    words["post_processor"] = json!({
        "type": "RobertaProcessing", "sep": ["the", 1], "cls": ["cat", 2], "trim_offsets": true,
        "add_prefix_space": true,
    });
    let scored = ["<unk>", "▁", "▁the", "a", "t", "th", "e", "é", "▁ca", "s", "1", "12"];
    let scored: Vec<_> =
        (0..).zip(scored).map(|(i, word)| json!([word, -f64::from(i % 7)])).collect();
    let unigram = |byte_fallback: bool| {
        let mut json = metaspace();
        json["normalizer"] = json!({"type": "NFKC"});
        (json["added_tokens"], json["post_processor"]) = (json!([]), Value::Null);
        json["model"] = json!({
            "type": "Unigram", "unk_id": 0, "vocab": scored, "byte_fallback": byte_fallback,
        });
        json
    };
    vec![pieces, words, unigram(false), unigram(true)]
}

/// Tokenizers of every kind, including combinations of parts that no published one has.
fn tokenizers() -> Vec<Value> {
    let mut all = vec![byte_level(), sentencepiece(), metaspace()];
    for pre_tokenizer in pre_tokenizers() {
        let mut json = byte_level();
        json["pre_tokenizer"] = pre_tokenizer;
        all.push(json);
    }
    for normalizer in normalizers() {
        for mut json in [byte_level(), metaspace()] {
            json["normalizer"] = normalizer.clone();
            let id = json["model"]["vocab"].as_object().unwrap().len();
            json["added_tokens"].as_array_mut().unwrap().extend([
                added(id + 10, "The end", [false, false, false, true]),
                added(id + 11, "cat", [true, false, false, false]),
                added(id + 12, "<x>", [false, true, true, false]),
                added(id + 13, "é", [false, false, false, true]),
            ]);
            all.push(json);
        }
    }
    all.extend(models());
    all
}

#[test]
fn ids_are_those_of_the_tokenizers_crate() {
    let both: Vec<_> = tokenizers()
        .into_iter()
        .map(|json| {
            let text = json.to_string();
            let ours = Tokenizer::from_bytes(text.as_bytes());
            let ours = ours.unwrap_or_else(|e| panic!("{e}: {}", json["pre_tokenizer"]));
            (ours, tokenizers::Tokenizer::from_bytes(&text).unwrap(), json)
        })
        .collect();
    assert!(both.len() > 80, "{}", both.len());
    let text = "(\\PC|[ \n\t]|🎉|e\u{301}|ﷺ|İ|the| cat|<x>|The end|<\\|im_end\\|>|12345|  |你好|'s|\\.\\.){0,24}";
    let mut runner = TestRunner::new(ProptestConfig::with_cases(100));
    let result = runner.run(&(text, any::<bool>()), |(text, special)| {
        for (ours, theirs, json) in &both {
            let Ok(expected) = theirs.encode_fast(text.as_str(), special) else {
                prop_assert!(ours.encode(&text, special).is_err());
                continue;
            };
            let ids = ours.encode(&text, special).unwrap();
            let steps = (&json["normalizer"], &json["pre_tokenizer"], &json["model"]["type"]);
            prop_assert_eq!(&*ids, expected.get_ids(), "{:?}", steps);
        }
        Ok(())
    });
    result.unwrap();
}
