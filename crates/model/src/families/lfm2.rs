//! LFM2: gated short convolutions in most layers, attention in the others, and experts after the
//! first few layers.

use sws_format::PieceKind;
use sws_kernels::functional::MAX_TAPS;

use super::common::{Common, FamilyDefaults, MAX_WIDTH, chosen, dense, full_layers, width};
use super::entries::{count_or, epsilon_or, positive_or, size_or};
use super::{Ends, Family, TensorRule, expert, matrix, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{
    AttentionSpec, ConvSpec, Ffn, Mixer, MlpSpec, ModelSpec, MoeSpec, Norm, QkNorm, RankedRouter,
    Renormalise, Router, RouterScores,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["lfm2_moe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[OPERATORS, LAYER],
    spec,
};

pub(super) const ENDS: Ends = Ends { norm: "embedding_norm.weight", ..super::ENDS };

/// Norms, convolutions and dense MLPs.
pub(super) const OPERATORS: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "operator_norm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "ffn_norm.weight"),
    matrix(PieceKind::Attention, Role::MixedGate, "conv.in_proj.weight"),
    small(PieceKind::Attention, Role::MixedBias, "conv.in_proj.bias"),
    small(PieceKind::Attention, Role::Conv, "conv.conv.weight"),
    small(PieceKind::Attention, Role::ConvBias, "conv.conv.bias"),
    matrix(PieceKind::Attention, Role::Output, "conv.out_proj.weight"),
    small(PieceKind::Attention, Role::OutputBias, "conv.out_proj.bias"),
    matrix(PieceKind::Mlp, Role::Gate, "feed_forward.w1.weight"),
    matrix(PieceKind::Mlp, Role::Up, "feed_forward.w3.weight"),
    matrix(PieceKind::Mlp, Role::Down, "feed_forward.w2.weight"),
];

const LAYER: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Query, "self_attn.q_proj.weight"),
    matrix(PieceKind::Attention, Role::Key, "self_attn.k_proj.weight"),
    matrix(PieceKind::Attention, Role::Value, "self_attn.v_proj.weight"),
    small(PieceKind::Attention, Role::QueryNorm, "self_attn.q_layernorm.weight"),
    small(PieceKind::Attention, Role::KeyNorm, "self_attn.k_layernorm.weight"),
    matrix(PieceKind::Attention, Role::Output, "self_attn.out_proj.weight"),
    small(PieceKind::Router, Role::Router, "feed_forward.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "feed_forward.expert_bias"),
    expert(Role::Gate, "feed_forward.experts.#.w1.weight"),
    expert(Role::Up, "feed_forward.experts.#.w3.weight"),
    expert(Role::Down, "feed_forward.experts.#.w2.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 1_000_000.0,
    kv_heads: Some(8),
    head_dim: None,
    rotated: None,
    context: 128_000,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = Common::read(config, &DEFAULTS)?;
    common.decoder.norm = norm(config)?;
    let attention = AttentionSpec { qk_norm: QkNorm::PerHead, ..common.attention.clone() };
    let conv = conv(config, 3)?;
    let full = full_layers(config, common.layers, "conv", "full_attention and conv")?;
    let full = full.ok_or(ConfigError::MissingKey("layer_types"))?;
    let first = count_or(config.get("num_dense_layers"), 2)?;
    let mlp = match first > 0 {
        true => Some(dense(config, "intermediate_size", false)?),
        false => None,
    };
    let experts = match first < common.layers as u64 {
        true => Some(experts(config)?),
        false => None,
    };
    common.model(|l| {
        let mixer = match full[l] {
            true => Mixer::Attention(attention.clone()),
            false => Mixer::Conv(conv),
        };
        let ffn = if (l as u64) < first { mlp } else { experts };
        (mixer, ffn.expect("every layer is of one kind or the other"))
    })
}

/// The norm of all layers.
pub(super) fn norm(config: &FamilyConfig) -> Result<Norm, ConfigError> {
    let eps = epsilon_or(config.get("norm_eps"), 1e-5)?;
    Ok(Norm::Rms { eps: eps as f32, one_plus: false })
}

/// The convolutions, by default of this many tokens.
pub(super) fn conv(config: &FamilyConfig, taps: usize) -> Result<ConvSpec, ConfigError> {
    let entry = config.get("conv_L_cache");
    let taps = size_or(entry, taps, MAX_COUNT)?;
    if let Some(entry) = entry
        && taps > MAX_TAPS
    {
        return Err(config.unsupported(entry, "up to 8"));
    }
    let channels = config.size("hidden_size", MAX_WIDTH)?;
    Ok(ConvSpec { channels, taps, bias: config.flag("conv_bias", false)? })
}

/// Experts ranked by the sigmoids of their logits plus a correction.
fn experts(config: &FamilyConfig) -> Result<Ffn, ConfigError> {
    let scale = positive_or(config.get("routed_scaling_factor"), 1.0)?;
    let renormalise = match config.flag("norm_topk_prob", true)? {
        true => Renormalise::Sum { plus: 1e-6 },
        false => Renormalise::None,
    };
    let router = RankedRouter {
        scores: RouterScores::Sigmoid,
        correction: config.flag("use_expert_bias", true)?,
        groups: None,
        renormalise,
        scale: scale as f32,
    };
    let expert = MlpSpec::silu(width(config, "moe_intermediate_size")?);
    Ok(Ffn::Moe(MoeSpec::of(chosen(config)?, expert, Router::Ranked(router))))
}
