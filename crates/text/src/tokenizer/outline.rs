//! The structure of a `tokenizer.json`, checked before the `tokenizers` crate builds anything from
//! it.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::PostProcessorWrapper;

use super::memory::TokenizerMemory;
use super::steps::MAX_PRECOMPILED;

/// Maximum size of a section other than the vocabulary. The largest is a table of characters, with
/// some 400 KB.
const MAX_SECTION: usize = 2 << 20;
/// Maximum number of normalizers, pre-tokenizers and decoders.
const MAX_STEPS: usize = 64;
/// Maximum size of a token; published tokenizers have tokens of a few hundred bytes.
const MAX_TOKEN: usize = 4096;
/// Maximum number of tokens: four times the largest vocabulary.
const MAX_TOKENS: usize = 1 << 20;
/// Maximum total size of the added tokens; some tokenizers have thousands.
const MAX_ADDED: usize = 4 << 20;
/// Maximum total size of tokens with scores, which become a tree with a node for each byte.
const MAX_SCORED: usize = 8 << 20;
/// Maximum number of merge rules; published vocabularies have about two for each token.
const MAX_MERGES: usize = 1 << 20;
const MERGES_PER_TOKEN: usize = 16;
/// Maximum number of pieces, tokens and token bytes that are added around a text.
const MAX_AROUND: usize = 4096;
/// Maximum size of words such as `<unk>` and `##`, which are repeated for every word or letter.
const MAX_AFFIX: usize = 64;

/// The parts of a `tokenizer.json` that determine sizes.
#[derive(Deserialize)]
pub(super) struct TokenizerOutline<'a> {
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) added_tokens: Vec<Added<'a>>,
    #[serde(borrow)]
    model: ModelOutline<'a>,
}

/// A token that is recognised wherever a text contains it.
#[derive(Deserialize)]
pub(super) struct Added<'a> {
    #[serde(borrow)]
    pub(super) content: Cow<'a, str>,
    /// True if it is searched for in the normalized text.
    #[serde(default)]
    pub(super) normalized: bool,
}

#[derive(Deserialize)]
struct ModelOutline<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(default)]
    vocab: VocabularySizes,
    #[serde(default)]
    merges: Option<MergeCount>,
    #[serde(borrow, default)]
    unk_token: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    continuing_subword_prefix: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    end_of_word_suffix: Option<Cow<'a, str>>,
}

impl TokenizerOutline<'_> {
    /// The patterns in the file. On failure, returns the part that is too large or not supported.
    pub(super) fn check(&self) -> Result<Vec<String>, String> {
        let steps = [self.normalizer, self.pre_tokenizer, self.decoder];
        let sections = steps.into_iter().chain([self.post_processor]).flatten();
        if let Some(section) = sections.map(RawValue::get).find(|text| text.len() > MAX_SECTION) {
            return Err(format!("a part of {} bytes besides its vocabulary", section.len()));
        }
        let mut said = FoundSteps::default();
        for section in steps.into_iter().flatten() {
            let value = serde_json::from_str(section.get()).map_err(|e| e.to_string())?;
            said.add(&value)?;
        }
        if let Some(section) = self.post_processor {
            check_around(section.get())?;
        }
        let mut added = 0;
        for token in &self.added_tokens {
            added += token.content.len();
            match token.content.len() {
                0 => return Err("an empty added token".to_owned()),
                1..=MAX_TOKEN if added <= MAX_ADDED => {}
                _ => return Err(format!("added tokens of {added} bytes")),
            }
        }
        self.model.check()?;
        Ok(said.patterns)
    }

    pub(super) fn normalizer(&self) -> Option<&str> {
        self.normalizer.map(RawValue::get)
    }

    /// Memory for building a tokenizer, without the file.
    pub(super) fn memory(&self) -> TokenizerMemory {
        let VocabularySizes { tokens, bytes, .. } = self.model.vocab;
        let merges = self.model.merges.as_ref().map(|merges| merges.0);
        let is_bpe = self.model.kind.as_deref().map_or(merges.is_some(), |kind| kind == "BPE");
        let added = self.added_tokens.iter().map(|token| token.content.len());
        TokenizerMemory::of(is_bpe, [tokens, bytes, merges.unwrap_or(0)], added)
    }

    /// Size of the longest token in bytes.
    pub(super) fn longest(&self) -> usize {
        let added = self.added_tokens.iter().map(|token| token.content.len());
        added.max().unwrap_or(0).max(self.model.vocab.longest)
    }
}

impl ModelOutline<'_> {
    fn check(&self) -> Result<(), String> {
        let VocabularySizes { tokens, bytes, longest, scored } = self.vocab;
        if tokens > MAX_TOKENS {
            return Err(format!("{tokens} tokens"));
        }
        let merges = self.merges.as_ref().map_or(0, |merges| merges.0);
        if merges > MAX_MERGES.min(tokens.saturating_mul(MERGES_PER_TOKEN)) {
            return Err(format!("{merges} merges for {tokens} tokens"));
        }
        if longest > MAX_TOKEN {
            return Err(format!("a token of {longest} bytes"));
        }
        if scored && bytes > MAX_SCORED {
            return Err(format!("tokens of {bytes} bytes"));
        }
        let affixes = [&self.unk_token, &self.continuing_subword_prefix, &self.end_of_word_suffix];
        if let Some(affix) = affixes.into_iter().flatten().find(|affix| affix.len() > MAX_AFFIX) {
            return Err(format!("an unk_token, prefix or suffix of {} bytes", affix.len()));
        }
        // The `tokenizers` crate cuts the prefix length off tokens in bytes, even within a
        // character.
        let prefix = self.continuing_subword_prefix.as_deref().unwrap_or_default();
        let bpe = matches!(self.kind.as_deref(), None | Some("BPE"));
        if bpe && !prefix.is_empty() {
            return Err("BPE with a continuing_subword_prefix".to_owned());
        }
        Ok(())
    }
}

/// Checks the post-processor. It runs once while the file is read, each step on the output of the
/// one before, so its maximum output is computed from the file first. Files that cannot be parsed
/// are left to the `tokenizers` crate to refuse.
fn check_around(section: &str) -> Result<(), String> {
    // Parsed with the crate's own types, which also accept lists in place of objects.
    let Ok(Some(steps)) = serde_json::from_str::<Option<PostProcessorWrapper>>(section) else {
        return Ok(());
    };
    let steps = serde_json::to_value(steps).map_err(|e| e.to_string())?;
    let mut count = 0;
    let mut cost = 1;
    around(&steps, &mut count, &mut cost);
    match (count, cost) {
        (..=MAX_STEPS, ..=MAX_AROUND) => Ok(()),
        (..=MAX_STEPS, _) => Err(format!(
            "a post_processor that puts more than {MAX_AROUND} bytes or tokens around a text"
        )),
        _ => Err(format!("a post_processor of more than {MAX_STEPS} steps")),
    }
}

fn around(step: &Value, count: &mut usize, cost: &mut usize) {
    *count += 1;
    let list = |value: &Value| value.as_array().map_or(0, Vec::len);
    let bytes = |value: &Value| value.as_str().map_or(0, str::len);
    match step["type"].as_str() {
        Some("Sequence") => {
            let steps = step["processors"].as_array();
            steps.into_iter().flatten().for_each(|step| around(step, count, cost));
        }
        Some("TemplateProcessing") => {
            let pieces = ["single", "pair"].iter().filter_map(|&name| step[name].as_array());
            let sum = pieces.flatten().fold(0usize, |sum, piece| {
                let name = piece["SpecialToken"]["id"].as_str().unwrap_or_default();
                let token = &step["special_tokens"][name];
                let words = token["tokens"].as_array().into_iter().flatten().map(bytes);
                let len = list(&token["ids"]).max(list(&token["tokens"])) + words.sum::<usize>();
                sum.saturating_add(1 + len)
            });
            *cost = cost.saturating_mul(sum.max(1));
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            let words = bytes(&step["sep"][0]) + bytes(&step["cls"][0]);
            *cost = cost.saturating_mul(3 + words);
        }
        _ => {}
    }
}

/// The number of steps and the patterns found in a file.
#[derive(Default)]
struct FoundSteps {
    steps: usize,
    patterns: Vec<String>,
}

impl FoundSteps {
    fn add(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Array(all) => all.iter().try_for_each(|one| self.add(one)),
            Value::Object(all) => {
                self.steps += usize::from(all.contains_key("type"));
                if self.steps > MAX_STEPS {
                    return Err(format!("more than {MAX_STEPS} steps"));
                }
                all.iter().try_for_each(|(name, value)| self.add_entry(name, value))
            }
            _ => Ok(()),
        }
    }

    fn add_entry(&mut self, name: &str, value: &Value) -> Result<(), String> {
        match (name, value) {
            ("precompiled_charsmap", Value::String(table)) => {
                match longest_text(table.as_bytes()) {
                    len if len > MAX_PRECOMPILED => {
                        Err(format!("a character that becomes {len} bytes"))
                    }
                    _ => Ok(()),
                }
            }
            (_, Value::String(text)) if text.len() > MAX_TOKEN => {
                Err(format!("a `{}` of {} bytes", name.escape_debug(), text.len()))
            }
            ("Regex", Value::String(pattern)) => {
                self.patterns.push(pattern.clone());
                Ok(())
            }
            (_, value) => self.add(value),
        }
    }
}

/// Number of merge rules.
#[derive(Default)]
struct MergeCount(usize);

impl<'de> Deserialize<'de> for MergeCount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MergeCountVisitor;
        impl<'de> Visitor<'de> for MergeCountVisitor {
            type Value = MergeCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MergeCount, A::Error> {
                let mut merges = MergeCount::default();
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    merges.0 += 1;
                }
                Ok(merges)
            }
        }
        from.deserialize_seq(MergeCountVisitor)
    }
}

/// Number, form and size of the tokens in a vocabulary.
#[derive(Clone, Copy, Default)]
struct VocabularySizes {
    tokens: usize,
    bytes: usize,
    longest: usize,
    /// True for a list with scores, false for a map of ids.
    scored: bool,
}

impl VocabularySizes {
    fn add(&mut self, len: usize) {
        self.tokens += 1;
        self.bytes += len;
        self.longest = self.longest.max(len);
    }
}

impl<'de> Deserialize<'de> for VocabularySizes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TokenSizesVisitor;
        impl<'de> Visitor<'de> for TokenSizesVisitor {
            type Value = VocabularySizes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens with ids or scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabularySizes, A::Error> {
                let mut vocabulary = VocabularySizes::default();
                while let Some((Len(len), _)) = map.next_entry::<Len, IgnoredAny>()? {
                    vocabulary.add(len);
                }
                Ok(vocabulary)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabularySizes, A::Error> {
                let mut vocabulary = VocabularySizes { scored: true, ..VocabularySizes::default() };
                while let Some((Len(len), _)) = seq.next_element::<(Len, IgnoredAny)>()? {
                    vocabulary.add(len);
                }
                Ok(vocabulary)
            }
        }
        from.deserialize_any(TokenSizesVisitor)
    }
}

/// The length of a string, which is not stored.
struct Len(usize);

impl<'de> Deserialize<'de> for Len {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Len;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token")
            }

            fn visit_str<E>(self, text: &str) -> Result<Len, E> {
                Ok(Len(text.len()))
            }
        }
        from.deserialize_str(TextVisitor)
    }
}

/// The longest text in a table of characters. The table is base64 of a length, a trie of that
/// length, and zero-terminated texts. Tables that cannot be parsed are left to the `tokenizers`
/// crate to refuse.
fn longest_text(base64: &[u8]) -> usize {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = base64.iter().copied().map_while(digit).collect();
    let mut bytes: Vec<u8> = Vec::with_capacity(digits.len());
    for four in digits.chunks(4) {
        let bits = four.iter().fold(0u32, |bits, &digit| bits << 6 | u32::from(digit));
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend(&bits.to_be_bytes()[1..four.len()]);
    }
    let Some((trie, rest)) = bytes.split_first_chunk() else { return 0 };
    let texts = rest.get(u32::from_le_bytes(*trie) as usize..).unwrap_or_default();
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}
