//! Tokens are those of the `tokenizers` crate, for any vocabulary, merges and words.

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

use super::*;

/// Letters of vocabularies and words. The last two are in no vocabulary.
const LETTERS: [&str; 6] = ["a", "b", "é", "▁", "z", "🙂"];

/// The `model` of a file.
#[derive(Debug)]
struct File {
    /// Merges of letters and of earlier merges, by position.
    merges: Vec<(usize, usize)>,
    /// Number of letters in the vocabulary.
    letters: usize,
    /// Byte tokens: of none, of some, or of all bytes.
    bytes: Option<bool>,
    unknown: Option<bool>,
    suffix: bool,
    whole_words: bool,
    listed: bool,
}

impl File {
    fn json(&self) -> Value {
        let mut tokens: Vec<String> =
            LETTERS[..self.letters].iter().map(|&letter| letter.to_owned()).collect();
        if self.suffix {
            let ended: Vec<String> = tokens.iter().map(|token| format!("{token}$")).collect();
            tokens.extend(ended);
        }
        let mut merges = Vec::new();
        for &(left, right) in &self.merges {
            let pair = [left, right].map(|part| tokens[part % tokens.len()].clone());
            tokens.push(pair.concat());
            merges.push(match self.listed {
                true => json!(pair),
                false => json!(pair.join(" ")),
            });
        }
        if let Some(all) = self.bytes {
            let bytes = if all { 0..=255u8 } else { 0..=0xb0 };
            tokens.extend(bytes.map(|byte| format!("<0x{byte:02X}>")));
        }
        tokens.push("<unk>".to_owned());
        // Ids in another order than the tokens; equal tokens have one id.
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().rev().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        json!({
            "type": "BPE", "dropout": null, "vocab": vocab, "merges": merges,
            "unk_token": self.unknown.map(|_| "<unk>"), "fuse_unk": self.unknown == Some(true),
            "byte_fallback": self.bytes.is_some(), "ignore_merges": self.whole_words,
            "end_of_word_suffix": self.suffix.then_some("$"),
        })
    }
}

fn files() -> impl Strategy<Value = File> {
    let merges = prop::collection::vec((0..40usize, 0..40usize), 0..30);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let made = (merges, 1..5usize, any::<Option<bool>>(), any::<Option<bool>>(), flags);
    made.prop_map(|(merges, letters, bytes, unknown, (suffix, whole_words, listed))| File {
        merges,
        letters,
        bytes,
        unknown,
        suffix,
        whole_words,
        listed,
    })
}

fn words() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&LETTERS[..]), 0..24).prop_map(|all| all.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn tokens_equal_those_of_the_tokenizers_crate(file in files(), words in prop::collection::vec(words(), 1..8)) {
        let json = file.json().to_string();
        let ours = Bpe::from_json(&json).unwrap();
        let theirs: BPE = serde_json::from_str(&json).unwrap();
        for word in &words {
            let expected = theirs.tokenize(word).unwrap();
            let found = ours.tokens(word).unwrap();
            prop_assert_eq!(&found, &expected, "{}", word);
            let mut ids = Vec::new();
            ours.ids(word, &mut ids).unwrap();
            prop_assert_eq!(ids, expected.iter().map(|token| token.id).collect::<Vec<_>>());
        }
        for (token, id) in theirs.get_vocab() {
            prop_assert_eq!(ours.vocabulary().id(&token), Some(id));
            prop_assert_eq!(ours.vocabulary().text(id), Some(&*token));
        }
        prop_assert_eq!(ours.vocabulary().len(), theirs.get_vocab_size());
    }
}

#[test]
fn what_is_no_model_is_refused() {
    let check = |change: &str, value: Value, expected: &str| {
        let file = File {
            merges: vec![(0, 1)],
            letters: 3,
            bytes: None,
            unknown: None,
            suffix: false,
            whole_words: false,
            listed: false,
        };
        let mut json = file.json();
        json[change] = value;
        let error = Bpe::from_json(&json.to_string()).unwrap_err().to_string();
        assert!(error.contains(expected), "{change}: {error}");
    };
    check("merges", json!(["a"]), "the merge `a` is not two tokens");
    check("merges", json!(["a b c"]), "is not two tokens");
    check("merges", json!([["a", "b", "a"]]), "a merge is not two tokens");
    check("merges", json!([["a"]]), "a merge is not two tokens");
    check("merges", json!(["a é"]), "the merge aé is not in the vocabulary");
    check("merges", json!({}), "expected a list of merges");
    check("merges", json!([7]), "expected a merge");
    check("vocab", json!([["a", 0.5]]), "expected tokens with ids");
    check("vocab", json!({"a": -1}), "expected u32");
    check("vocab", json!({"a": 1u64 << 32}), "expected u32");
}

#[test]
fn an_unknown_token_without_id_is_an_error_of_the_text() {
    let json = json!({"vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"}).to_string();
    let bpe = Bpe::from_json(&json).unwrap();
    assert_eq!(bpe.tokens("aa").unwrap().len(), 2);
    assert!(bpe.tokens("ab").unwrap_err().to_string().contains("lacks its unk_token <unk>"));
}
