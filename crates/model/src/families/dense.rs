//! Decoders without experts.

use super::common::{Common, FamilyDefaults, dense, same_window, switched_window, window, windows};
use super::entries::{count_or, size_or};
use super::per_layer::{all_but_every, all_but_first, flags_of_layers};
use super::{ATTENTION, ENDS, Family, MLP, NORMS, mistral};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::spec::{AttentionSpec, ModelSpec, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_types: &["llama", "mistral", "ministral3", "qwen2", "qwen3", "smollm3"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP],
    spec,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    match config.model_type() {
        "qwen2" | "qwen3" => qwen(config),
        "smollm3" => smol(config),
        "ministral3" => mistral::ministral(config),
        _ => llama(config),
    }
}

/// Llama and Mistral. Mistral has a window of 4096, unless the configuration gives another window
/// or null.
fn llama(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mistral = config.model_type() == "mistral";
    let defaults = FamilyDefaults {
        eps: 1e-6,
        theta: 10_000.0,
        kv_heads: mistral.then_some(8),
        head_dim: None,
        rotated: None,
        context: if mistral { 131_072 } else { 2048 },
    };
    let common = Common::read(config, &defaults)?;
    let window = if mistral { window(config, Some(4096))? } else { None };
    same_window(config, common.layers, window)?;
    let bias = !mistral && config.flag("attention_bias", false)?;
    let attention =
        AttentionSpec { qkv_bias: bias, output_bias: bias, window, ..common.attention.clone() };
    let mlp = dense(config, "intermediate_size", !mistral && config.flag("mlp_bias", false)?)?;
    common.model(|_| (attention.clone(), mlp))
}

/// Qwen2, with biases on queries, keys and values, and Qwen3, with a norm on each head instead.
/// Most configurations have a window, but `use_sliding_window` disables it in nearly all of them.
fn qwen(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let qwen3 = config.model_type() == "qwen3";
    let defaults = FamilyDefaults {
        eps: 1e-6,
        theta: 10_000.0,
        kv_heads: Some(32),
        head_dim: qwen3.then_some(128),
        rotated: None,
        context: 32_768,
    };
    let common = Common::read(config, &defaults)?;
    let first = count_or(config.get("max_window_layers"), 28)?;
    let windowed = all_but_first(first, common.layers);
    let windows = windows(config, switched_window(config)?, &windowed)?;
    let bias = qwen3 && config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: !qwen3 || bias,
        output_bias: bias,
        qk_norm: if qwen3 { QkNorm::PerHead } else { QkNorm::None },
        ..common.attention.clone()
    };
    let mlp = dense(config, "intermediate_size", false)?;
    common.model(|l| (AttentionSpec { window: windows[l], ..attention.clone() }, mlp))
}

/// SmolLM3: no rotary embedding in every fourth layer, or where `no_rope_layers` has a 0. If
/// windows are enabled, these layers have one.
fn smol(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults {
        eps: 1e-6,
        theta: 2e6,
        kv_heads: Some(4),
        head_dim: None,
        rotated: None,
        context: 32_768,
    };
    let common = Common::read(config, &defaults)?;
    let rotated: Vec<bool> = match config.get("no_rope_layers") {
        Some(entry) => flags_of_layers(entry, common.layers)?,
        None => {
            let interval = size_or(config.get("no_rope_layer_interval"), 4, MAX_COUNT)?;
            all_but_every(interval, common.layers)
        }
    };
    let window = match config.flag("use_sliding_window", false)? {
        true => window(config, None)?,
        false => None,
    };
    let unrotated: Vec<bool> = rotated.iter().map(|rotated| !rotated).collect();
    let windows = windows(config, window, &unrotated)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, ..common.attention.clone() };
    let mlp = dense(config, "intermediate_size", config.flag("mlp_bias", false)?)?;
    common.model(|l| {
        let rope = if rotated[l] { attention.rope } else { None };
        (AttentionSpec { window: windows[l], rope, ..attention.clone() }, mlp)
    })
}
