//! Qwen's mixtures of experts, and OLMoE, whose tensor names are the same. Some layers may be
//! dense.

use sws_format::PieceKind;

use super::common::{
    Common, FamilyDefaults, moe, same_window, shared_width, switched_window, windows,
};
use super::entries::{count_or, optional_positive, size_or};
use super::per_layer::{every_nth, numbers_of_layers};
use super::ranked::RankedLayers;
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, matrix, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{AttentionExtras, AttentionSpec, MlpSpec, ModelSpec, QkNorm, SharedSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen2_moe", "qwen3_moe", "olmoe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, MOE, SHARED, EXPERTS],
    spec,
};

pub(super) const SHARED: &[TensorRule] = &[
    matrix(PieceKind::SharedExpert, Role::Gate, "mlp.shared_expert.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "mlp.shared_expert.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "mlp.shared_expert.down_proj.weight"),
];

pub(super) const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "mlp.gate.weight"),
    small(PieceKind::SharedExpert, Role::SharedGate, "mlp.shared_expert_gate.weight"),
];

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    match config.model_type() {
        "qwen2_moe" => qwen2(config),
        "qwen3_moe" => qwen3(config),
        _ => olmoe(config),
    }
}

/// Qwen2: a shared expert with its own gate, biases on queries, keys and values, and a window, if
/// enabled, in every other layer below `max_window_layers`.
fn qwen2(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults { kv_heads: Some(16), ..QWEN };
    let common = Common::read(config, &defaults)?;
    let end = count_or(config.get("max_window_layers"), 28)?;
    let windowed: Vec<bool> =
        (0..common.layers).map(|l| l.is_multiple_of(2) && (l as u64) < end).collect();
    let windows = windows(config, switched_window(config)?, &windowed)?;
    let qkv_bias = config.flag("qkv_bias", true)?;
    let attention = AttentionSpec { qkv_bias, ..common.attention.clone() };
    let width = shared_width(config, "shared_expert_intermediate_size", 5632)?;
    let shared = SharedSpec { gated: true, ..SharedSpec::added(MlpSpec::silu(width)) };
    let routed = routed(config, common.layers, &[])?;
    let renormalise = config.flag("norm_topk_prob", false)?;
    let layers = layers(config, routed, renormalise, Some(shared))?;
    common.model(|l| (AttentionSpec { window: windows[l], ..attention.clone() }, layers.ffn(l)))
}

/// Qwen3: a norm on each head of queries and keys, no shared expert, and the same window in all
/// layers.
fn qwen3(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults { kv_heads: Some(4), ..QWEN };
    let common = Common::read(config, &defaults)?;
    let window = switched_window(config)?;
    same_window(config, common.layers, window)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        window,
        ..common.attention.clone()
    };
    let routed = routed(config, common.layers, &[])?;
    let renormalise = config.flag("norm_topk_prob", false)?;
    let layers = layers(config, routed, renormalise, None)?;
    common.model(|l| (attention.clone(), layers.ffn(l)))
}

/// OLMoE: a norm over all query heads together, a norm over all key heads, and clamped results.
fn olmoe(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults { eps: 1e-5, kv_heads: None, context: 4096, ..QWEN };
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let bias = config.flag("attention_bias", false)?;
    let clip = optional_positive(config.get("clip_qkv"))?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::FullWidth,
        extras: AttentionExtras { clip, ..common.attention.extras },
        ..common.attention.clone()
    };
    let ffn = moe(config, "intermediate_size", config.flag("norm_topk_prob", false)?, None)?;
    common.model(|_| (attention.clone(), ffn))
}

const QWEN: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 32_768,
};

/// True for each layer with experts: every `decoder_sparse_step`-th, unless it is listed as dense;
/// `dense` are the dense layers if none are listed.
pub(super) fn routed(
    config: &FamilyConfig,
    layers: usize,
    dense: &[u64],
) -> Result<Vec<bool>, ConfigError> {
    let step = size_or(config.get("decoder_sparse_step"), 1, MAX_COUNT)?;
    let dense = match config.get("mlp_only_layers") {
        None => dense.to_vec(),
        Some(entry) => numbers_of_layers(entry)?,
    };
    let mut routed = every_nth(step, layers);
    for layer in dense {
        if let Some(has_experts) = routed.get_mut(layer as usize) {
            *has_experts = false;
        }
    }
    Ok(routed)
}

/// The feed-forward blocks of all layers, with experts as wide as `moe_intermediate_size`.
pub(super) fn layers(
    config: &FamilyConfig,
    routed: Vec<bool>,
    renormalise: bool,
    shared: Option<SharedSpec>,
) -> Result<RankedLayers, ConfigError> {
    RankedLayers::of(config, routed, "intermediate_size", |config| {
        moe(config, "moe_intermediate_size", renormalise, shared)
    })
}
