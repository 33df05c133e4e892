//! Tokenizers crafted to take unlimited memory and time, and prompts that trigger it.

use serde_json::{Value, json};
use sws_text::Tokenizer;

use crate::tokenizer::{byte_level, metaspace, sentencepiece};

fn edited(mut json: Value, edit: impl FnOnce(&mut Value)) -> Value {
    edit(&mut json);
    json
}

fn with(key: &str, value: Value) -> Value {
    edited(byte_level(), |json| json[key] = value)
}

fn read(json: &Value) -> Result<Tokenizer, String> {
    Tokenizer::from_bytes(json.to_string().as_bytes()).map_err(|e| e.to_string())
}

fn refusal(tokenizer: &Tokenizer, text: &str) -> String {
    let error = tokenizer.encode(text, true).expect_err("refused").to_string();
    assert!(!error.contains('\n') && error.len() < 400, "{error}");
    error
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn growing(steps: usize) -> Value {
    let tenfold = replace(json!({"String": "a"}), &"a".repeat(10));
    json!({"type": "Sequence", "normalizers": vec![tenfold; steps]})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": true})
}

#[test]
fn oversized_files_are_refused_with_the_reason() {
    let long = "a".repeat(5000);
    let charsmap = |table: &str| json!({"type": "Precompiled", "precompiled_charsmap": table});
    let decoders = vec![replace(json!({"String": "a"}), &"a".repeat(10)); 12];
    let normalized = json!([{
        "id": 300, "content": "a", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": true, "special": false,
    }]);
    let scored = json!([["<unk>", 0.0], ["a".repeat(100_000), 0.0]]);
    #[rustfmt::skip]
    let cases = [
        (with("normalizer", growing(65)), "more than 64 steps"),
        (with("normalizer", replace(json!({"String": "a"}), &"a".repeat(100_000))), "a `content` of 100000 bytes"),
        (with("normalizer", replace(json!({"String": ""}), "a")), "an empty pattern"),
        (with("normalizer", replace(json!({"Regex": ""}), "a")), "an empty pattern"),
        (with("normalizer", json!({"type": "Prepend", "prepend": long})), "a `prepend` of 5000 bytes"),
        // A trie of length zero, then a text of 300 bytes.
        (with("normalizer", charsmap(&format!("AAAAAGFh{}", "YWFh".repeat(100)))), "a character that becomes"),
        (edited(with("normalizer", growing(12)), |json| json["added_tokens"] = normalized), "an added token that its normalizer makes too long"),
        (with("pre_tokenizer", split(r"\p{L}{2000}")), r"the pattern `\\p{L}{2000}`"),
        (with("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": vec![split("ab"); 9]})), "more than 8 patterns"),
        (with("decoder", json!({"type": "Sequence", "decoders": decoders})), "steps that make a token longer and longer"),
        (edited(byte_level(), |json| json["added_tokens"][0]["content"] = json!("")), "an empty added token"),
        (edited(byte_level(), |json| json["added_tokens"][0]["content"] = json!(long)), "added tokens of"),
        (edited(byte_level(), |json| json["model"]["vocab"][&long] = json!(300)), "a token of 5000 bytes"),
        (edited(byte_level(), |json| json["model"]["unk_token"] = json!(long)), "an unk_token, prefix or suffix"),
        (edited(byte_level(), |json| json["model"]["continuing_subword_prefix"] = json!("é")), "BPE with a continuing_subword_prefix"),
        // Dropped node by node, it would overflow the stack.
        (edited(metaspace(), |json| json["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": scored})), "a token of 100000 bytes"),
        (edited(sentencepiece(), |json| {
            let text = json!({"Sequence": {"id": "A", "type_id": 0}});
            json["post_processor"]["single"] = json!(vec![text; 1000]);
        }), "repeats the text"),
    ];
    for (json, words) in cases {
        let error = read(&json).expect_err(words);
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn post_processor_output_is_bounded_before_it_runs() {
    let piece = json!({"SpecialToken": {"id": "x", "type_id": 0}});
    let template = |ids: usize, pieces: usize| {
        json!({
            "type": "TemplateProcessing", "single": vec![piece.clone(); pieces], "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": vec![1; ids], "tokens": vec!["a"; ids]}},
        })
    };
    let error = read(&with("post_processor", template(10_000, 5000))).expect_err("refused");
    assert!(error.contains("more than 4096 bytes or tokens"), "{error}");
    let sequence = |steps: Value| json!({"type": "Sequence", "processors": steps});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let nested = sequence(json!(vec![sequence(json!(vec![bytes; 40])); 2]));
    let error = read(&with("post_processor", nested)).expect_err("refused");
    assert!(error.contains("more than 64 steps"), "{error}");
}

#[test]
fn repetitions_with_lookarounds_are_refused() {
    for pattern in ["(?:(?=[^b]*)a)*", "(?:(?=[^b]*c|a)a)*", "(?:(?>a*)|b)+", "((?:(?!b)a)?){2}"] {
        let error = read(&with("pre_tokenizer", split(pattern))).expect_err(pattern);
        assert!(error.contains("with a repetition of more than"), "{error}");
    }
}

#[test]
fn a_run_of_blanks_is_split_by_a_copy_of_a_published_pattern() {
    let copy =
        r"(?:[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    let tokenizer = read(&with("pre_tokenizer", split(copy))).unwrap();
    tokenizer.encode(&format!("{}the", " ".repeat(11_000)), false).unwrap();
}

#[test]
fn decoders_that_make_long_texts_are_refused() {
    let decoders = [
        replace(json!({"String": ""}), &"b".repeat(4000)),
        replace(json!({"String": "b"}), &"c".repeat(60)),
    ];
    let error = read(&with("decoder", json!({"type": "Sequence", "decoders": decoders})));
    assert!(error.expect_err("refused").contains("longer and longer"));
}

#[test]
fn more_merges_than_any_vocabulary_has_are_refused() {
    let json =
        edited(byte_level(), |json| json["model"]["merges"] = json!(vec![["!", "!"]; 100_000]));
    let error = read(&json).expect_err("refused");
    assert!(error.contains("100000 merges for"), "{error}");
}

#[test]
fn total_size_of_patterns_is_bounded() {
    let patterns: Vec<Value> = (0..3).map(|i| split(&format!("{i}{}", "a".repeat(1000)))).collect();
    let json = json!({"type": "Sequence", "pretokenizers": patterns});
    let error = read(&with("pre_tokenizer", json)).expect_err("refused");
    assert!(error.contains("3003 bytes together"), "{error}");
}

#[test]
fn added_tokens_share_one_deadline() {
    let tokens: Vec<Value> = (0..200)
        .map(|i| {
            json!({
                "id": 300 + i, "content": format!("{}{i}", "a".repeat(4000)), "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": true, "special": false,
            })
        })
        .collect();
    let json =
        edited(with("normalizer", replace(json!({"Regex": "a+b|(?=(a+)\\1c)a"}), "x")), |json| {
            json["added_tokens"] = json!(tokens);
        });
    let error = read(&json).expect_err("refused");
    assert!(error.contains("takes too long on this text"), "{error}");
}

#[test]
fn an_empty_memory_budget_is_reported() {
    let mut tokenizer = read(&byte_level()).unwrap();
    tokenizer.bound(1000, 0);
    let expected = "the memory budget leaves nothing for encoding a text; raise --ram";
    assert_eq!(refusal(&tokenizer, "the"), expected);
}

#[test]
fn growing_normalizers_are_refused_before_memory_is_taken() {
    let json = edited(sentencepiece(), |json| json["normalizer"] = growing(12));
    let mut tokenizer = read(&json).unwrap();
    tokenizer.bound(usize::MAX, 64 << 20);
    let before = peak();
    for letters in [1, 100_000] {
        let error = refusal(&tokenizer, &"a".repeat(letters));
        assert!(error.contains("more memory to encode") && error.contains("64 MiB"), "{error}");
    }
    // Other tests allocate some memory meanwhile.
    let grown = peak() - before;
    assert!(grown < 512 << 20, "{grown}");
    assert_eq!(tokenizer.encode("bcd", false).unwrap().len(), 3);
}

/// The peak memory use of the process.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn bytes_that_double_at_every_step_are_refused() {
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let doubling = json!({"type": "Sequence", "pretokenizers": vec![bytes; 60]});
    let mut tokenizer = read(&with("pre_tokenizer", doubling)).unwrap();
    tokenizer.bound(usize::MAX, 64 << 20);
    assert!(refusal(&tokenizer, "é").contains("more memory to encode"));
    assert_eq!(tokenizer.encode("the", false).unwrap().len(), 1);
}

#[test]
fn catastrophic_patterns_end_with_an_error() {
    let text = "a".repeat(100_000);
    for pattern in ["(?=(a+))\\1b", "(a|aa)+\\1c", "(a|aa)\\1a*a*c", "(?=(a*)*b)a", "a+b|(?=a+c)a"]
    {
        let steps = [
            ("pre_tokenizer", split(pattern)),
            ("normalizer", replace(json!({"Regex": pattern}), "x")),
        ];
        for (key, step) in steps {
            let tokenizer = read(&with(key, step)).unwrap();
            let error = refusal(&tokenizer, &text);
            assert!(error.contains("takes too long on this text"), "{pattern}: {error}");
            assert!(tokenizer.encode("the cat", false).is_ok());
        }
    }
}

#[test]
fn patterns_with_large_counts_are_refused() {
    for pattern in ["(?:a?){1000000}(?!b)", "(?:(?:a?){100}){100}(?!b)", "(?:a?){2000,}(?!b)"] {
        let error = read(&with("pre_tokenizer", split(pattern))).unwrap_err().to_string();
        assert!(error.contains("more than 1,024 times"), "{pattern}: {error}");
    }
}

#[test]
fn long_runs_of_one_letter_are_encoded_or_refused() {
    let none = json!({"type": "Sequence", "pretokenizers": []});
    let words = json!({"[UNK]": 0, "a": 1, "##a": 2});
    let word_piece = |most: u64| {
        edited(metaspace(), |json| {
            json["pre_tokenizer"] = Value::Null;
            json["post_processor"] = Value::Null;
            json["added_tokens"] = json!([]);
            json["model"] = json!({
                "type": "WordPiece", "vocab": words, "unk_token": "[UNK]",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": most,
            });
        })
    };
    let unigram = |longest: usize| {
        let nested = (1..=longest).map(|n| json!(["a".repeat(n), -1.0 / n as f64]));
        let vocab: Vec<Value> = std::iter::once(json!(["<unk>", 0.0])).chain(nested).collect();
        edited(metaspace(), |json| {
            (json["post_processor"], json["added_tokens"]) = (Value::Null, json!([]));
            json["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": vocab});
        })
    };
    let marked = edited(byte_level(), |json| {
        let token = &mut json["added_tokens"][0];
        for (key, value) in
            [("content", json!("a")), ("single_word", json!(true)), ("lstrip", json!(true))]
        {
            token[key] = value;
        }
    });
    // A tokenizer, and whether texts of 100 thousand and of a million letters are encoded.
    let cases = [
        ("bytes", byte_level(), [true, true]),
        ("never split", with("pre_tokenizer", none), [true, true]),
        ("sentencepiece", sentencepiece(), [true, true]),
        ("metaspace", metaspace(), [true, true]),
        ("marked", marked, [true, true]),
        ("words too long", word_piece(100), [true, true]),
        ("long words", word_piece(1 << 40), [false, false]),
        ("short tokens", unigram(2), [true, true]),
        ("long tokens", unigram(400), [true, false]),
    ];
    for (name, json, expected) in cases {
        let tokenizer = read(&json).unwrap();
        for (letters, expected) in [100_000, 1_000_000].into_iter().zip(expected) {
            let encoded = tokenizer.encode(&"a".repeat(letters), false);
            assert_eq!(encoded.is_ok(), expected, "{name} {letters}: {:?}", encoded.err());
        }
    }
}

#[test]
fn texts_that_are_too_long_are_refused_before_encoding() {
    let mut tokenizer = read(&byte_level()).unwrap();
    tokenizer.bound(1000, 8 << 20);
    let error = refusal(&tokenizer, &"the ".repeat(16_001));
    let expected =
        "the text has 64004 bytes, and the 1000 tokens that fit have at most 64000; shorten it";
    assert_eq!(error, expected);
    tokenizer.bound(100_000, 8 << 20);
    let error = refusal(&tokenizer, &"the ".repeat(25_000));
    assert!(error.contains("a text of 100000 bytes") && error.contains("the 8 MiB"), "{error}");
    assert_eq!(tokenizer.encode(&"the ".repeat(5_000), false).unwrap().len(), 5_001);
}

#[test]
fn usual_texts_fit_into_the_working_memory() {
    let [once, each] = Tokenizer::WORKING;
    for json in [byte_level(), sentencepiece(), metaspace()] {
        let mut tokenizer = read(&json).unwrap();
        for word in [" the", "a ", " cat's 12 é\n", "你好", "                "] {
            for positions in [512, 4096] {
                // At most a byte per token, whatever the vocabulary.
                let text = word.repeat(positions / word.len());
                tokenizer.bound(positions, once + each * positions as u64);
                tokenizer.encode(&text, false).unwrap_or_else(|e| panic!("{word:?}: {e}"));
            }
        }
    }
}
