//! Ling 1 and 2: queries, keys and values in one matrix, and experts beside shared ones. Ling 1
//! chooses experts like Qwen, and Ling 2 like DeepSeek V3.

use sws_format::PieceKind;

use super::bailing::{CORRECTION, WORDS};
use super::common::{
    Common, FamilyDefaults, rotated_share, same_window, switched_off, switched_on,
};
use super::ranked::{RANKED, RankedKeys, RankedLayers, moe, only, routed, sigmoid};
use super::{EXPERTS, Family, MLP, NORMS, TensorRule, glm, matrix, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{AttentionExtras, AttentionSpec, ModelSpec, QkNorm, Router};

pub(super) const FAMILY: Family = Family {
    model_types: &["bailing_moe", "bailing_moe_v2"],
    prefix: "model.",
    ends: WORDS,
    layer: &[NORMS, ATTENTION, CORRECTION, MLP, glm::MOE, EXPERTS],
    spec,
};

const ATTENTION: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Mixed, "attention.query_key_value.weight"),
    small(PieceKind::Attention, Role::MixedBias, "attention.query_key_value.bias"),
    // Names in GGUF files, as the ends of names in transformers.
    matrix(PieceKind::Attention, Role::Query, "attention.q_proj.weight"),
    matrix(PieceKind::Attention, Role::Key, "attention.k_proj.weight"),
    matrix(PieceKind::Attention, Role::Value, "attention.v_proj.weight"),
    small(PieceKind::Attention, Role::QueryNorm, "attention.query_layernorm.weight"),
    small(PieceKind::Attention, Role::KeyNorm, "attention.key_layernorm.weight"),
    matrix(PieceKind::Attention, Role::Output, "attention.dense.weight"),
    small(PieceKind::Attention, Role::OutputBias, "attention.dense.bias"),
];

const KEYS: RankedKeys =
    RankedKeys { dense: ("first_k_dense_replace", 0), shared: ("num_shared_experts", 0), ..RANKED };

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let is_first = config.model_type() == "bailing_moe";
    // Logits of a normed head; experts for each kind of input; matrices that other files have.
    let off = ["norm_head", "norm_softmax", "multi_gate", "use_sliding_window"];
    for key in off {
        switched_off(config, key)?;
    }
    // Files of llama.cpp have matrices of their own for queries, keys and values of Ling 1.
    let apart = "using_split_qkv_in_self_attention";
    if !config.is_gguf() {
        switched_off(config, apart)?;
    }
    let fused = !config.flag(apart, false)?;
    for key in ["use_rmsnorm", "moe_router_enable_expert_bias"] {
        switched_on(config, key)?;
    }
    let defaults = FamilyDefaults {
        eps: if is_first { 1e-5 } else { 1e-6 },
        theta: 10_000.0,
        kv_heads: None,
        head_dim: None,
        rotated: match is_first {
            true => None,
            false => Some(rotated_share(config, 128)?.unwrap_or(0.5)),
        },
        context: 16_384,
    };
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let qk_norm = match config.flag("use_qk_norm", !is_first)? {
        true => QkNorm::PerHead,
        false => QkNorm::None,
    };
    let attention = AttentionSpec {
        qkv_bias: config.flag("use_qkv_bias", false)?,
        output_bias: config.flag("use_bias", false)?,
        qk_norm,
        extras: AttentionExtras { fused, ..common.attention.extras },
        ..common.attention.clone()
    };
    only(config, "score_function", if is_first { "softmax" } else { "sigmoid" })?;
    let router = match is_first {
        true => Router::Softmax { renormalise: config.flag("norm_topk_prob", true)? },
        false => Router::Ranked(sigmoid(config, &KEYS)?),
    };
    let routed = routed(config, KEYS.dense, common.layers)?;
    let layers =
        RankedLayers::of(config, routed, "intermediate_size", |config| moe(config, &KEYS, router))?;
    common.model(|l| (attention.clone(), layers.ffn(l)))
}
