//! The tokenizer and chat template of a GGUF file.
//!
//! llama.cpp has one word for all steps before BPE. Each word corresponds to the steps of a
//! published `tokenizer.json`. The known words are in `pre.rs`.

mod pre;
mod tokens;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use sws_format::{Gguf, GgufError, GgufList, Value};

use super::tokenizer::{Tokenizer, TokenizerError, TokenizerMemory};
use tokens::HeaderTokens;

type HeaderKeys = BTreeMap<String, Value>;
type HeaderLists<'a> = BTreeMap<String, GgufList<'a>>;

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
    /// A merge of tokens that do not exist.
    #[error("its GGUF file is damaged: the merge `{0}` is not of its tokens; download it again")]
    Merge(String),
    /// An unknown kind of tokenizer.
    #[error("its GGUF file asks for `{key}` = `{value}`, which is not supported; {remedy}")]
    Unsupported {
        key: &'static str,
        value: String,
        /// Remedy, for the error message.
        remedy: &'static str,
    },
    /// The tokenizer is larger than any, or its parts contradict each other.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const TEMPLATE: &str = "tokenizer.chat_template";

const REMEDY: &str = "put the tokenizer.json that was published with the model beside its shards";

/// Builds the tokenizer in a header, after calling `fits` with the memory that it takes in addition
/// to the header. Fails with the error that `fits` returns. `None` without a tokenizer.
pub fn tokenizer<E: From<GgufTextError>>(
    header: &[u8],
    fits: impl FnOnce(TokenizerMemory) -> Result<(), E>,
) -> Result<Option<Tokenizer>, E> {
    let keys = keys(header, |key| [MODEL, PRE_KEY].contains(&key))?;
    let Some(model) = keys.get(MODEL) else { return Ok(None) };
    let lists = Gguf::lists(header, |key| [TOKENS, TYPES, MERGES, SCORES].contains(&key));
    let lists = lists.map_err(GgufTextError::from)?;
    let model = model.as_str().ok_or(GgufTextError::Wrong(MODEL))?;
    if !["gpt2", "llama", "gemma4"].contains(&model) {
        return Err(unsupported(MODEL, model).into());
    }
    let tokens = HeaderTokens::new(model, &keys, &lists)?;
    fits(tokens.sizes.memory())?;
    let parts = match model {
        "gpt2" => tokens.byte_level(&keys)?,
        _ => tokens.on_text(&keys)?,
    };
    Ok(Some(Tokenizer::of(parts).map_err(GgufTextError::from)?))
}

/// Converts the chat templates in a header, with the special tokens that they may use, to the bytes
/// of a `tokenizer_config.json`.
pub fn tokenizer_config_json(header: &[u8]) -> Result<Vec<u8>, GgufTextError> {
    let keys = keys(header, |key| key.starts_with(TEMPLATE))?;
    let mut config = serde_json::Map::new();
    let prefix = format!("{TEMPLATE}.");
    if let Some(template) = keys.get(TEMPLATE) {
        let template = template.as_str().ok_or(GgufTextError::Wrong(TEMPLATE))?;
        let mut named = vec![json!({ "name": "default", "template": template })];
        for (key, template) in &keys {
            if let Some(name) = key.strip_prefix(&prefix)
                && let Some(template) = template.as_str()
            {
                named.push(json!({ "name": name, "template": template }));
            }
        }
        config.insert("chat_template".to_owned(), Json::Array(named));
    }
    let lists = Gguf::lists(header, |key| key == TOKENS)?;
    let tokens = lists.get(TOKENS).and_then(GgufList::texts);
    let tokens: Vec<&str> = tokens.map_or(Ok(Vec::new()), Iterator::collect)?;
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        let id = keys.get(&format!("tokenizer.ggml.{key}_token_id")).and_then(Value::as_u64);
        let token = id.and_then(|id| tokens.get(usize::try_from(id).ok()?));
        if let Some(token) = token {
            config.insert(format!("{name}_token"), Json::from(*token));
        }
    }
    Ok(Json::Object(config).to_string().into_bytes())
}

fn keys(header: &[u8], wanted: impl Fn(&str) -> bool) -> Result<HeaderKeys, GgufTextError> {
    Ok(Gguf::read_keys(header, header.len() as u64, wanted)?)
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
