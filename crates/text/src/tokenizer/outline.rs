//! The structure of a `tokenizer.json`, checked before the `tokenizers` crate builds anything from
//! it.

mod model;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::{AddedToken, PostProcessorWrapper};

use super::memory::{MAX_TOKEN, TokenizerSizes};
use super::steps::MAX_PRECOMPILED;
pub(super) use model::ModelOutline;

/// Maximum size of a section other than the vocabulary. The largest is a table of characters, with
/// some 400 KB.
const MAX_SECTION: usize = 2 << 20;
/// Maximum number of normalizers, pre-tokenizers and decoders.
const MAX_STEPS: usize = 64;
/// Maximum number of pieces, tokens and token bytes that are added around a text.
const MAX_AROUND: usize = 4096;
/// The parts of a `tokenizer.json`, with the steps and the lists of its model not parsed yet.
#[derive(Deserialize)]
pub(super) struct TokenizerOutline<'a> {
    #[serde(borrow, default)]
    pub(super) version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) decoder: Option<&'a RawValue>,
    /// Tokens that are recognised wherever a text contains them.
    #[serde(borrow, default)]
    added_tokens: Vec<Added<'a>>,
    #[serde(borrow)]
    pub(super) model: ModelOutline<'a>,
}

#[derive(Deserialize)]
struct Added<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
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
        if self.added_tokens.iter().any(|token| token.content.is_empty()) {
            return Err("an empty added token".to_owned());
        }
        self.model.check()?;
        Ok(said.patterns)
    }

    /// Numbers and sizes of the parts.
    pub(super) fn sizes(&self) -> serde_json::Result<TokenizerSizes> {
        let mut sizes = self.model.sizes()?;
        for token in &self.added_tokens {
            sizes.add_added(token.content.len());
        }
        Ok(sizes)
    }

    /// The added tokens.
    pub(super) fn added(&self) -> Vec<AddedToken> {
        let added = self.added_tokens.iter().map(|token| AddedToken {
            content: token.content.clone().into_owned(),
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized,
            special: token.special,
        });
        added.collect()
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
    match step["type"].as_str() {
        Some("Sequence") => {
            let steps = step["processors"].as_array();
            for step in steps.into_iter().flatten() {
                around(step, count, cost);
            }
        }
        Some("TemplateProcessing") => {
            let pieces = ["single", "pair"].iter().filter_map(|&name| step[name].as_array());
            let mut sum = 0usize;
            for piece in pieces.flatten() {
                let name = piece["SpecialToken"]["id"].as_str().unwrap_or_default();
                let token = &step["special_tokens"][name];
                let words = token["tokens"].as_array().into_iter().flatten().map(text_len);
                let count = list_len(&token["ids"]).max(list_len(&token["tokens"]));
                sum = sum.saturating_add(1 + count + words.sum::<usize>());
            }
            *cost = cost.saturating_mul(sum.max(1));
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            let words = text_len(&step["sep"][0]) + text_len(&step["cls"][0]);
            *cost = cost.saturating_mul(3 + words);
        }
        _ => {}
    }
}

fn list_len(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

fn text_len(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
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
            Value::Array(all) => {
                for one in all {
                    self.add(one)?;
                }
                Ok(())
            }
            Value::Object(all) => {
                self.steps += usize::from(all.contains_key("type"));
                if self.steps > MAX_STEPS {
                    return Err(format!("more than {MAX_STEPS} steps"));
                }
                for (name, value) in all {
                    self.add_entry(name, value)?;
                }
                Ok(())
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

/// The longest text in a table of characters. The table is base64 of a length, a trie of that
/// length, and zero-terminated texts. Tables that cannot be parsed are left to the `tokenizers`
/// crate to refuse.
fn longest_text(base64: &[u8]) -> usize {
    let digits: Vec<u8> = base64.iter().copied().map_while(base64_digit).collect();
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

fn base64_digit(c: u8) -> Option<u8> {
    match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
