//! Ling 3: delta nets with a bounded decay for each element of a key in most layers, latent attention
//! with a gate for each head in the others, and the experts of DeepSeek V3.

use sws_format::PieceKind;
use sws_kernels::functional::{Activation, MAX_TAPS, RopePairs};

use super::common::{
    DecoderParts, FamilyDefaults, MAX_STATE, MAX_WIDTH, full_layers, switched_off, switched_on,
};
use super::deepseek::sharpened;
use super::entries::size_or;
use super::kimi_linear::{LatentSizes, SIZES};
use super::per_layer::every_nth;
use super::ranked::{RankedKeys, RankedLayers, sigmoid};
use super::step::limits;
use super::{ENDS, EXPERTS, Ends, Family, MLP, NORMS, TensorRule, glm, kimi_linear, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::{MAX_HEAD_DIM, Rope};
use crate::spec::{DeltaInputs, DeltaSpec, Ffn, LatentGates, LatentSpec, Mixer, ModelSpec};
use crate::spellings::{RENORMALISE, TAPS_OF_LING};

pub(super) const FAMILY: Family = Family {
    model_types: &["bailing_hybrid"],
    prefix: "model.",
    ends: WORDS,
    layer: &[NORMS, ATTENTION, CORRECTION, MLP, glm::MOE, EXPERTS],
    spec,
};

/// Tensors outside layers, in all models of this publisher.
pub(super) const WORDS: Ends = Ends { embedding: "word_embeddings.weight", ..ENDS };

/// In latent attention the last matrix has another name than in delta nets.
const ATTENTION: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Query, "attention.q_proj.weight"),
    matrix(PieceKind::Attention, Role::QueryDown, "attention.q_a_proj.weight"),
    small(PieceKind::Attention, Role::QueryDownNorm, "attention.q_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::QueryUp, "attention.q_b_proj.weight"),
    matrix(PieceKind::Attention, Role::KvDown, "attention.kv_a_proj_with_mqa.weight"),
    small(PieceKind::Attention, Role::KvDownNorm, "attention.kv_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::KvUp, "attention.kv_b_proj.weight"),
    // Names in GGUF files, as the ends of names in transformers.
    matrix(PieceKind::Attention, Role::KeyUp, "attention.k_b_proj.weight"),
    matrix(PieceKind::Attention, Role::ValueUp, "attention.v_b_proj.weight"),
    matrix(PieceKind::Attention, Role::Key, "attention.k_proj.weight"),
    matrix(PieceKind::Attention, Role::Value, "attention.v_proj.weight"),
    matrix(PieceKind::Attention, Role::OutputGate, "attention.g_proj.weight"),
    small(PieceKind::Attention, Role::Beta, "attention.b_proj.weight"),
    matrix(PieceKind::Attention, Role::Decay, "attention.f_proj.weight"),
    small(PieceKind::Attention, Role::QueryConv, "attention.q_conv1d.weight"),
    small(PieceKind::Attention, Role::KeyConv, "attention.k_conv1d.weight"),
    small(PieceKind::Attention, Role::ValueConv, "attention.v_conv1d.weight"),
    small(PieceKind::Attention, Role::DecayRate, "attention.A_log"),
    small(PieceKind::Attention, Role::DecayBias, "attention.dt_bias"),
    small(PieceKind::Attention, Role::MixedNorm, "attention.o_norm.weight"),
    matrix(PieceKind::Attention, Role::Output, "attention.dense.weight"),
    matrix(PieceKind::Attention, Role::Output, "attention.o_proj.weight"),
];

pub(super) const CORRECTION: &[TensorRule] =
    &[small(PieceKind::Router, Role::RouterCorrection, "mlp.gate.expert_bias")];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 6e6,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 262_144,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    // Ling 2.5 has the same model type, but another kind of linear attention.
    if config.any(&["kda_lower_bound", "kda_safe_gate", "no_kda_lora"]).is_none() {
        return Err(ConfigError::MissingKey("kda_lower_bound"));
    }
    for key in ["moe_router_enable_expert_bias", "no_kda_lora"] {
        switched_on(config, key)?;
    }
    switched_off(config, "attention_bias")?;
    let mut decoder = DecoderParts::read(config, &DEFAULTS)?;
    if let Some(entry) = config.get("model_max_length") {
        decoder.context = entry.size(1 << 32)?;
    }
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != decoder.heads
    {
        return Err(config.unsupported(entry, "as many as `num_attention_heads`"));
    }
    let count = decoder.layers;
    let full = full(config, count)?;
    let (latent, rope) = latent(config, &decoder)?;
    let delta = match full.contains(&false) {
        true => Some(delta(config, &decoder)?),
        false => None,
    };
    let renormalise = match config.any(&RENORMALISE) {
        Some(entry) => entry.key,
        None => "norm_topk_prob",
    };
    let keys = RankedKeys {
        dense: ("first_k_dense_replace", 2),
        shared: ("num_shared_experts", 1),
        scale: ("routed_scaling_factor", 2.5),
        renormalise: (renormalise, true),
        groups: [8, 4],
    };
    let layers = RankedLayers::ranked(config, &keys, sigmoid(config, &keys)?, count)?;
    let of_experts = limits(config, "expert_swiglu_limit_list", count)?;
    let of_shared = limits(config, "share_expert_swiglu_limit_list", count)?;
    decoder.model(vec![rope], |l| {
        let mixer = if full[l] { Some(Mixer::Latent(latent)) } else { delta.map(Mixer::Delta) };
        let mut ffn = layers.ffn(l);
        if let Ffn::Moe(moe) = &mut ffn {
            moe.expert.activation = of_experts[l];
            if let Some(shared) = &mut moe.shared {
                shared.mlp.activation = of_shared[l];
            }
        }
        (mixer.expect("every layer is of one kind or the other"), ffn)
    })
}

/// True for the layers with latent attention, the last layer of each group.
fn full(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let supported = "full_attention and linear_attention";
    let listed = full_layers(config, layers, "linear_attention", supported)?;
    let entry = config.get("layer_group_size");
    let each = size_or(entry, 6, MAX_COUNT)?;
    match (listed, entry) {
        (Some(listed), _) => Ok(listed),
        // Implementations disagree about the remaining layers.
        (None, Some(entry)) if !layers.is_multiple_of(each) => {
            Err(config.unsupported(entry, "a divisor of the number of layers"))
        }
        _ => Ok(every_nth(each, layers)),
    }
}

fn latent(
    config: &FamilyConfig,
    decoder: &DecoderParts<'_>,
) -> Result<(LatentSpec, Rope), ConfigError> {
    let (spec, rope) = turned(config, decoder, DEFAULTS.theta, &SIZES)?;
    Ok((LatentSpec { gates: LatentGates::PerHead, ..spec }, rope))
}

/// Latent attention with a rotary embedding of adjacent elements.
pub(super) fn turned(
    config: &FamilyConfig,
    decoder: &DecoderParts<'_>,
    theta: f64,
    sizes: &LatentSizes,
) -> Result<(LatentSpec, Rope), ConfigError> {
    let spec = kimi_linear::latent(config, decoder.heads, sizes)?;
    if spec.rotated % 2 == 1 {
        let entry = config.need("qk_rope_head_dim")?;
        return Err(entry.invalid("and a rotary embedding turns pairs: it must be even"));
    }
    let mut rope = Rope::of(config, spec.rotated, (theta, None), decoder.context)?;
    rope.pairs = RopePairs::Interleaved;
    let scale = 1.0 / ((spec.plain + spec.rotated) as f64).sqrt() * sharpened(config, &rope)?;
    Ok((LatentSpec { scale: scale as f32, rope: Some(0), ..spec }, rope))
}

fn delta(config: &FamilyConfig, decoder: &DecoderParts<'_>) -> Result<DeltaSpec, ConfigError> {
    let heads = size_or(config.any(&["linear_num_heads"]), decoder.heads, MAX_COUNT)?;
    let dim = size_or(config.any(&["linear_head_dim", "head_dim"]), 128, MAX_HEAD_DIM)?;
    let taps = size_or(config.any(&TAPS_OF_LING), 4, MAX_COUNT)?;
    if let Some(entry) = config.any(&TAPS_OF_LING)
        && taps > MAX_TAPS
    {
        return Err(config.unsupported(entry, "up to 8"));
    }
    let bound = match config.flag("kda_safe_gate", true)? {
        false => None,
        true => match config.get("kda_lower_bound") {
            None => Some(-5.0),
            Some(entry) => Some(bound_of(entry)?),
        },
    };
    let key_heads = heads;
    let key_dim = dim;
    let value_dim = dim;
    let eps = decoder.norm.eps();
    let inputs = DeltaInputs::Apart;
    let spec = DeltaSpec {
        heads,
        key_heads,
        key_dim,
        value_dim,
        taps,
        eps,
        inputs,
        gate: Activation::Sigmoid,
        bound,
        rates: heads,
        powers: config.is_gguf(),
    };
    if (spec.channels() as u64 > MAX_WIDTH || spec.recurrence().state_len() > MAX_STATE)
        && let Some(entry) = config.any(&["linear_head_dim", "head_dim", "num_attention_heads"])
    {
        return Err(entry.invalid("which with so many heads no model has"));
    }
    Ok(spec)
}

/// The bound of decays.
pub(super) fn bound_of(entry: ConfigEntry<'_>) -> Result<f32, ConfigError> {
    match entry.value.as_f64() {
        Some(bound) if (-1e3..0.0).contains(&bound) => Ok(bound as f32),
        _ => Err(entry.invalid("which must be a number from -1000 up to 0")),
    }
}
