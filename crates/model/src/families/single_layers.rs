//! Entries of single layers, which replace those of all.

use sws_format::Value;

use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig};

/// Entries of single layers by their numbers, in the spelling of transformers 5.
pub(super) const SINGLE: &str = "per_layer_config";

/// Refuses entries of single layers that differ from those of all layers, except for those that the
/// family reads with [`of_kind`].
pub(super) fn check_single(config: &FamilyConfig, layers: usize) -> Result<(), ConfigError> {
    let read: &[&str] = match config.model_type() {
        "dots3_note_text" => &[
            "head_dim",
            "kv_lora_rank",
            "num_attention_heads",
            "num_key_value_heads",
            "q_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        ],
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
