//! The tokenizer and chat template of a GGUF file, converted to the files of a checkpoint.
//!
//! llama.cpp has one word for all steps before BPE. Each word corresponds to the steps of a
//! published `tokenizer.json`. The known words are in `pre.rs`.

mod file;
mod merges;
mod pre;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use sws_format::{Gguf, GgufError, Value};

use super::TokenizerMemory;
use super::tokenizer::vocabulary::{Entries, Vocabulary};
use file::{BpeModel, MergeList, TokenizerFile};
use pre::PRE;

type HeaderKeys = BTreeMap<String, Value>;

/// Reason why the header of a GGUF file yields no tokenizer or template, as the rest of a sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GgufTextError {
    /// The header is damaged.
    #[error("the header of its GGUF file {0}")]
    Header(#[from] GgufError),
    /// A key is absent.
    #[error("its GGUF file has no `{0}`; take a newer file of this model")]
    Missing(&'static str),
    /// A key has a value of another type, or lists of different lengths.
    #[error("its GGUF file is damaged: `{0}` is not what it should be; download it again")]
    Wrong(&'static str),
    /// A token is listed twice.
    #[error("its GGUF file is damaged: it has the token `{0}` twice; download it again")]
    Twice(String),
    /// A list is longer than a tokenizer may have.
    #[error("its GGUF file has more {0} than any tokenizer; download it again")]
    TooMany(&'static str),
    /// An unknown kind of tokenizer.
    #[error("its GGUF file asks for `{key}` = `{value}`, which is not supported; {remedy}")]
    Unsupported {
        key: &'static str,
        value: String,
        /// Remedy, for the error message.
        remedy: &'static str,
    },
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const TEMPLATE: &str = "tokenizer.chat_template";

const REMEDY: &str = "put the tokenizer.json that was published with the model beside its shards";

/// Largest number of tokens.
const MAX_TOKENS: usize = 1 << 20;

/// Types of tokens.
const NORMAL: i128 = 1;
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

/// Converts the tokenizer in a header to the bytes of a `tokenizer.json`. `None` without a
/// tokenizer.
pub fn tokenizer_json(header: &[u8]) -> Result<Option<Vec<u8>>, GgufTextError> {
    let mut keys =
        keys(header, |key| [MODEL, PRE_KEY, TOKENS, TYPES, MERGES, SCORES].contains(&key))?;
    let Some(model) = keys.remove(MODEL) else { return Ok(None) };
    let tokens = HeaderTokens::take(&mut keys)?;
    let json = match model.as_str().ok_or(GgufTextError::Wrong(MODEL))? {
        "gpt2" => tokens.byte_level(&keys)?,
        "llama" => tokens.sentencepiece(&mut keys)?,
        "gemma4" => tokens.on_text(&keys, MergeList::Texts(texts(&keys, MERGES)?), false)?,
        other => return Err(unsupported(MODEL, other)),
    };
    Ok(Some(json))
}

/// Memory for reading the tokenizer of a header, in addition to the header: its lists, and then the
/// tokenizer. `None` without a tokenizer.
pub fn tokenizer_memory(header: &[u8]) -> Result<Option<TokenizerMemory>, GgufTextError> {
    let keys = keys(header, |_| false)?;
    let count = |key: &str| {
        let length = keys.get(key).and_then(Value::as_map)?.get("length")?;
        length.as_u64()
    };
    let Some(tokens) = count(TOKENS) else { return Ok(None) };
    // Vocabularies with scores have about two merges per token.
    let merges = count(MERGES).unwrap_or(2 * tokens);
    let bytes = header.len() as u64;
    let held = bytes + 24 * tokens + 24 * merges;
    Ok(Some(TokenizerMemory { held, peak: held + 2 * bytes + 136 * tokens + 24 * merges }))
}

/// Converts the chat templates in a header, with the special tokens that they may use, to the bytes
/// of a `tokenizer_config.json`.
pub fn tokenizer_config_json(header: &[u8]) -> Result<Vec<u8>, GgufTextError> {
    let keys = keys(header, |key| key == TOKENS || key.starts_with(TEMPLATE))?;
    let mut config = serde_json::Map::new();
    let prefix = format!("{TEMPLATE}.");
    if let Some(template) = keys.get(TEMPLATE) {
        let template = template.as_str().ok_or(GgufTextError::Wrong(TEMPLATE))?;
        let mut named = vec![json!({ "name": "default", "template": template })];
        for (key, template) in &keys {
            if let (Some(name), Some(template)) = (key.strip_prefix(&prefix), template.as_str()) {
                named.push(json!({ "name": name, "template": template }));
            }
        }
        config.insert("chat_template".to_owned(), Json::Array(named));
    }
    let tokens = keys.get(TOKENS).and_then(Value::as_list).unwrap_or_default();
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        let id = keys.get(&format!("tokenizer.ggml.{key}_token_id")).and_then(Value::as_u64);
        let token = id.and_then(|id| tokens.get(usize::try_from(id).ok()?)?.as_str());
        if let Some(token) = token {
            config.insert(format!("{name}_token"), Json::from(token));
        }
    }
    Ok(Json::Object(config).to_string().into_bytes())
}

fn keys(header: &[u8], wanted: impl Fn(&str) -> bool) -> Result<HeaderKeys, GgufTextError> {
    Ok(Gguf::read_keys(header, header.len() as u64, wanted)?)
}

/// The tokens of a header.
struct HeaderTokens {
    /// Tokens, with their index in the header as id.
    vocabulary: Vocabulary,
    types: Vec<i128>,
}

impl HeaderTokens {
    /// Moves the tokens out of the keys, because lists in keys take several times as much memory.
    fn take(keys: &mut HeaderKeys) -> Result<HeaderTokens, GgufTextError> {
        let texts = texts(keys, TOKENS)?;
        if texts.len() > MAX_TOKENS {
            return Err(GgufTextError::TooMany("tokens"));
        }
        let mut entries = Entries::default();
        for (id, token) in (0..).zip(&texts) {
            entries.push(token, id).ok_or(GgufTextError::TooMany("bytes of tokens"))?;
        }
        let vocabulary = Vocabulary::new(entries);
        if let Some(token) = first_of_two(&texts, &vocabulary) {
            let token: String = token.escape_debug().take(40).collect();
            return Err(GgufTextError::Twice(token));
        }
        keys.remove(TOKENS);
        let types = match keys.remove(TYPES) {
            None => vec![NORMAL; vocabulary.len()],
            Some(types) => {
                let whole = |value: &Value| match value {
                    Value::Int(kind) => Some(*kind),
                    _ => None,
                };
                let types = types.as_list().and_then(|all| all.iter().map(whole).collect());
                types.ok_or(GgufTextError::Wrong(TYPES))?
            }
        };
        match types.len() == vocabulary.len() {
            true => Ok(HeaderTokens { vocabulary, types }),
            false => Err(GgufTextError::Wrong(TYPES)),
        }
    }

    /// Byte-level BPE, as in GPT-2.
    fn byte_level(&self, keys: &HeaderKeys) -> Result<Vec<u8>, GgufTextError> {
        let name = keys.get(PRE_KEY).ok_or(GgufTextError::Missing(PRE_KEY))?;
        let name = name.as_str().ok_or(GgufTextError::Wrong(PRE_KEY))?;
        let pre = PRE.iter().find(|pre| pre.names.contains(&name));
        let pre = pre.ok_or_else(|| unsupported(PRE_KEY, name))?;
        let bytes = |use_regex: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": use_regex,
            })
        };
        let split = |pattern: &&str| {
            json!({
                "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                "invert": false,
            })
        };
        let steps = match pre.patterns {
            [] => bytes(true),
            patterns => {
                let steps: Vec<Json> = patterns.iter().map(split).chain([bytes(false)]).collect();
                json!({ "type": "Sequence", "pretokenizers": steps })
            }
        };
        let normalizer = if pre.normalized { json!({ "type": "NFC" }) } else { Json::Null };
        let mut model = BpeModel::new(self, MergeList::Texts(texts(keys, MERGES)?));
        model.ignore_merges = pre.whole_words;
        let around = self.around(keys, pre.begins)?;
        self.file([normalizer, steps, around, bytes(true)], model)
    }

    /// SentencePiece BPE, with the merges that the converters of transformers derive.
    fn sentencepiece(&self, keys: &mut HeaderKeys) -> Result<Vec<u8>, GgufTextError> {
        let scores = keys.remove(SCORES).ok_or(GgufTextError::Missing(SCORES))?;
        let scores = scores.as_list().and_then(|all| all.iter().map(Value::as_f64).collect());
        let scores: Vec<f64> = scores.ok_or(GgufTextError::Wrong(SCORES))?;
        if scores.len() != self.vocabulary.len() {
            return Err(GgufTextError::Wrong(SCORES));
        }
        let merges = MergeList::Ids(&self.vocabulary, merges::of(self, &scores)?);
        self.on_text(keys, merges, true)
    }

    /// BPE on characters, with spaces replaced. Unknown characters become bytes.
    fn on_text(
        &self,
        keys: &HeaderKeys,
        merges: MergeList<'_>,
        prefix: bool,
    ) -> Result<Vec<u8>, GgufTextError> {
        let space = flag(keys, "tokenizer.ggml.add_space_prefix")?.unwrap_or(prefix);
        let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        let mut normalizers = vec![replace(" ", "▁")];
        let mut decoders =
            vec![replace("▁", " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
        if space {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let normalizer = json!({ "type": "Sequence", "normalizers": normalizers });
        let decoder = json!({ "type": "Sequence", "decoders": decoders });
        let mut model = BpeModel::new(self, merges);
        let unknown = keys.get("tokenizer.ggml.unknown_token_id").and_then(Value::as_u64);
        model.unk_token = unknown.and_then(|id| self.text(id));
        (model.fuse_unk, model.byte_fallback) = (true, true);
        let around = self.around(keys, true)?;
        self.file([normalizer, Json::Null, around, decoder], model)
    }

    /// A `tokenizer.json` with these steps before and after the model.
    fn file(
        &self,
        [normalizer, pre_tokenizer, post_processor, decoder]: [Json; 4],
        model: BpeModel<'_>,
    ) -> Result<Vec<u8>, GgufTextError> {
        let added_tokens = self.added();
        file::write(&TokenizerFile {
            version: "1.0",
            added_tokens,
            normalizer,
            pre_tokenizer,
            post_processor,
            decoder,
            model,
        })
    }

    /// Tokens that are recognised wherever a text spells them out.
    fn added(&self) -> Json {
        let added = self.vocabulary.iter().zip(&self.types).filter_map(|((text, id), kind)| {
            let found = matches!(*kind, UNKNOWN | CONTROL | USER_DEFINED) && !text.is_empty();
            found.then(|| {
                json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": *kind != USER_DEFINED,
                })
            })
        });
        added.collect()
    }

    /// The tokens before and after every text.
    fn around(&self, keys: &HeaderKeys, begins: bool) -> Result<Json, GgufTextError> {
        let mut single = vec![json!({ "Sequence": { "id": "A", "type_id": 0 } })];
        let mut special = serde_json::Map::new();
        for (end, default) in [("bos", begins), ("eos", false)] {
            let key = if end == "bos" { "add_bos_token" } else { "add_eos_token" };
            let said = flag(keys, &format!("tokenizer.ggml.{key}"))?;
            if !said.unwrap_or(default) {
                continue;
            }
            let key = match end {
                "bos" => "tokenizer.ggml.bos_token_id",
                _ => "tokenizer.ggml.eos_token_id",
            };
            let id = match keys.get(key) {
                Some(id) => id,
                None if said.is_none() => continue,
                None => return Err(GgufTextError::Missing(key)),
            };
            let id = id.as_u64().and_then(|id| Some((id, self.text(id)?)));
            let (id, token) = id.ok_or(GgufTextError::Wrong(key))?;
            let at = if end == "bos" { 0 } else { single.len() };
            single.insert(at, json!({ "SpecialToken": { "id": token, "type_id": 0 } }));
            special
                .insert(token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
        }
        if special.is_empty() {
            return Ok(Json::Null);
        }
        // Pairs of texts are never encoded, but the file must define their form.
        let pair = [single.clone(), vec![json!({ "Sequence": { "id": "B", "type_id": 1 } })]];
        Ok(json!({
            "type": "TemplateProcessing", "single": single, "pair": pair.concat(),
            "special_tokens": special,
        }))
    }

    fn text(&self, id: u64) -> Option<&str> {
        self.vocabulary.text(u32::try_from(id).ok()?)
    }
}

/// A token that is listed twice.
fn first_of_two<'a>(texts: &[&'a str], vocabulary: &Vocabulary) -> Option<&'a str> {
    (0..).zip(texts).find(|&(id, text)| vocabulary.id(text) != Some(id)).map(|(_, text)| *text)
}

/// A list of texts.
fn texts<'a>(keys: &'a HeaderKeys, key: &'static str) -> Result<Vec<&'a str>, GgufTextError> {
    let list = keys.get(key).ok_or(GgufTextError::Missing(key))?.as_list();
    let texts = list.and_then(|all| all.iter().map(Value::as_str).collect());
    texts.ok_or(GgufTextError::Wrong(key))
}

fn flag(keys: &HeaderKeys, key: &str) -> Result<Option<bool>, GgufTextError> {
    match keys.get(key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(GgufTextError::Wrong("tokenizer.ggml.add_…")),
    }
}

fn unsupported(key: &'static str, value: &str) -> GgufTextError {
    let value = value.escape_debug().take(40).collect();
    GgufTextError::Unsupported { key, value, remedy: REMEDY }
}
