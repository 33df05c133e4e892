//! Tokens are those of the `tokenizers` crate, for any vocabulary, merges and words.

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

use super::*;
use crate::tokenizer::outline::ModelOutline;

fn bpe(json: &str) -> serde_json::Result<Bpe> {
    let outline: ModelOutline<'_> = serde_json::from_str(json)?;
    Bpe::of_outline(&outline, &outline.sizes()?)
}

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
        let ours = bpe(&json).unwrap();
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

/// A vocabulary of some of the texts of one to four letters, with scores of which several are equal.
fn scored() -> impl Strategy<Value = Vec<(String, f64, bool)>> {
    let text = prop::collection::vec(prop::sample::select(&LETTERS[..4]), 1..5);
    let token = (text.prop_map(|all| all.concat()), -4..4i8, prop::bool::weighted(0.9));
    prop::collection::vec(token, 1..60).prop_map(|tokens| {
        let mut known = std::collections::HashSet::new();
        let tokens = tokens.into_iter().filter(|(text, ..)| known.insert(text.clone()));
        tokens.map(|(text, score, is_made)| (text, f64::from(score), is_made)).collect()
    })
}

/// The same vocabulary with a list of its merges, best first: all splits of a token into two.
fn listed(tokens: &[(String, f64, bool)]) -> BPE {
    let id = |text: &str| tokens.iter().position(|(other, ..)| other == text);
    let mut merges = Vec::new();
    for (at, (text, score, is_made)) in tokens.iter().enumerate() {
        for (split, _) in text.char_indices().skip(1).filter(|_| *is_made) {
            let (left, right) = text.split_at(split);
            if let (Some(a), Some(b)) = (id(left), id(right)) {
                merges.push(((-score, at, a, b), (left.to_owned(), right.to_owned())));
            }
        }
    }
    merges.sort_by(|(one, _), (other, _)| one.partial_cmp(other).unwrap());
    let vocab: tokenizers::models::bpe::Vocab =
        tokens.iter().zip(0..).map(|((text, ..), id)| (text.clone(), id)).collect();
    BPE::new(vocab, merges.into_iter().map(|(_, merge)| merge).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn merges_by_score_equal_a_list_of_them(tokens in scored(), words in prop::collection::vec(words(), 1..8)) {
        let mut entries = crate::tokenizer::vocabulary::Entries::default();
        for ((text, ..), id) in tokens.iter().zip(0..) {
            entries.push(text, id).unwrap();
        }
        let scores: Vec<f64> = tokens.iter().map(|(_, score, _)| *score).collect();
        let merges = MergeScores::new(&scores, |id| tokens[id as usize].2);
        let ours = Bpe::new(Vocabulary::new(entries), Merges::Scored(merges), BpeOptions::default());
        let theirs = listed(&tokens);
        for word in &words {
            prop_assert_eq!(&ours.tokens(word).unwrap(), &theirs.tokenize(word).unwrap(), "{}", word);
        }
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
        let error = bpe(&json.to_string()).unwrap_err().to_string();
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
    let bpe = bpe(&json).unwrap();
    assert_eq!(bpe.tokens("aa").unwrap().len(), 2);
    assert!(bpe.tokens("ab").unwrap_err().to_string().contains("lacks its unk_token <unk>"));
}
