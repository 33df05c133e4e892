//! The two kinds of tokenizers that models use, and incremental decoding byte by byte.

use proptest::prelude::*;
use serde_json::{Value, json};
use sws_text::{
    ChatOptions, ChatTemplate, Detokenizer, Finish, Message, Position, TextStream, Tokenizer,
    TokenizerError,
};

/// Byte-level BPE as in gpt-2, Qwen and Llama 3: 256 bytes, a few merges, special tokens.
pub(crate) fn byte_level() -> Value {
    let mut vocab = serde_json::Map::new();
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut chars: Vec<char> = Vec::new();
    for b in 0..256u32 {
        let code = if printable(b) {
            b
        } else {
            next += 1;
            next - 1
        };
        chars.push(char::from_u32(code).unwrap());
    }
    for (id, c) in chars.iter().enumerate() {
        vocab.insert(c.to_string(), json!(id));
    }
    // The first two bytes of most emoji are one token, so that tokens end inside characters.
    let merges = ["h e", "t he", "Ġ the", "ð Ł", "c a"];
    for merge in merges {
        vocab.insert(merge.replace(' ', ""), json!(vocab.len()));
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "post_processor": null, "pre_tokenizer": byte_level, "decoder": byte_level,
        "added_tokens": [special(261, "<|im_end|>"), special(262, "<|end of text|>")],
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    })
}

/// BPE converted from sentencepiece as in Llama 2 and Mixtral: `▁` for spaces, byte fallback, `<s>`
/// before the text.
pub(crate) fn sentencepiece() -> Value {
    let mut vocab = serde_json::Map::new();
    for token in ["<unk>", "<s>", "</s>"] {
        vocab.insert(token.to_owned(), json!(vocab.len()));
    }
    for byte in 0..256 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(vocab.len()));
    }
    for c in "▁abcdefghijklmnopqrstuvwxyz".chars() {
        vocab.insert(c.to_string(), json!(vocab.len()));
    }
    let merges = ["h e", "t he", "▁ the", "▁ a", "▁ ▁"];
    for merge in merges {
        vocab.insert(merge.replace(' ', ""), json!(vocab.len()));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "model": {
            "type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>",
            "fuse_unk": true, "byte_fallback": true,
        },
    })
}

/// The same with a Metaspace, as in newer conversions.
pub(crate) fn metaspace() -> Value {
    let mut json = sentencepiece();
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false});
    json["normalizer"] = Value::Null;
    json["pre_tokenizer"] = metaspace.clone();
    json["decoder"] =
        json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]});
    json
}

fn special(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

fn tokenizer(json: &Value) -> Tokenizer {
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
}

/// The text produced by each id, and at the end of the text.
fn pieces(tokenizer: &Tokenizer, position: Position, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer, position, true);
    let mut pieces = Vec::new();
    for &id in ids {
        let mut piece = String::new();
        detokenizer.push(id, &mut piece);
        pieces.push(piece);
    }
    let mut piece = String::new();
    detokenizer.finish(&mut piece);
    pieces.push(piece);
    pieces
}

#[test]
fn text_is_encoded_by_the_merges() {
    let cases: [(Value, &str, bool, &[&str]); 8] = [
        (byte_level(), "the the", true, &["the", "Ġthe"]),
        (byte_level(), "cat 🎉", true, &["ca", "t", "Ġ", "ðŁ", "İ", "ī"]),
        (byte_level(), "a<|im_end|>a", true, &["a", "<|im_end|>", "a"]),
        (byte_level(), "", true, &[]),
        (sentencepiece(), "the the", true, &["<s>", "▁the", "▁the"]),
        (sentencepiece(), "the é", false, &["▁the", "▁", "<0xC3>", "<0xA9>"]),
        (metaspace(), "the the", false, &["▁the", "▁the"]),
        (metaspace(), "the é", false, &["▁the", "▁", "<0xC3>", "<0xA9>"]),
    ];
    for (json, text, add_special, expected) in cases {
        let tokenizer = tokenizer(&json);
        let ids = tokenizer.encode(text, add_special).unwrap();
        let tokens: Vec<_> = ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect();
        assert_eq!(tokens, expected, "{text:?}");
    }
}

#[test]
fn characters_appear_when_they_are_complete() {
    let byte_level = tokenizer(&byte_level());
    let llama = tokenizer(&sentencepiece());
    let metaspace = tokenizer(&metaspace());
    use Position::{Middle, Start};
    let cases: [(&Tokenizer, Position, &[&str], &[&str]); 14] = [
        (&byte_level, Start, &["Ġthe", "ca"], &[" the", "ca", ""]),
        (&byte_level, Start, &["ðŁ", "İ", "ī", "t"], &["", "", "🎉", "t", ""]),
        // Invalid bytes are replaced as soon as they are known to be invalid.
        (&byte_level, Start, &["ðŁ", "t"], &["", "\u{fffd}t", ""]),
        (&byte_level, Start, &["ðŁ", "İ"], &["", "", "\u{fffd}"]),
        (&byte_level, Start, &["ī", "Ã", "©"], &["\u{fffd}", "", "é", ""]),
        (&byte_level, Start, &["<|im_end|>", "t"], &["", "t", ""]),
        // The first space of a sentencepiece text was added by the tokenizer.
        (&llama, Start, &["<s>", "▁the", "▁the"], &["", "the", " the", ""]),
        (&llama, Middle, &["▁the", "▁the"], &[" the", " the", ""]),
        (&llama, Start, &["▁▁", "a"], &[" ", "a", ""]),
        (&llama, Start, &["▁", "<0xC3>", "<0xA9>", "a"], &["", "", "é", "a", ""]),
        (&llama, Start, &["<0xC3>", "a"], &["", "\u{fffd}a", ""]),
        (&metaspace, Start, &["▁the", "▁the"], &["the", " the", ""]),
        (&metaspace, Middle, &["▁the", "▁the"], &[" the", " the", ""]),
        (&metaspace, Start, &["<0xF0>", "<0x9F>", "<0x8E>", "<0x89>"], &["", "", "", "🎉", ""]),
    ];
    for (tokenizer, position, tokens, expected) in cases {
        let id = |token: &&str| tokenizer.id(token).unwrap_or_else(|| panic!("no token {token}"));
        let ids: Vec<u32> = tokens.iter().map(id).collect();
        assert_eq!(pieces(tokenizer, position, &ids), expected, "{tokens:?}");
    }
}

proptest! {
    #[test]
    fn any_text_survives_a_round_trip(text in "(\\PC|[ \n\t]|🎉|👩‍👩‍👧|e\u{301}|the|é){0,24}") {
        for json in [byte_level(), sentencepiece(), metaspace()] {
            let tokenizer = tokenizer(&json);
            let ids = tokenizer.encode(&text, true).unwrap();
            let streamed = pieces(&tokenizer, Position::Start, &ids);
            // sentencepiece treats `▁` itself as a space, and Metaspace strips all leading spaces.
            let lossless = json == byte_level()
                || !text.contains('▁') && (json == sentencepiece() || !text.starts_with(' '));
            prop_assert!(!lossless || streamed.concat() == text, "{:?} from {:?}", streamed, text);
            let replaced = streamed.concat().contains(char::REPLACEMENT_CHARACTER);
            prop_assert!(!replaced || text.contains(char::REPLACEMENT_CHARACTER));
            prop_assert_eq!(streamed.last().map(String::as_str), Some(""));
        }
    }

    #[test]
    fn streaming_ids_equals_decoding_all_at_once(ids in prop::collection::vec(0u32..268, 0..24)) {
        let json = byte_level();
        let tokenizer = tokenizer(&json);
        // The crate's own decoder, which sees all ids, is the reference.
        let whole = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        let expected = whole.decode(&ids, true).unwrap();
        prop_assert_eq!(pieces(&tokenizer, Position::Start, &ids).concat(), &*expected);
        prop_assert_eq!(tokenizer.decode(&ids, true), expected);
    }

    #[test]
    fn whole_tokens_decode_like_the_sentencepiece_decoders(
        ids in prop::collection::vec(prop_oneof![0u32..3, 259u32..291], 0..24),
    ) {
        for json in [sentencepiece(), metaspace()] {
            let tokenizer = tokenizer(&json);
            let whole = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
            let expected = whole.decode(&ids, true).unwrap();
            prop_assert_eq!(pieces(&tokenizer, Position::Start, &ids).concat(), expected);
        }
    }
}

#[test]
fn a_stream_stops_at_tokens_and_strings() {
    let tokenizer = tokenizer(&byte_level());
    let id = |token: &str| tokenizer.id(token).unwrap();
    let end = id("<|im_end|>");
    let cases: [(&[&str], &str, Option<Finish>); 5] = [
        (&["the", "Ġthe"], "the the", None),
        (&["the", "<|im_end|>", "the"], "the", Some(Finish::Token(end))),
        (&["t", "ca", "the"], "t", Some(Finish::String)),
        (&["t", "c", "the"], "tcthe", None),
        (&["t", "c", "<|im_end|>"], "tc", Some(Finish::Token(end))),
    ];
    for (tokens, expected, finish) in cases {
        let mut stream = TextStream::new(&tokenizer, Position::Start, &[end], &["cat".into()]);
        let mut text = String::new();
        let mut reason = None;
        for token in tokens {
            reason = stream.push(id(token), &mut text);
            if reason.is_some() {
                break;
            }
        }
        if reason.is_none() {
            stream.finish(&mut text);
        }
        assert_eq!((text.as_str(), reason), (expected, finish), "{tokens:?}");
    }
}

#[test]
fn the_vocabulary_must_fit_the_model() {
    let sized = tokenizer(&byte_level());
    assert_eq!(sized.vocab_size(), 263);
    assert!(sized.is_special(261) && !sized.is_special(260));
    let mut around = sentencepiece();
    around["post_processor"]["special_tokens"]["<s>"]["ids"] = json!([300]);
    #[rustfmt::skip]
    let cases = [
        // tokenizer, vocabulary size of the model, part of the error
        (byte_level(), 512, None),
        (byte_level(), 263, None),
        // Only texts that spell out its two added tokens need them.
        (byte_level(), 261, None),
        (byte_level(), 260, Some("gives the token `ca` the id 260")),
        (sentencepiece(), 291, None),
        (sentencepiece(), 290, Some("gives the token `▁▁` the id 290")),
        (around, 299, Some("the id 300")),
    ];
    for (json, vocab_size, words) in cases {
        let limited = tokenizer(&json).limit(vocab_size);
        let error = limited.err().map(|error| error.to_string());
        assert_eq!(error.is_some(), words.is_some(), "{vocab_size}: {error:?}");
        if let (Some(error), Some(words)) = (error, words) {
            assert!(error.contains(words), "{error}");
            assert!(error.contains(&format!("knows only {vocab_size} tokens")), "{error}");
        }
    }
    let mut limited = tokenizer(&byte_level());
    limited.limit(261).unwrap();
    assert_eq!(limited.encode("the", false).unwrap(), sized.encode("the", false).unwrap());
    let error = limited.encode("the<|im_end|>", false).unwrap_err().to_string();
    let expected = "the text has the token `<|im_end|>`, to which the tokenizer gives the id 261, and the model knows only 261 tokens; leave it out of the text";
    assert_eq!(error, expected);
}

#[test]
fn malformed_files_are_refused_in_a_sentence() {
    let edited = |edit: fn(&mut Value)| {
        let mut json = byte_level();
        edit(&mut json);
        json.to_string().into_bytes()
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "the tokenizer is damaged ("),
        (b"{}".to_vec(), "the tokenizer is damaged ("),
        (b"\xff\xfe".to_vec(), "the tokenizer is damaged ("),
        (b"[".repeat(100_000), "the tokenizer is damaged ("),
        (byte_level().to_string().into_bytes()[..2000].to_vec(), "the tokenizer is damaged ("),
        (edited(|j| j["model"]["merges"] = json!(["x y"])), "the tokenizer is damaged ("),
        (edited(|j| j["model"]["merges"] = json!(["xy"])), "the tokenizer is damaged ("),
        (edited(|j| j["model"]["type"] = json!("Oracle")), "the tokenizer is damaged ("),
        (edited(|j| j["model"]["vocab"] = json!({"a": -1})), "the tokenizer is damaged ("),
        (edited(|j| j["model"]["dropout"] = json!(0.1)), "asks for BPE dropout"),
        (
            edited(
                |j| j["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
            ),
            "the tokenizer has the pattern `(`",
        ),
        (
            edited(|j| {
                j["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true})
            }),
            "turns tokens into text with WordPiece, which is not supported",
        ),
        (vec![b' '; (64 << 20) + 1], "has 67108865 bytes"),
    ];
    for (bytes, expected) in cases {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let error: TokenizerError = Tokenizer::from_bytes(&bytes).expect_err(&start);
        let error = error.to_string();
        assert!(error.contains(expected), "{start}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn prompt_ignores_training_state() {
    let mut json = byte_level();
    json["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    });
    assert_eq!(tokenizer(&json).encode("abc", true).unwrap(), [97, 98, 99]);
}

/// As the encoder of Kimi K3 does.
#[test]
fn tokens_spelled_in_literal_parts_are_text() {
    let names = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"];
    let mut file = byte_level();
    let added = (261..).zip(names).map(|(id, name)| special(id, name));
    file["added_tokens"] = added.collect();
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
    let template = ChatTemplate::of_model_type("kimi_k3").unwrap();
    let options = ChatOptions {
        variables: vec![("thinking".to_owned(), false.into())],
        ..ChatOptions::default()
    };
    let message = Message::new("user", "the <|sep|>");
    let prompt = template.prompt(&[message], &options).unwrap();
    let text = |text: &str| {
        let plain: Vec<char> = text.chars().collect();
        // One after another, so that no added token is spelled.
        let parts = plain.chunks(3).map(String::from_iter);
        parts.flat_map(|part| tokenizer.encode(&part, false).unwrap()).collect::<Vec<u32>>()
    };
    let ids = tokenizer.encode_prompt(&prompt).unwrap();
    let specials: Vec<u32> = ids.iter().copied().filter(|id| *id > 260).collect();
    assert_eq!(specials, [261, 263, 262, 263, 264]);
    let of_content: Vec<u32> = ids.split(|id| *id > 260).nth(2).unwrap().to_vec();
    let [the, space] = [tokenizer.encode("the", false).unwrap(), text(" <|sep|>")];
    assert_eq!(of_content, [the, space].concat());
    assert_eq!(tokenizer.decode(&ids, false), prompt.text());
    // A prompt without literal parts has the tokens that it spells.
    let spelled = tokenizer.encode(prompt.text(), false).unwrap();
    assert_eq!(spelled.iter().filter(|id| **id > 260).count(), 6);
    let whole = prompt.text().to_owned().into();
    assert_eq!(tokenizer.encode_prompt(&whole).unwrap(), spelled);
}
