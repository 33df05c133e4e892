//! Entries that list a value for each layer, and those that replace others in single layers.

use sws_format::Value;

use super::common::{Common, MAX_WIDTH};
use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig};
use crate::spec::AttentionSpec;

/// Entries of single layers by their numbers, in the spelling of transformers 5.
pub(super) const SINGLE: &str = "per_layer_config";

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
                "and {heads} is no multiple of the {kv_heads} key and value heads"
            ))),
        }
    };
    given.iter().map(of).collect()
}

/// A list of a 0 or a 1 for each layer.
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

/// Refuses entries of single layers that differ from those of all layers, except for those that the
/// family reads with [`of_kind`].
pub(super) fn check_single(config: &FamilyConfig, layers: usize) -> Result<(), ConfigError> {
    let read: &[&str] = match config.model_type() {
        "gemma4_text" => &["head_dim", "num_key_value_heads"],
        "step3p5" => &["num_attention_heads"],
        _ => &[],
    };
    let Some(entry) = config.get(SINGLE) else { return Ok(()) };
    for (_, own) in single(entry, layers)? {
        let differs = |(key, value): (&String, &Value)| {
            !read.contains(&key.as_str()) && config.raw(key).unwrap_or(&Value::Null) != value
        };
        if own.iter().any(differs) {
            return Err(config.unsupported(entry, "the same entries for all layers"));
        }
    }
    Ok(())
}

/// The value of `key` in the layers of `kind` by the entries of single layers; `otherwise` gives it
/// where there are no such entries. All layers of the kind have the same, and the others that of all
/// layers, or it is refused.
pub(super) fn of_kind<'a>(
    config: &FamilyConfig<'a>,
    key: &'static str,
    kind: &[bool],
    otherwise: &'static str,
) -> Result<Option<ConfigEntry<'a>>, ConfigError> {
    let Some(entry) = config.get(SINGLE) else { return Ok(config.get(otherwise)) };
    let mut own = vec![config.raw(key); kind.len()];
    for (layer, entries) in single(entry, kind.len())? {
        own[layer] = entries.get(key).or(own[layer]);
    }
    let first = kind.iter().position(|of_kind| *of_kind).map_or(config.raw(key), |l| own[l]);
    let fits = |(own, of_kind): (&Option<&Value>, &bool)| {
        *own == if *of_kind { first } else { config.raw(key) }
    };
    if !own.iter().zip(kind).all(fits) {
        return Err(config.unsupported(entry, "the same entries for all layers of a kind"));
    }
    Ok(first.filter(|value| !value.is_null()).map(|value| ConfigEntry { key, value }))
}

/// The numbers of layers that have entries of their own, and these.
fn single(entry: ConfigEntry<'_>, layers: usize) -> Result<Vec<(usize, &ConfigMap)>, ConfigError> {
    let of = |(number, value)| {
        let number: &String = number;
        let layer = number.parse().ok().filter(|layer| *layer < layers);
        let layer = layer.ok_or_else(|| {
            entry.invalid(format!("which must have numbers of the {layers} layers as its keys"))
        })?;
        Ok((layer, ConfigEntry { value, ..entry }.object()?))
    };
    entry.object()?.iter().map(of).collect()
}
