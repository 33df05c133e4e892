//! Memory of vocabularies and structures, as far as a server sets it aside. The only test of its program, as
//! the heap is that of all threads.

use std::alloc::System;
use std::sync::Arc;

use cap::Cap;
use serde_json::{Value, json};
use sws_text::grammar::{Grammar, GrammarVocabulary, Structure};
use sws_text::{TokenMask, Tokenizer};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Runs something, and returns the most that the heap grew by meanwhile.
fn grown<T>(run: impl FnOnce() -> T) -> (T, u64) {
    // The heap is as large as it has ever been, so that its next maximum is that of `run`.
    let ballast: Vec<u8> = Vec::with_capacity(HEAP.max_allocated() - HEAP.allocated());
    let before = HEAP.max_allocated();
    let made = run();
    let most = HEAP.max_allocated() - before;
    drop(ballast);
    (made, most as u64)
}

/// A tokenizer of byte-level words with so many tokens.
fn tokenizer(count: usize) -> Arc<Tokenizer> {
    let letters = ('!'..='~').map(String::from).chain(["Ġ".to_owned(), "Ċ".to_owned()]);
    let words = (0_u64..).map(|n| format!("Ġ{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24));
    let vocab: serde_json::Map<String, Value> =
        letters.chain(words).take(count).zip(0_u32..).map(|(word, id)| (word, id.into())).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let model = json!({"type": "BPE", "vocab": vocab, "merges": []});
    let json = json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model});
    Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap())
}

/// Writes a text of many tokens, or to where its structure becomes too much work.
fn write(grammar: &Grammar, count: usize, tokens: usize) {
    let mut constraint = grammar.begin();
    let mut seed = 1_u64;
    for _ in 0..tokens {
        let mut logits = vec![0.0; count];
        if constraint.is_complete() || constraint.mask(&mut logits).is_err() {
            return;
        }
        let allowed: Vec<u32> = (0..)
            .zip(&logits)
            .filter(|(_, logit)| **logit == 0.0)
            .map(|(token, _)| token)
            .collect();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let token = allowed[(seed >> 33) as usize % allowed.len()];
        if constraint.take(token).is_err() {
            return;
        }
    }
}

#[test]
fn structures_take_no_more_memory_than_is_set_aside() {
    let alternatives: Vec<Value> = (0..500)
        .map(|n| json!({"type": "object", "properties": {format!("p{n}"): {"type": "string"}}}))
        .collect();
    let properties: serde_json::Map<String, Value> =
        (0..1500).map(|n| (format!("property {n}"), json!({"type": "integer"}))).collect();
    let mut nested = json!({"type": "string"});
    for _ in 0..20 {
        nested = json!({"type": "object", "properties": {"a": nested, "b": {"type": "integer"}}, "additionalProperties": true});
    }
    let strict = |schema| Structure::Schema { schema, strict: false };
    let structures = [
        ("object", Structure::Object),
        ("alternatives", strict(json!({"anyOf": alternatives}))),
        ("properties", strict(json!({"type": "object", "properties": properties}))),
        ("nested", strict(nested)),
        (
            "items",
            strict(
                json!({"type": "array", "items": {"type": "string"}, "minItems": 9000, "maxItems": 10_000}),
            ),
        ),
        ("length", strict(json!({"type": "string", "minLength": 100_000, "maxLength": 1_000_000}))),
        ("pattern", strict(json!({"type": "string", "pattern": "^(a|b|[c-z]{2,50}){1,50}x$"}))),
        ("forced", Structure::Regex("((((a{1000}){1000}){1000}))b".to_owned())),
        ("repeated", Structure::Regex("(((a|b){1,99}c?){1,99}d?){1,99}".to_owned())),
        ("lookback", Structure::Regex("(.*a.{20}|.*b.{21}|.*c.{22})d".to_owned())),
        ("letters", Structure::Regex("\\w{1,500}\\W{1,500}\\p{L}{1,200}".to_owned())),
        (
            "choices",
            Structure::Choice(
                (0..1024_u64)
                    .map(|n| format!("{:032x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                    .collect(),
            ),
        ),
        (
            "ambiguous",
            Structure::Grammar(
                "start: a\na: a a | b | \"x\"\nb: b a | a b | \"x\" \"y\"?\n".to_owned(),
            ),
        ),
        ("left", Structure::Grammar("root ::= root \"a\" | root root | [a-z]+".to_owned())),
    ];
    for count in [4096, 160_000] {
        let tokenizer = tokenizer(count);
        let (vocabulary, most) =
            grown(|| GrammarVocabulary::new(tokenizer, count, &[], &[]).unwrap());
        assert!(most <= GrammarVocabulary::bytes(count), "{count}: {most}");
        for (name, structure) in &structures {
            let (compiled, most) = grown(|| vocabulary.compile(structure));
            let [part, unit] = Grammar::UNIT;
            let set_aside = structure.bytes().div_ceil(part).max(1) * unit;
            assert!(most <= set_aside as u64, "{name}: {most}");
            let Ok(grammar) = compiled else { continue };
            let ((), most) = grown(|| write(&grammar, count, 100));
            assert!(most <= Grammar::WRITTEN, "{name}: {most}");
        }
    }
}
