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
        for (key, value) in own {
            let of_all = config.raw(key).unwrap_or(&Value::Null);
            if !read.contains(&key.as_str()) && value != of_all {
                return Err(config.unsupported(entry, "the same entries for all layers"));
            }
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
    let of_all = config.raw(key);
    let mut own = vec![of_all; kind.len()];
    for (layer, entries) in single(entry, kind.len())? {
        own[layer] = entries.get(key).or(own[layer]);
    }
    let first = match kind.iter().position(|of_kind| *of_kind) {
        Some(layer) => own[layer],
        None => of_all,
    };
    for (own, of_kind) in own.into_iter().zip(kind) {
        let expected = if *of_kind { first } else { of_all };
        if own != expected {
            return Err(config.unsupported(entry, "the same entries for all layers of a kind"));
        }
    }
    match first {
        Some(value) if !value.is_null() => Ok(Some(ConfigEntry { key, value })),
        _ => Ok(None),
    }
}

/// The numbers of layers that have entries of their own, and these.
fn single(entry: ConfigEntry<'_>, layers: usize) -> Result<Vec<(usize, &ConfigMap)>, ConfigError> {
    let mut own = Vec::new();
    for (number, value) in entry.object()? {
        let layer = match number.parse::<usize>() {
            Ok(layer) if layer < layers => layer,
            _ => {
                let reason = format!("which must have numbers of the {layers} layers as its keys");
                return Err(entry.invalid(reason));
            }
        };
        own.push((layer, ConfigEntry { value, ..entry }.object()?));
    }
    Ok(own)
}
