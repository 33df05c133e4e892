//! The few entries of `config.json` that say how tensors are named.

use serde::Deserialize;

/// The most layers, and experts in a layer, that are believed.
const MAX_COUNT: u64 = 65_536;

/// What naming needs to know of a configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) model_type: String,
    pub(crate) layers: u32,
    /// None if no key gives a number of experts.
    pub(crate) experts: Option<u32>,
    pub(crate) tied: bool,
}

/// Why a `config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not JSON, or entries of the wrong type.
    #[error("config.json is damaged ({0}); download it again")]
    Json(#[source] serde_json::Error),
    /// A necessary entry is absent.
    #[error("config.json has no `{0}`; take the config.json that was published with the weights")]
    MissingKey(&'static str),
    /// A number that no model has.
    #[error(
        "config.json gives {value} for `{key}`, and no model has more than {MAX_COUNT}; download it again"
    )]
    TooLarge {
        /// The entry.
        key: &'static str,
        /// Its value.
        value: u64,
    },
    /// A family that is not known.
    #[error(
        "config.json names the model type `{model_type}`, which is not supported; supported are {supported}"
    )]
    Unsupported {
        /// What it says.
        model_type: String,
        /// The supported ones.
        supported: String,
    },
}

#[derive(Deserialize)]
struct Outer {
    model_type: Option<String>,
    tie_word_embeddings: Option<bool>,
    /// Where models that also see or hear keep what concerns the language model.
    text_config: Option<Text>,
}

#[derive(Deserialize, Default)]
struct Text {
    num_hidden_layers: Option<u64>,
    tie_word_embeddings: Option<bool>,
    // Spelled differently by family, and by the version of transformers that wrote the file.
    num_local_experts: Option<u64>,
    num_experts: Option<u64>,
    n_routed_experts: Option<u64>,
    moe_num_experts: Option<u64>,
}

impl Config {
    pub(crate) fn parse(json: &[u8]) -> Result<Config, ConfigError> {
        let outer: Outer = serde_json::from_slice(json).map_err(ConfigError::Json)?;
        let text = match outer.text_config {
            Some(text) => text,
            None => serde_json::from_slice(json).map_err(ConfigError::Json)?,
        };
        let experts = [
            ("num_local_experts", text.num_local_experts),
            ("num_experts", text.num_experts),
            ("n_routed_experts", text.n_routed_experts),
            ("moe_num_experts", text.moe_num_experts),
        ];
        let experts = experts.into_iter().find_map(|(key, value)| Some((key, value?)));
        let layers = text.num_hidden_layers.ok_or(ConfigError::MissingKey("num_hidden_layers"))?;
        Ok(Config {
            model_type: outer.model_type.ok_or(ConfigError::MissingKey("model_type"))?,
            layers: bounded("num_hidden_layers", layers)?,
            experts: experts.map(|(key, value)| bounded(key, value)).transpose()?,
            tied: outer.tie_word_embeddings.or(text.tie_word_embeddings).unwrap_or(false),
        })
    }
}

fn bounded(key: &'static str, value: u64) -> Result<u32, ConfigError> {
    match u32::try_from(value) {
        Ok(count) if value <= MAX_COUNT => Ok(count),
        _ => Err(ConfigError::TooLarge { key, value }),
    }
}
