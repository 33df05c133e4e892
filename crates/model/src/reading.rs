//! From a configuration to what a family makes of it.

use sws_format::Configuration;

use crate::config::{ConfigError, FamilyConfig, InvalidConfig};
use crate::spec::ModelSpec;
use crate::{agreeing, families, gguf, rope};

/// Returns what `read` makes of the configuration. An error names its origin.
pub(crate) fn read<T>(
    given: &Configuration,
    read: impl FnOnce(&FamilyConfig<'_>) -> Result<T, ConfigError>,
) -> Result<T, InvalidConfig> {
    let done = gguf::translated(&given.entries).and_then(|translated| {
        let entries = translated.as_ref().unwrap_or(&given.entries);
        let config = FamilyConfig::of(entries, translated.is_some())?;
        agreeing::check(&config)?;
        rope::check(&config)?;
        read(&config)
    });
    done.map_err(|reason| InvalidConfig { origin: given.origin.clone(), reason })
}

impl ModelSpec {
    /// Reads a configuration, in the spelling of transformers 4 or 5.
    pub fn of(config: &Configuration) -> Result<ModelSpec, InvalidConfig> {
        read(config, |config| (families::of(config)?.family.spec)(config))
    }

    /// Reads a `config.json`.
    pub fn parse(config_json: &[u8]) -> Result<ModelSpec, InvalidConfig> {
        ModelSpec::of(&Configuration::from_json("config.json", config_json)?)
    }
}
