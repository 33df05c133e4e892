//! Entries with a value for each layer, and entries that replace values in single layers.

use super::common::{Common, MAX_WIDTH};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig};
use crate::spec::AttentionSpec;

/// The number of query heads of each layer: that of all, unless the entry `key` lists them.
pub(super) fn heads_of_layers(
    config: &FamilyConfig,
    key: &'static str,
    common: &Common<'_>,
) -> Result<Vec<usize>, ConfigError> {
    let AttentionSpec { heads, kv_heads, head_dim, .. } = common.attention;
    let Some(entry) = config.get(key) else { return Ok(vec![heads; common.layers]) };
    let given = entry.list()?;
    if given.len() != common.layers {
        let reason = format!("of {} entries for {} layers", given.len(), common.layers);
        return Err(entry.invalid(reason));
    }
    let of = |value| {
        let heads = ConfigEntry { key, value }.size(MAX_WIDTH / head_dim as u64)?;
        match heads.is_multiple_of(kv_heads) {
            true => Ok(heads),
            false => Err(entry.invalid(format!(
                "and {heads} is not a multiple of the {kv_heads} key and value heads"
            ))),
        }
    };
    given.iter().map(of).collect()
}

/// A list with a 0 or a 1 for each layer.
pub(super) fn flags_of_layers(
    entry: ConfigEntry<'_>,
    layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    let flags = entry.list()?.iter().map(|flag| match flag.as_u64() {
        Some(flag @ 0..=1) => Ok(flag == 1),
        _ => Err(entry.invalid("which must list a 0 or a 1 for each layer")),
    });
    let mut flags = flags.collect::<Result<Vec<bool>, _>>()?;
    if flags.len() < layers {
        let reason = format!("of {} entries for {layers} layers", flags.len());
        return Err(entry.invalid(reason));
    }
    flags.truncate(layers);
    Ok(flags)
}
