//! Any bytes as a `tokenizer.json`, and as one step of an otherwise valid one. A text is then
//! encoded and decoded.

use sws_text::Tokenizer;

/// A text with characters that tokenizers treat specially.
const TEXT: &str = " The cat's\n\n12345 caf\u{e9} \u{fdfa}\u{130}   aaaa<s> \u{4f60}\u{597d}!";

/// Steps of a tokenizer, with their usual values.
const STEPS: [(&str, &str); 5] = [
    ("normalizer", "null"),
    ("pre_tokenizer", r#"{"type":"Metaspace","replacement":"_","prepend_scheme":"always"}"#),
    ("post_processor", "null"),
    ("decoder", "null"),
    ("model", r#"{"type":"BPE","vocab":{"a":0,"aa":1,"_":2,"<s>":3},"merges":[["a","a"]]}"#),
];

/// True if the bytes were accepted.
pub(crate) fn check(data: &[u8]) -> bool {
    let whole = passes(data);
    let Ok(step) = std::str::from_utf8(data) else { return whole };
    // All steps are tried, as each accepts other values.
    STEPS.map(|(name, _)| passes(filled(name, step).as_bytes())).contains(&true) || whole
}

/// A tokenizer with one step replaced.
fn filled(name: &str, step: &str) -> String {
    let steps = STEPS
        .map(|(other, usual)| format!("\"{other}\":{},", if other == name { step } else { usual }));
    let added = r#"[{"id":3,"content":"<s>","single_word":false,"lstrip":true,"rstrip":false,"normalized":true,"special":true}]"#;
    format!("{{{}\"version\":\"1.0\",\"added_tokens\":{added}}}", steps.concat())
}

fn passes(json: &[u8]) -> bool {
    let Ok(mut tokenizer) = Tokenizer::from_bytes(json) else { return false };
    tokenizer.bound(256, 4 << 20);
    for special in [false, true] {
        let Ok(ids) = tokenizer.encode(TEXT, special) else { continue };
        assert_eq!(tokenizer.encode(TEXT, special).ok().as_ref(), Some(&ids));
        tokenizer.decode(&ids, special);
    }
    let ids: Vec<u32> = (0..tokenizer.vocab_size().min(64) as u32).collect();
    tokenizer.decode(&ids, false);
    true
}
