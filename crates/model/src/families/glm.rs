//! GLM 4.5 to 4.7, dots.llm1 and Solar Open: grouped heads and the experts of DeepSeek V3.

use sws_format::PieceKind;

use super::common::{Common, FamilyDefaults, same_window, window, windows};
use super::entries::count_or;
use super::per_layer::all_but_first;
use super::ranked::{RANKED, RankedKeys, RankedLayers, only, sigmoid};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, matrix, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{AttentionSpec, ModelSpec, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_types: &["glm4_moe", "dots1", "solar_open"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, MOE, EXPERTS],
    spec,
};

pub(super) const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "mlp.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.gate.e_score_correction_bias"),
    matrix(PieceKind::SharedExpert, Role::Gate, "mlp.shared_experts.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "mlp.shared_experts.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "mlp.shared_experts.down_proj.weight"),
];

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    match config.model_type() {
        "dots1" => dots(config),
        "solar_open" => solar(config),
        _ => glm(config),
    }
}

fn glm(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults {
        eps: 1e-5,
        theta: 10_000.0,
        kv_heads: Some(8),
        head_dim: None,
        rotated: Some(0.5),
        context: 131_072,
    };
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let qk_norm = match config.flag("use_qk_norm", false)? {
        true => QkNorm::PerHead,
        false => QkNorm::None,
    };
    let qkv_bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec { qkv_bias, qk_norm, ..common.attention.clone() };
    only(config, "scoring_func", "sigmoid")?;
    only(config, "topk_method", "noaux_tc")?;
    let router = sigmoid(config, &RANKED)?;
    let layers = RankedLayers::ranked(config, &RANKED, router, common.layers)?;
    common.model(|l| (attention.clone(), layers.ffn(l)))
}

/// dots.llm1: norms on heads, and a window in layers from `max_window_layers` on.
fn dots(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    const KEYS: RankedKeys = RankedKeys {
        dense: ("first_k_dense_replace", 0),
        shared: ("n_shared_experts", 0),
        renormalise: ("norm_topk_prob", false),
        ..RANKED
    };
    let defaults = FamilyDefaults {
        eps: 1e-6,
        theta: 10_000.0,
        kv_heads: Some(32),
        head_dim: None,
        rotated: None,
        context: 2048,
    };
    let common = Common::read(config, &defaults)?;
    let first = count_or(config.get("max_window_layers"), 62)?;
    let window = window(config, Some(4096))?;
    let windows = windows(config, window, &all_but_first(first, common.layers))?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        ..common.attention.clone()
    };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, common.layers)?;
    common.model(|l| (AttentionSpec { window: windows[l], ..attention.clone() }, layers.ffn(l)))
}

/// Solar Open: experts in every layer.
fn solar(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    const KEYS: RankedKeys = RankedKeys { dense: ("first_k_dense_replace", 0), ..RANKED };
    let defaults = FamilyDefaults {
        eps: 1e-5,
        theta: 1e6,
        kv_heads: Some(8),
        head_dim: Some(128),
        rotated: None,
        context: 131_072,
    };
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let qkv_bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec { qkv_bias, ..common.attention.clone() };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, common.layers)?;
    common.model(|l| (attention.clone(), layers.ffn(l)))
}
