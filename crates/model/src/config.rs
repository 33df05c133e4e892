//! The entries of a `config.json`, read one by one so that each error names its entry.

use serde_json::{Map, Value};

/// Upper limit on the number of layers, and on the number of experts in a layer.
pub(crate) const MAX_COUNT: u64 = 65_536;

/// A parsed configuration.
#[derive(Debug)]
pub(crate) struct Config {
    model_type: String,
    outer: Map<String, Value>,
    /// The entries of the language model, in models that also process images or sound.
    text: Option<Map<String, Value>>,
}

/// Reasons why a `config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not JSON, or entries of the wrong type.
    #[error("config.json is damaged ({0}); download it again")]
    Json(String),
    /// A necessary entry is absent.
    #[error("config.json has no `{0}`; take the config.json that was published with the weights")]
    MissingKey(&'static str),
    /// A number beyond that of any known model.
    #[error(
        "config.json gives {value} for `{key}`, and no model has more than {limit}; download it again"
    )]
    TooLarge {
        /// The entry.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A number that makes the computation impossible.
    #[error("config.json gives {value} for `{key}`, {reason}; download it again")]
    Invalid {
        /// The entry.
        key: &'static str,
        /// Its value.
        value: String,
        /// The problem with it.
        reason: String,
    },
    /// An unknown family.
    #[error(
        "config.json names the model type `{model_type}`, which is not supported; supported are {supported}"
    )]
    Unsupported {
        /// The type given.
        model_type: String,
        /// The supported ones.
        supported: String,
    },
    /// A known family with an option that is not implemented.
    #[error(
        "config.json asks for `{key}` = {value} in a model of type `{model_type}`, which is not supported; supported: {supported}"
    )]
    UnsupportedEntry {
        /// The family.
        model_type: String,
        /// The entry.
        key: &'static str,
        /// Its value.
        value: String,
        /// The supported values.
        supported: &'static str,
    },
}

impl Config {
    pub(crate) fn parse(json: &[u8]) -> Result<Config, ConfigError> {
        let damaged = |error: serde_json::Error| ConfigError::Json(error.to_string());
        let mut outer: Map<String, Value> = serde_json::from_slice(json).map_err(damaged)?;
        let text = match outer.remove("text_config") {
            None | Some(Value::Null) => None,
            Some(Value::Object(text)) => Some(text),
            Some(other) => return Err(wrong_type("text_config", &other, "an object")),
        };
        let model_type = match outer.get("model_type") {
            None | Some(Value::Null) => return Err(ConfigError::MissingKey("model_type")),
            Some(Value::String(word)) => word.clone(),
            Some(other) => return Err(wrong_type("model_type", other, "a string")),
        };
        Ok(Config { model_type, outer, text })
    }

    pub(crate) fn model_type(&self) -> &str {
        &self.model_type
    }

    /// The entry as written, null included, for the few entries where null and absence differ.
    pub(crate) fn raw(&self, key: &str) -> Option<&Value> {
        self.text.as_ref().unwrap_or(&self.outer).get(key)
    }

    pub(crate) fn get(&self, key: &'static str) -> Option<Entry<'_>> {
        self.raw(key).filter(|value| !value.is_null()).map(|value| Entry { key, value })
    }

    pub(crate) fn need(&self, key: &'static str) -> Result<Entry<'_>, ConfigError> {
        self.get(key).ok_or(ConfigError::MissingKey(key))
    }

    /// The first of several spellings.
    pub(crate) fn any(&self, keys: &[&'static str]) -> Option<Entry<'_>> {
        keys.iter().find_map(|key| self.get(key))
    }

    pub(crate) fn flag(&self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        self.get(key).map_or(Ok(default), |entry| entry.flag())
    }

    /// A size: at least one, at most `limit`.
    pub(crate) fn size(&self, key: &'static str, limit: u64) -> Result<usize, ConfigError> {
        self.need(key)?.size(limit)
    }

    /// True if the head is the embedding. Models with a `text_config` may say so outside it.
    pub(crate) fn tied(&self) -> Result<bool, ConfigError> {
        let key = "tie_word_embeddings";
        let outer = self.outer.get(key).filter(|value| !value.is_null());
        match outer {
            Some(value) => Entry { key, value }.flag(),
            None => self.flag(key, false),
        }
    }

    pub(crate) fn layers(&self) -> Result<u32, ConfigError> {
        Ok(self.need("num_hidden_layers")?.count(MAX_COUNT)? as u32)
    }

    /// Experts in a layer, in the spelling of any family; None if there is no such entry.
    pub(crate) fn experts(&self) -> Result<Option<u32>, ConfigError> {
        let keys = ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];
        self.any(&keys).map(|entry| Ok(entry.count(MAX_COUNT)? as u32)).transpose()
    }

    pub(crate) fn unsupported(&self, entry: Entry<'_>, supported: &'static str) -> ConfigError {
        ConfigError::UnsupportedEntry {
            model_type: self.model_type.escape_debug().take(100).collect(),
            key: entry.key,
            value: shown(entry.value),
            supported,
        }
    }
}

/// One entry that is not null.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) key: &'static str,
    pub(crate) value: &'a Value,
}

impl<'a> Entry<'a> {
    pub(crate) fn flag(self) -> Result<bool, ConfigError> {
        self.value.as_bool().ok_or_else(|| wrong_type(self.key, self.value, "true or false"))
    }

    pub(crate) fn word(self) -> Result<&'a str, ConfigError> {
        self.value.as_str().ok_or_else(|| wrong_type(self.key, self.value, "a string"))
    }

    pub(crate) fn list(self) -> Result<&'a [Value], ConfigError> {
        let list = self.value.as_array().ok_or_else(|| wrong_type(self.key, self.value, "a list"));
        Ok(list?.as_slice())
    }

    pub(crate) fn object(self) -> Result<&'a Map<String, Value>, ConfigError> {
        self.value.as_object().ok_or_else(|| wrong_type(self.key, self.value, "an object"))
    }

    pub(crate) fn count(self, limit: u64) -> Result<u64, ConfigError> {
        let whole = || wrong_type(self.key, self.value, "a whole number of at least 0");
        let value = self.value.as_u64().ok_or_else(whole)?;
        if value > limit {
            return Err(ConfigError::TooLarge { key: self.key, value, limit });
        }
        Ok(value)
    }

    pub(crate) fn size(self, limit: u64) -> Result<usize, ConfigError> {
        match self.count(limit)? {
            0 => Err(self.invalid("which must be at least 1")),
            size => Ok(size as usize),
        }
    }

    /// A number above zero that an f32 can hold.
    pub(crate) fn positive(self) -> Result<f64, ConfigError> {
        let number = || wrong_type(self.key, self.value, "a number");
        let value = self.value.as_f64().ok_or_else(number)?;
        if value as f32 > 0.0 && (value as f32).is_finite() {
            Ok(value)
        } else {
            Err(self.invalid("which must be a number above 0 that 32 bits can hold"))
        }
    }

    pub(crate) fn invalid(self, reason: impl Into<String>) -> ConfigError {
        let reason = reason.into();
        ConfigError::Invalid { key: self.key, value: shown(self.value), reason }
    }
}

fn wrong_type(key: &str, value: &Value, expected: &str) -> ConfigError {
    ConfigError::Json(format!("`{key}` is {} instead of {expected}", shown(value)))
}

/// A value on one line, truncated if it is long.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(list) if list.len() > 8 => "a list".to_owned(),
        value => value.to_string().chars().take(80).collect(),
    }
}
