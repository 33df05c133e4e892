//! Qwen3-Next and Qwen3.5: gated delta nets in three of four layers, attention with gated outputs
//! in the others. Qwen3.5 stores the inputs of its delta nets apart, and stacks experts.

use sws_format::PieceKind;
use sws_kernels::functional::{Activation, MAX_TAPS};

use super::common::{
    Common, FamilyDefaults, MAX_STATE, MAX_WIDTH, dense, full_layers, moe, shared_width,
};
use super::entries::size_or;
use super::per_layer::every_nth;
use super::qwen_moe::{MOE, SHARED, layers, routed};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, matrix, small, stacked};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{
    AttentionGate, AttentionSpec, DeltaInputs, DeltaSpec, Ffn, GateUp, Mixer, MlpSpec, ModelSpec,
    QkNorm, SharedSpec,
};

pub(super) const NEXT: Family = Family {
    model_types: &["qwen3_next"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, DELTA, BY_KEY_HEAD, OF_GGUF, MLP, MOE, SHARED, EXPERTS],
    spec: next,
};

pub(super) const ROUTED: Family = Family {
    model_types: &["qwen3_5_moe_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, DELTA, SEPARATE, MOE, SHARED, EXPERTS, STACKED],
    spec: experts,
};

pub(super) const DENSE: Family = Family {
    model_types: &["qwen3_5_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, DELTA, SEPARATE, MLP],
    spec: without_experts,
};

pub(super) const DELTA: &[TensorRule] = &[
    small(PieceKind::Attention, Role::Conv, "linear_attn.conv1d.weight"),
    small(PieceKind::Attention, Role::DecayRate, "linear_attn.A_log"),
    small(PieceKind::Attention, Role::DecayBias, "linear_attn.dt_bias"),
    small(PieceKind::Attention, Role::MixedNorm, "linear_attn.norm.weight"),
    matrix(PieceKind::Attention, Role::Output, "linear_attn.out_proj.weight"),
];

const BY_KEY_HEAD: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::MixedGate, "linear_attn.in_proj_qkvz.weight"),
    small(PieceKind::Attention, Role::BetaDecay, "linear_attn.in_proj_ba.weight"),
];

/// Names in GGUF files, which store these tensors separately.
const OF_GGUF: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Mixed, "linear_attn.in_proj_qkv.weight"),
    matrix(PieceKind::Attention, Role::OutputGate, "linear_attn.in_proj_z.weight"),
];

pub(super) const SEPARATE: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Mixed, "linear_attn.in_proj_qkv.weight"),
    matrix(PieceKind::Attention, Role::OutputGate, "linear_attn.in_proj_z.weight"),
    small(PieceKind::Attention, Role::Beta, "linear_attn.in_proj_b.weight"),
    small(PieceKind::Attention, Role::Decay, "linear_attn.in_proj_a.weight"),
];

pub(super) const STACKED: &[TensorRule] = &[
    stacked(Role::GateUp, "mlp.experts.gate_up_proj"),
    stacked(Role::Down, "mlp.experts.down_proj"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(2),
    head_dim: Some(256),
    rotated: Some(0.25),
    context: 32_768,
};

fn next(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let common = read(config, &DEFAULTS)?;
    let inputs = if config.is_gguf() { DeltaInputs::Pairs } else { DeltaInputs::ByKeyHead };
    let mixer = mixers(config, &common, inputs)?;
    let shared = shared(config)?;
    let routed = routed(config, common.layers, &[])?;
    let renormalise = config.flag("norm_topk_prob", true)?;
    let layers = layers(config, routed, renormalise, Some(shared))?;
    common.model(|l| (mixer(l), layers.ffn(l)))
}

fn experts(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let common = read(config, &DEFAULTS)?;
    let mixer = mixers(config, &common, separate(config))?;
    let mut ffn = moe(config, "moe_intermediate_size", true, Some(shared(config)?))?;
    if let Ffn::Moe(moe) = &mut ffn {
        // Checkpoints with one tensor per expert store gates and ups separately: see
        // `ModelSpec::for_weights`.
        moe.expert.gate_up = GateUp::Halves;
    }
    common.model(|l| (mixer(l), ffn))
}

fn without_experts(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults { kv_heads: Some(4), ..DEFAULTS };
    let common = read(config, &defaults)?;
    let mixer = mixers(config, &common, separate(config))?;
    let mlp = dense(config, "intermediate_size", false)?;
    common.model(|l| (mixer(l), mlp))
}

/// The inputs of delta nets in Qwen3.5.
pub(super) fn separate(config: &FamilyConfig) -> DeltaInputs {
    if config.is_gguf() { DeltaInputs::Tiled } else { DeltaInputs::Separate }
}

/// The parts that all families share. All norms except those of delta nets add one to their
/// weights. In GGUF files this is already done.
pub(super) fn read<'a>(
    config: &'a FamilyConfig<'a>,
    defaults: &FamilyDefaults,
) -> Result<Common<'a>, ConfigError> {
    let mut common = Common::read(config, defaults)?;
    if !config.is_gguf() {
        common.decoder.norm = common.decoder.norm.one_plus();
    }
    Ok(common)
}

pub(super) fn shared(config: &FamilyConfig) -> Result<SharedSpec, ConfigError> {
    let width = shared_width(config, "shared_expert_intermediate_size", 512)?;
    Ok(SharedSpec { gated: true, ..SharedSpec::added(MlpSpec::silu(width)) })
}

/// The mixer of each layer.
fn mixers(
    config: &FamilyConfig,
    common: &Common<'_>,
    inputs: DeltaInputs,
) -> Result<impl Fn(usize) -> Mixer + use<>, ConfigError> {
    if let Some(entry) = config.get("attn_output_gate")
        && !entry.flag()?
    {
        return Err(config.unsupported(entry, "true"));
    }
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        gate: Some(AttentionGate::WithQueries),
        ..common.attention.clone()
    };
    let delta = delta(config, common.decoder.norm.eps(), inputs)?;
    let supported = "full_attention and linear_attention";
    let full = full_layers(config, common.layers, "linear_attention", supported)?;
    let every = size_or(config.get("full_attention_interval"), 4, MAX_COUNT)?;
    let full = match full {
        Some(full) => full,
        None => every_nth(every, common.layers),
    };
    Ok(move |l: usize| match full[l] {
        true => Mixer::Attention(attention.clone()),
        false => Mixer::Delta(delta),
    })
}

pub(super) fn delta(
    config: &FamilyConfig,
    eps: f32,
    inputs: DeltaInputs,
) -> Result<DeltaSpec, ConfigError> {
    let heads = size_or(config.get("linear_num_value_heads"), 32, MAX_COUNT)?;
    let key_heads = size_or(config.get("linear_num_key_heads"), 16, MAX_COUNT)?;
    let key_dim = size_or(config.get("linear_key_head_dim"), 128, MAX_HEAD_DIM)?;
    let value_dim = size_or(config.get("linear_value_head_dim"), 128, MAX_HEAD_DIM)?;
    let taps = size_or(config.get("linear_conv_kernel_dim"), 4, MAX_COUNT)?;
    let spec = DeltaSpec {
        heads,
        key_heads,
        key_dim,
        value_dim,
        taps,
        eps,
        inputs,
        gate: Activation::Silu,
        bound: None,
        rates: heads,
        powers: config.is_gguf(),
    };
    if !heads.is_multiple_of(key_heads) {
        let reason = format!("which {heads} heads of values cannot share");
        return Err(config.need("linear_num_key_heads")?.invalid(reason));
    }
    if (spec.channels() as u64 > MAX_WIDTH || spec.recurrence().state_len() > MAX_STATE)
        && let Some(entry) = config.any(&["linear_num_value_heads", "linear_key_head_dim"])
    {
        return Err(entry.invalid("which with the sizes of these heads no model has"));
    }
    if let Some(entry) = config.get("linear_conv_kernel_dim")
        && taps > MAX_TAPS
    {
        return Err(config.unsupported(entry, "up to 8"));
    }
    Ok(spec)
}
