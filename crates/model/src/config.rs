//! The entries of a configuration, read one by one so that each error names its entry.

use std::collections::BTreeMap;

use sws_format::{DamagedConfiguration, Value};

use crate::families::lacking;
use crate::{spellings, wrappers};

pub(crate) type ConfigMap = BTreeMap<String, Value>;

/// Upper limit on the number of experts in a layer, and on other counts.
pub(crate) const MAX_COUNT: u64 = 65_536;

/// Upper limit on the number of layers. Every layer is searched for weights before a missing one is
/// reported.
pub(crate) const MAX_LAYERS: u64 = 4096;

/// Entry of a configuration translated from a GGUF file: true if pairs that a rotary embedding turns are adjacent
/// rows of the matrices of queries and keys.
pub(crate) const PAIRED: &str = "gguf.paired_rows";

/// Entry of a configuration translated from a GGUF file: the numbers by which the angles of a rotary embedding are
/// divided, pair by pair.
pub(crate) const ROPE_DIVISORS: &str = "gguf.rope_divisors";

/// Entry of a configuration translated from a GGUF file: true if keys and values of latent attention have a matrix
/// each.
pub(crate) const SPLIT_LATENTS: &str = "gguf.split_latents";

/// Entry of a configuration translated from a GGUF file: the numbers that determine the rows of n-grams.
pub(crate) const NGRAM_NUMBERS: &str = "gguf.ngram_numbers";

/// A configuration, as families read it.
#[derive(Debug)]
pub(crate) struct FamilyConfig<'a> {
    model_type: &'a str,
    /// Model type of the wrapper around the language model, if there is one.
    wrapper: Option<&'static str>,
    outer: &'a ConfigMap,
    /// The entries of the language model, in models that also process images or sound.
    text: Option<&'a ConfigMap>,
    /// True for a configuration translated from a GGUF file, whose tensors have other names.
    gguf: bool,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{origin} {reason}")]
pub struct InvalidConfig {
    /// Name of the configuration's file.
    pub origin: String,
    /// The problem, which follows the file's name in a sentence.
    pub reason: ConfigError,
}

/// Reasons why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConfigError {
    /// Unreadable, or an entry of the wrong type.
    #[error("is damaged ({0}); download it again")]
    Damaged(String),
    /// A necessary entry is absent.
    #[error("has no `{0}`; take the one that was published with the weights")]
    MissingKey(&'static str),
    /// A number larger than in any known model.
    #[error("gives {value} for `{key}`, and no model has more than {limit}; download it again")]
    TooLarge { key: &'static str, value: u64, limit: u64 },
    /// A number that makes the computation impossible.
    #[error("gives {value} for `{key}`, {reason}; download it again")]
    Invalid {
        key: &'static str,
        value: String,
        /// The problem with the number.
        reason: String,
    },
    /// An unknown family.
    #[error(
        "names the model type `{model_type}`, which is not supported{}; docs/supported.md names those that are",
        lacking(model_type)
    )]
    Unsupported { model_type: String },
    /// A GGUF file of an unknown architecture.
    #[error(
        "is of the architecture `{name}`, which is not supported; the nearest that is, `{nearest}`, {difference}; docs/supported.md names all"
    )]
    UnknownArchitecture {
        name: String,
        nearest: &'static str,
        /// The difference of the nearest one, which follows its name in a sentence.
        difference: String,
    },
    /// A GGUF file with the part of a model for images or sound.
    #[error(
        "holds only the part of a model for images and sound; take the file of its language model"
    )]
    Projector,
    /// A known family with an option that is not implemented.
    #[error(
        "asks for `{key}` = {value} in a model of type `{model_type}`, which is not supported; supported: {supported}"
    )]
    UnsupportedEntry {
        model_type: String,
        key: &'static str,
        value: String,
        supported: &'static str,
    },
    /// A necessary key of a GGUF file is absent.
    #[error("has no `{0}`; download it again, or take a newer file of this model")]
    MissingGgufKey(String),
    /// A GGUF file of a known architecture with an option that is not implemented.
    #[error(
        "asks for {0}, which is not supported in GGUF files; take the safetensors checkpoint of this model"
    )]
    UnsupportedGguf(String),
}

impl<'a> FamilyConfig<'a> {
    /// The entries of a configuration, or those that were translated from a GGUF file.
    pub(crate) fn of(outer: &'a ConfigMap, gguf: bool) -> Result<FamilyConfig<'a>, ConfigError> {
        let text = ConfigEntry::of(outer, "text_config").map(ConfigEntry::object).transpose()?;
        let model_type = ConfigEntry::of(outer, "model_type");
        let model_type = model_type.ok_or(ConfigError::MissingKey("model_type"))?.word()?;
        let mut config = FamilyConfig { model_type, wrapper: None, outer, text, gguf };
        if let Some((wrapper, otherwise)) = wrappers::wrapper(model_type) {
            config.wrapper = Some(wrapper);
            let text = match text {
                None if wrapper == wrappers::DOTS3 => None,
                text => Some(text.ok_or(ConfigError::MissingKey("text_config"))?),
            };
            let inner = text.and_then(|text| ConfigEntry::of(text, "model_type"));
            let missing = ConfigError::MissingKey("model_type` in `text_config");
            config.model_type = match (inner, otherwise) {
                (Some(inner), _) => inner.word()?,
                (None, otherwise) => otherwise.ok_or(missing)?,
            };
        }
        Ok(config)
    }

    /// True if tensors have the names of GGUF files.
    pub(crate) fn is_gguf(&self) -> bool {
        self.gguf
    }

    pub(crate) fn model_type(&self) -> &'a str {
        self.model_type
    }

    /// The model type of the wrapper around the language model, if there is one.
    pub(crate) fn wrapper(&self) -> Option<&'static str> {
        self.wrapper
    }

    /// The entry as written, including null, for the few entries where null and absence differ.
    /// Entries of the language model come first. Some, such as rotary embeddings, may be at either
    /// level.
    pub(crate) fn raw(&self, key: &str) -> Option<&'a Value> {
        self.levels().find_map(|level| level.get(key))
    }

    pub(crate) fn get(&self, key: &'static str) -> Option<ConfigEntry<'a>> {
        let value = self.raw(key)?;
        (!value.is_null()).then_some(ConfigEntry { key, value })
    }

    pub(crate) fn need(&self, key: &'static str) -> Result<ConfigEntry<'a>, ConfigError> {
        self.get(key).ok_or(ConfigError::MissingKey(key))
    }

    /// The first of several spellings, at the inner level before the outer one.
    pub(crate) fn any(&self, keys: &[&'static str]) -> Option<ConfigEntry<'a>> {
        self.levels().find_map(|level| keys.iter().find_map(|key| ConfigEntry::of(level, key)))
    }

    /// The entries of the language model, if they are separate, and all others.
    pub(crate) fn levels(&self) -> impl Iterator<Item = &'a ConfigMap> + Clone {
        self.text.into_iter().chain([self.outer])
    }

    /// An entry of a multimodal model that may be beside the entries of the language model or among
    /// them.
    pub(crate) fn either(&self, key: &'static str) -> Option<ConfigEntry<'a>> {
        self.get(key).or(ConfigEntry::of(self.outer, key))
    }

    pub(crate) fn flag(&self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        self.get(key).map_or(Ok(default), ConfigEntry::flag)
    }

    /// A size: at least one, at most `limit`.
    pub(crate) fn size(&self, key: &'static str, limit: u64) -> Result<usize, ConfigError> {
        self.need(key)?.size(limit)
    }

    /// True if the head is the embedding, unless the weights have a head. In a wrapped model,
    /// either level may say so. Where transformers ignores that entry, the weights have a head of
    /// their own.
    pub(crate) fn tied(&self) -> Result<bool, ConfigError> {
        if self.model_type == "lfm2_moe"
            && let Some(entry) = self.get("tie_embedding")
        {
            return entry.flag();
        }
        let by_wrapper = self.wrapper.is_some_and(|it| wrappers::TIED.contains(&it));
        let around = said_tied(self.outer)?.or(by_wrapper.then_some(true));
        let own = self.text.map_or(Ok(None), said_tied)?;
        Ok(match around.or(own) {
            Some(_) => around == Some(true) || own == Some(true),
            None => wrappers::TIED.contains(&self.model_type),
        })
    }

    pub(crate) fn layers(&self) -> Result<u32, ConfigError> {
        match self.get("layers_block_type") {
            // Transformers 5 then omits the number.
            Some(list) if self.get("num_hidden_layers").is_none() => {
                Ok(list.list()?.len().min(MAX_LAYERS as usize) as u32)
            }
            // Each layer has two attentions and two MLPs.
            _ if self.model_type == "longcat_flash"
                && (self.get("num_layers").is_some()
                    || self.get("num_hidden_layers").is_none()) =>
            {
                Ok(2 * self.need("num_layers")?.count(MAX_LAYERS / 2)? as u32)
            }
            _ => Ok(self.need("num_hidden_layers")?.count(MAX_LAYERS)? as u32),
        }
    }

    /// Number of experts in a layer, in the spelling of any family; `None` without such an entry.
    pub(crate) fn experts(&self) -> Result<Option<u32>, ConfigError> {
        // A switch of Gemma 4, which is off by default.
        if !self.flag("enable_moe_block", self.model_type != "gemma4_text")? {
            return Ok(Some(0));
        }
        match self.any(&spellings::EXPERTS) {
            Some(entry) => Ok(Some(entry.alike()?.count(MAX_COUNT)? as u32)),
            None => Ok(None),
        }
    }

    /// The number of experts in a layer, for a family that always has experts.
    pub(crate) fn some_experts(&self) -> Result<u32, ConfigError> {
        self.experts()?.ok_or(ConfigError::MissingKey(spellings::experts_of(self.model_type)))
    }

    /// The number of experts for a token, in the spelling of any family.
    pub(crate) fn top_k(&self) -> Result<ConfigEntry<'a>, ConfigError> {
        let missing = ConfigError::MissingKey(spellings::top_k_of(self.model_type));
        self.any(&spellings::TOP_K).ok_or(missing)
    }

    pub(crate) fn unsupported(
        &self,
        entry: ConfigEntry<'_>,
        supported: &'static str,
    ) -> ConfigError {
        ConfigError::UnsupportedEntry {
            model_type: self.model_type.escape_debug().take(100).collect(),
            key: entry.key,
            value: render(entry.value),
            supported,
        }
    }
}

/// True if these entries say that the head is the embedding, false if they deny it.
fn said_tied(level: &ConfigMap) -> Result<Option<bool>, ConfigError> {
    ConfigEntry::of(level, "tie_word_embeddings").map(ConfigEntry::flag).transpose()
}

/// One entry that is not null.
#[derive(Clone, Copy)]
pub(crate) struct ConfigEntry<'a> {
    pub(crate) key: &'static str,
    pub(crate) value: &'a Value,
}

impl From<DamagedConfiguration> for InvalidConfig {
    fn from(error: DamagedConfiguration) -> InvalidConfig {
        InvalidConfig { origin: error.origin, reason: ConfigError::Damaged(error.reason) }
    }
}

impl<'a> ConfigEntry<'a> {
    /// An entry of an object; null counts as absent.
    pub(crate) fn of(map: &'a ConfigMap, key: &'static str) -> Option<ConfigEntry<'a>> {
        let value = map.get(key)?;
        (!value.is_null()).then_some(ConfigEntry { key, value })
    }

    pub(crate) fn flag(self) -> Result<bool, ConfigError> {
        self.of_type(self.value.as_bool(), "true or false")
    }

    pub(crate) fn word(self) -> Result<&'a str, ConfigError> {
        self.of_type(self.value.as_str(), "a string")
    }

    pub(crate) fn list(self) -> Result<&'a [Value], ConfigError> {
        self.of_type(self.value.as_list(), "a list")
    }

    pub(crate) fn object(self) -> Result<&'a ConfigMap, ConfigError> {
        self.of_type(self.value.as_map(), "an object")
    }

    /// The value as the expected type. Fails if it is of another.
    fn of_type<T>(self, value: Option<T>, expected: &str) -> Result<T, ConfigError> {
        value.ok_or_else(|| {
            let found = render(self.value);
            ConfigError::Damaged(format!("`{}` is {found} instead of {expected}", self.key))
        })
    }

    /// The common value of a list with a number per layer, or the entry itself if it is not a list.
    pub(crate) fn alike(self) -> Result<ConfigEntry<'a>, ConfigError> {
        match self.value.as_list() {
            None => Ok(self),
            Some([value, rest @ ..]) if rest.iter().all(|other| other == value) => {
                Ok(ConfigEntry { value, ..self })
            }
            Some(_) => Err(self.invalid("which must be the same for all layers")),
        }
    }

    pub(crate) fn count(self, limit: u64) -> Result<u64, ConfigError> {
        let value = self.of_type(self.value.as_u64(), "a whole number of at least 0")?;
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
        let value = self.of_type(self.value.as_f64(), "a number")?;
        if value as f32 > 0.0 && (value as f32).is_finite() {
            Ok(value)
        } else {
            Err(self.invalid("which must be a number above 0 that 32 bits can hold"))
        }
    }

    /// A number above zero and at most `limit`, which is far above that of any known model.
    pub(crate) fn at_most(self, limit: f64) -> Result<f64, ConfigError> {
        match self.positive()? {
            number if number <= limit => Ok(number),
            _ => Err(self.invalid(format!("and no model has more than {limit}"))),
        }
    }

    /// The number added to a sum before its root is taken.
    pub(crate) fn epsilon(self) -> Result<f64, ConfigError> {
        self.at_most(0.1)
    }

    /// An error that refuses this entry beside another one for the same setting with another value.
    pub(crate) fn beside(self, other: ConfigEntry<'_>) -> ConfigError {
        let key = other.key;
        let value = render(other.value);
        self.invalid(format!("which is another name of `{key}`, and that is {value}"))
    }

    pub(crate) fn invalid(self, reason: impl Into<String>) -> ConfigError {
        let reason = reason.into();
        ConfigError::Invalid { key: self.key, value: render(self.value), reason }
    }
}

/// A value on one line, truncated if it is long.
fn render(value: &Value) -> String {
    match value {
        Value::Map(_) => "an object".to_owned(),
        Value::List(list) if list.len() > 8 => "a list".to_owned(),
        value => value.to_string().chars().take(80).collect(),
    }
}

/// An entry of an object; null counts as absent.
pub(crate) fn within<'a>(
    of: ConfigEntry<'a>,
    key: &'static str,
) -> Result<Option<ConfigEntry<'a>>, ConfigError> {
    Ok(ConfigEntry::of(of.object()?, key))
}
