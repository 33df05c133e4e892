//! Tokenizers and chat templates from the headers of GGUF files give what the published files do.

use serde_json::{Value, json};
use sws_testing::gguf::{GgufFile, Key};
use sws_text::gguf::{self, GgufTextError, tokenizer_config_json};
use sws_text::{ChatOptions, ChatTemplate, Message, Tokenizer};

use crate::tokenizer::{byte_level, sentencepiece};

const TEXTS: [&str; 9] = [
    "",
    "the cat",
    "  two  blanks, the\n\n\thecat ",
    "They'LL don't 12345 x_y",
    "<|im_end|>the<|end of text|> the",
    "é e\u{301} 🙂 日本",
    "<s> the </s>",
    "▁ the▁he",
    "then he ate the\u{a0}thing",
];

/// The header of a file with the tokenizer of a `tokenizer.json`.
fn header(json: &Value, model: &str, change: impl FnOnce(&mut GgufFile)) -> Vec<u8> {
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let mut tokens: Vec<(u64, String)> =
        vocab.iter().map(|(token, id)| (id.as_u64().unwrap(), token.clone())).collect();
    for token in added {
        let token = (token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_owned());
        if !tokens.contains(&token) {
            tokens.push(token);
        }
    }
    tokens.sort();
    let special = |id: u64| added.iter().any(|token| token["id"] == id);
    let kind = |(id, token): &(u64, String)| match token.as_str() {
        "<unk>" => 2,
        _ if special(*id) => 3,
        token if token.starts_with("<0x") => 6,
        _ => 1,
    };
    let merges = json["model"]["merges"].as_array().unwrap();
    let merges: Vec<String> = merges.iter().map(|merge| merge.as_str().unwrap().into()).collect();
    let mut file = GgufFile::default();
    file.key("tokenizer.ggml.model", model.into());
    file.key("tokenizer.ggml.token_type", Key::Ints(tokens.iter().map(kind).collect()));
    // The later a token was made, the lower its score.
    file.key("tokenizer.ggml.scores", Key::Floats(tokens.iter().map(|t| -(t.0 as f32)).collect()));
    file.key("tokenizer.ggml.tokens", Key::Texts(tokens.into_iter().map(|t| t.1).collect()));
    if model != "llama" {
        file.key("tokenizer.ggml.merges", Key::Texts(merges));
    }
    change(&mut file);
    file.header()
}

fn tokenizer(json: &[u8]) -> Tokenizer {
    Tokenizer::from_bytes(json).unwrap()
}

fn of_header(header: &[u8]) -> Result<Option<Tokenizer>, GgufTextError> {
    gguf::tokenizer(header, |_| Ok(()))
}

fn same(header: &[u8], json: &Value) {
    let found = of_header(header).unwrap().unwrap();
    let expected = tokenizer(json.to_string().as_bytes());
    assert_eq!(found.vocab_size(), expected.vocab_size());
    for text in TEXTS {
        for special in [false, true] {
            let ids = expected.encode(text, special).unwrap();
            assert_eq!(found.encode(text, special).unwrap(), ids, "{text:?}");
            for skip in [false, true] {
                assert_eq!(found.decode(&ids, skip), expected.decode(&ids, skip), "{text:?}");
            }
        }
    }
}

#[test]
fn byte_level_tokenizers_are_those_of_the_names() {
    let split = |pattern: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]})
    };
    let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let llama = qwen.replace(r"|\p{N}|", r"|\p{N}{1,3}|");
    let cases = [
        ("gpt-2", None, Value::Null),
        ("qwen2", Some(split(qwen)), json!({"type": "NFC"})),
        ("llama-bpe", Some(split(&llama)), Value::Null),
    ];
    for (pre, steps, normalizer) in cases {
        let mut json = byte_level();
        if let Some(steps) = steps {
            json["pre_tokenizer"] = steps;
        }
        json["normalizer"] = normalizer;
        json["model"]["ignore_merges"] = json!(pre == "llama-bpe");
        let header = header(&json, "gpt2", |file| {
            file.key("tokenizer.ggml.pre", pre.into());
            file.key("tokenizer.ggml.eos_token_id", Key::U32(262));
        });
        same(&header, &json);
    }
}

/// Each name gives patterns that are understood, and no text is lost.
#[test]
fn every_name_gives_a_tokenizer() {
    let names = "gpt-2 olmo llama-bpe glm4 qwen2 hunyuan qwen35 gpt-4o tekken deepseek-llm \
                 deepseek-coder deepseek-v3 kimi-k2 bailingmoe starcoder";
    for pre in names.split_whitespace() {
        let header = header(&byte_level(), "gpt2", |file| {
            file.key("tokenizer.ggml.pre", pre.into());
        });
        let found = of_header(&header).unwrap().unwrap();
        for text in TEXTS {
            let ids = found.encode(text, false).unwrap();
            let back = found.decode(&ids, false);
            assert!(back == text || !text.is_ascii(), "{pre}: {text:?} became {back:?}");
        }
    }
}

#[test]
fn sentencepiece_tokenizers_have_merges_by_score() {
    let json = sentencepiece();
    let bos = |file: &mut GgufFile| {
        file.key("tokenizer.ggml.bos_token_id", Key::U32(1));
        file.key("tokenizer.ggml.unknown_token_id", Key::U32(0));
    };
    let written = header(&json, "llama", bos);
    let found = of_header(&written).unwrap().unwrap();
    let expected = tokenizer(json.to_string().as_bytes());
    for text in TEXTS {
        let ids = expected.encode(text, true).unwrap();
        assert_eq!(found.encode(text, true).unwrap(), ids, "{text:?}");
        assert_eq!(found.decode(&ids, true), expected.decode(&ids, true), "{text:?}");
    }
    let mut bare = json;
    bare["normalizer"]["normalizers"].as_array_mut().unwrap().remove(0);
    bare["decoder"]["decoders"].as_array_mut().unwrap().pop();
    bare["post_processor"] = Value::Null;
    let written = header(&bare, "llama", |file| {
        bos(file);
        file.key("tokenizer.ggml.add_space_prefix", Key::Bool(false));
        file.key("tokenizer.ggml.add_bos_token", Key::Bool(false));
    });
    // Gemma 4 has merges, and no space before the text.
    let of_gemma = header(&bare, "gemma4", |file| {
        bos(file);
        file.key("tokenizer.ggml.add_bos_token", Key::Bool(false));
    });
    let expected = tokenizer(bare.to_string().as_bytes());
    for written in [written, of_gemma] {
        let found = of_header(&written).unwrap().unwrap();
        for text in ["the cat", " the\u{e9} he "] {
            let ids = expected.encode(text, true).unwrap();
            assert_eq!(found.encode(text, true).unwrap(), ids, "{text:?}");
            assert_eq!(found.decode(&ids, true), expected.decode(&ids, true), "{text:?}");
        }
    }
}

#[test]
fn templates_come_with_their_tokens() {
    let header = header(&byte_level(), "gpt2", |file| {
        file.key("tokenizer.ggml.eos_token_id", Key::U32(261));
        let template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
        file.key("tokenizer.chat_template", template.into());
        file.key("tokenizer.chat_template.tool_use", "tools".into());
    });
    let config = tokenizer_config_json(&header).unwrap();
    let template = ChatTemplate::from_files(Some(&config), None).unwrap().unwrap();
    let message = Message::new("user", "hi");
    let prompt = template.render(std::slice::from_ref(&message), &ChatOptions::default()).unwrap();
    assert_eq!(prompt, "hi<|im_end|>");
    let none = tokenizer_config_json(&GgufFile::default().header()).unwrap();
    assert!(ChatTemplate::from_files(Some(&none), None).unwrap().is_none());
}

#[test]
fn what_is_not_known_is_refused() {
    assert!(of_header(&GgufFile::default().header()).unwrap().is_none());
    let key = |file: &mut GgufFile, key: &str, value: Key| {
        file.keys.retain(|(name, _)| name != key);
        file.key(key, value);
    };
    type Change<'a> = &'a dyn Fn(&mut GgufFile);
    let cases: &[(Change<'_>, &str)] = &[
        (&|_| (), "its GGUF file has no `tokenizer.ggml.pre`"),
        (&|f| key(f, "tokenizer.ggml.pre", "odd".into()), "`tokenizer.ggml.pre` = `odd`"),
        (&|f| key(f, "tokenizer.ggml.model", "t5".into()), "`tokenizer.ggml.model` = `t5`"),
        (
            &|f| {
                f.keys.retain(|(name, _)| name != "tokenizer.ggml.token_type");
                key(f, "tokenizer.ggml.pre", "gpt-2".into());
                key(f, "tokenizer.ggml.tokens", Key::Texts(vec!["a".into(), "a".into()]));
            },
            "has the token `a` twice",
        ),
        (
            &|f| key(f, "tokenizer.ggml.token_type", Key::Ints(vec![1])),
            "`tokenizer.ggml.token_type` is not what it should be",
        ),
        (&|f| key(f, "tokenizer.ggml.tokens", Key::U32(3)), "`tokenizer.ggml.tokens` is not what"),
        (&|f| key(f, "tokenizer.ggml.token_type", Key::U32(3)), "token_type` is not what"),
        (
            &|f| {
                key(f, "tokenizer.ggml.pre", "gpt-2".into());
                key(f, "tokenizer.ggml.add_bos_token", Key::Bool(true));
                key(f, "tokenizer.ggml.bos_token_id", Key::U32(999_999));
            },
            "`tokenizer.ggml.bos_token_id` is not what",
        ),
        (
            &|f| {
                key(f, "tokenizer.ggml.pre", "gpt-2".into());
                key(f, "tokenizer.ggml.add_eos_token", Key::Bool(true));
            },
            "has no `tokenizer.ggml.eos_token_id`",
        ),
        (
            &|f| {
                key(f, "tokenizer.ggml.pre", "gpt-2".into());
                key(f, "tokenizer.ggml.merges", Key::Texts(vec!["h e".into(), "h  e".into()]));
            },
            "the merge `h  e` is not of its tokens",
        ),
    ];
    for (change, expected) in cases {
        let error = of_header(&header(&byte_level(), "gpt2", *change)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let damaged = of_header(b"GGUF").unwrap_err().to_string();
    assert!(damaged.contains("the header of its GGUF file is damaged"), "{damaged}");
}

/// Merges follow from scores without a list of them, which would be long where every part of every
/// token is a token.
#[test]
fn merges_of_scores_need_no_list() {
    let tokens: Vec<String> = (1..=40).map(|n| "a".repeat(n)).collect();
    let mut file = GgufFile::default();
    file.key("tokenizer.ggml.model", "llama".into());
    file.key("tokenizer.ggml.scores", Key::Floats((0..40).map(|n| -(n as f32)).collect()));
    file.key("tokenizer.ggml.tokens", Key::Texts(tokens));
    file.key("tokenizer.ggml.add_space_prefix", Key::Bool(false));
    let found = of_header(&file.header()).unwrap().unwrap();
    for length in [1, 2, 3, 5, 40] {
        assert_eq!(found.encode(&"a".repeat(length), false).unwrap(), [length as u32 - 1]);
    }
    assert_eq!(found.encode(&"a".repeat(80), false).unwrap(), [31, 31, 15]);
}

#[test]
fn memory_of_a_tokenizer_is_known_from_the_header() {
    let asked = std::cell::Cell::new(None);
    let header = header(&sentencepiece(), "llama", |_| ());
    let fits = |memory: sws_text::TokenizerMemory| {
        asked.set(Some(memory));
        Err(GgufTextError::Missing("room"))
    };
    assert!(gguf::tokenizer(&header, fits).unwrap_err().to_string().contains("room"));
    let memory = asked.get().unwrap();
    assert!(memory.held <= memory.peak && memory.peak < 2 << 20, "{memory:?}");
}
