//! Kimi Linear: delta nets with a decay for each element of a key in most layers, latent attention
//! without rotary embedding in the others, and the experts of DeepSeek V3.

use sws_format::PieceKind;
use sws_kernels::functional::{Activation, MAX_TAPS};

use super::common::{
    DecoderParts, FamilyDefaults, MAX_STATE, MAX_WIDTH, full_layers, switched_off, switched_on,
};
use super::entries::{entry_in, size_or};
use super::ranked::{RANKED, RankedKeys, RankedLayers, only, sigmoid};
use super::{TensorRule, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT, SPLIT_LATENTS};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{DeltaInputs, DeltaSpec, KeyValues, LatentGates, LatentSpec, Mixer, ModelSpec};

pub(super) const DELTA: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Key, "self_attn.k_proj.weight"),
    matrix(PieceKind::Attention, Role::Value, "self_attn.v_proj.weight"),
    small(PieceKind::Attention, Role::Beta, "self_attn.b_proj.weight"),
    matrix(PieceKind::Attention, Role::DecayDown, "self_attn.f_a_proj.weight"),
    matrix(PieceKind::Attention, Role::OutputGateDown, "self_attn.g_a_proj.weight"),
    matrix(PieceKind::Attention, Role::DecayUp, "self_attn.f_b_proj.weight"),
    matrix(PieceKind::Attention, Role::OutputGateUp, "self_attn.g_b_proj.weight"),
    small(PieceKind::Attention, Role::QueryConv, "self_attn.q_conv1d.weight"),
    small(PieceKind::Attention, Role::KeyConv, "self_attn.k_conv1d.weight"),
    small(PieceKind::Attention, Role::ValueConv, "self_attn.v_conv1d.weight"),
    small(PieceKind::Attention, Role::DecayRate, "self_attn.A_log"),
    small(PieceKind::Attention, Role::DecayBias, "self_attn.dt_bias"),
    small(PieceKind::Attention, Role::MixedNorm, "self_attn.o_norm.weight"),
];

pub(super) const CORRECTION: &[TensorRule] = &[small(
    PieceKind::Router,
    Role::RouterCorrection,
    "block_sparse_moe.gate.e_score_correction_bias",
)];

pub(super) const SHARED: &[TensorRule] = &[
    matrix(PieceKind::SharedExpert, Role::Gate, "block_sparse_moe.shared_experts.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "block_sparse_moe.shared_experts.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "block_sparse_moe.shared_experts.down_proj.weight"),
];

pub(super) const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 1 << 20,
};

const KEYS: RankedKeys = RankedKeys {
    shared: ("num_shared_experts", 1),
    scale: ("routed_scaling_factor", 2.446),
    renormalise: ("moe_renormalize", true),
    ..RANKED
};

pub(super) fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut decoder = DecoderParts::read(config, &DEFAULTS)?;
    if let Some(entry) = config.get("model_max_length") {
        decoder.context = entry.size(1 << 32)?;
    }
    switched_off(config, "attention_bias")?;
    switched_on(config, "mla_use_nope")?;
    only(config, "moe_router_activation_func", "sigmoid")?;
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != decoder.heads
    {
        return Err(config.unsupported(entry, "as many as `num_attention_heads`"));
    }
    let full = full(config, decoder.layers)?;
    let latent = match full.contains(&true) {
        true => Some(latent(config, decoder.heads, &SIZES)?),
        false => None,
    };
    let delta = match full.contains(&false) {
        true => Some(delta(config, 32, decoder.norm.eps())?),
        false => None,
    };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, decoder.layers)?;
    decoder.model(Vec::new(), |l| {
        let mixer = match full[l] {
            true => latent.map(Mixer::Latent),
            false => delta.map(Mixer::Delta),
        };
        (mixer.expect("every layer is of one kind or the other"), layers.ffn(l))
    })
}

/// An entry of `linear_attn_config`, or the corresponding entry of transformers 5.
pub(super) fn linear<'a>(
    config: &FamilyConfig<'a>,
    key: &'static str,
    beside: &'static str,
) -> Result<Option<ConfigEntry<'a>>, ConfigError> {
    let given = config.get("linear_attn_config").map(ConfigEntry::object).transpose()?;
    Ok(entry_in(given, key).or(config.get(beside)))
}

/// True for the layers with latent attention.
pub(super) fn full(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let full = linear(config, "full_attn_layers", "full_attn_layers")?;
    let delta = linear(config, "kda_layers", "kda_layers")?;
    if let (Some(_), None) | (None, Some(_)) = (full, delta) {
        let missing = if full.is_none() { "full_attn_layers" } else { "kda_layers" };
        return Err(ConfigError::MissingKey(missing));
    }
    let (Some(full), Some(delta)) = (full, delta) else {
        let supported = "full_attention and linear_attention";
        return match full_layers(config, layers, "linear_attention", supported)? {
            Some(full) => Ok(full),
            // Without a list of its layers, the object has no effect.
            None if config.get("linear_attn_config").is_some() => {
                Err(ConfigError::MissingKey("full_attn_layers"))
            }
            None => Ok((0..layers).map(|l| l > 0 && l.is_multiple_of(4)).collect()),
        };
    };
    let mut kinds = vec![None; layers];
    for (entry, is_full) in [(full, true), (delta, false)] {
        for layer in entry.list()? {
            // Layer numbers begin with 1.
            let kind = match layer.as_u64() {
                Some(number @ 1..) => kinds.get_mut(number as usize - 1),
                _ => None,
            };
            match kind {
                Some(kind) if kind.is_none() => *kind = Some(is_full),
                _ => return Err(entry.invalid("with a layer twice, or one that does not exist")),
            }
        }
    }
    let kinds: Option<Vec<bool>> = kinds.into_iter().collect();
    match kinds {
        Some(kinds) => Ok(kinds),
        None => Err(full.invalid("and some layers are of neither kind")),
    }
}

/// Defaults for the sizes of latent attention.
pub(super) struct LatentSizes {
    pub(super) query_rank: Option<usize>,
    pub(super) plain: usize,
    pub(super) rotated: usize,
    pub(super) value_dim: usize,
}

pub(super) const SIZES: LatentSizes =
    LatentSizes { query_rank: None, plain: 128, rotated: 64, value_dim: 128 };

/// Latent attention without rotation.
pub(super) fn latent(
    config: &FamilyConfig,
    heads: usize,
    defaults: &LatentSizes,
) -> Result<LatentSpec, ConfigError> {
    let plain = size_or(config.get("qk_nope_head_dim"), defaults.plain, MAX_HEAD_DIM)?;
    let rotated = size_or(config.get("qk_rope_head_dim"), defaults.rotated, MAX_HEAD_DIM)?;
    let query_rank = match config.get("q_lora_rank") {
        Some(entry) => Some(entry.size(MAX_WIDTH)?),
        None => defaults.query_rank,
    };
    let rank = size_or(config.get("kv_lora_rank"), 512, MAX_WIDTH)?;
    let scale = (1.0 / ((plain + rotated) as f64).sqrt()) as f32;
    let value_dim = size_or(config.get("v_head_dim"), defaults.value_dim, MAX_HEAD_DIM)?;
    let spec = LatentSpec {
        heads,
        query_rank,
        rank,
        plain,
        rotated,
        value_dim,
        eps: 1e-6,
        key_norm: false,
        latent_scale: 1.0,
        scale,
        rope: None,
        gates: LatentGates::None,
        sinks: false,
        temperature: None,
        head_growth: false,
        latents: KeyValues::Own,
        split: config.flag(SPLIT_LATENTS, false)?,
        window: None,
        sparse: None,
    };
    let widest = spec.query_width().max(spec.heads * spec.head_rows());
    if widest as u64 > MAX_WIDTH {
        let reason = format!("which with {} elements each no model has", widest / heads);
        return Err(config.need("num_attention_heads")?.invalid(reason));
    }
    Ok(spec)
}

/// A delta net, with a default number of heads.
pub(super) fn delta(
    config: &FamilyConfig,
    heads: usize,
    eps: f32,
) -> Result<DeltaSpec, ConfigError> {
    let heads = size_or(linear(config, "num_heads", "linear_num_heads")?, heads, MAX_COUNT)?;
    let dim = size_or(linear(config, "head_dim", "linear_head_dim")?, 128, MAX_HEAD_DIM)?;
    let entry = linear(config, "short_conv_kernel_size", "linear_conv_kernel_dim")?;
    let taps = size_or(entry, 4, MAX_COUNT)?;
    if let Some(entry) = entry
        && taps > MAX_TAPS
    {
        return Err(config.unsupported(entry, "up to 8"));
    }
    let inputs = DeltaInputs::PerElement { rank: dim, gate_latent: true };
    let key_heads = heads;
    let key_dim = dim;
    let value_dim = dim;
    let spec = DeltaSpec {
        heads,
        key_heads,
        key_dim,
        value_dim,
        taps,
        eps,
        inputs,
        gate: Activation::Sigmoid,
        bound: None,
        rates: heads,
        powers: config.is_gguf(),
    };
    if (spec.channels() as u64 > MAX_WIDTH || spec.recurrence().state_len() > MAX_STATE)
        && let Some(entry) = linear(config, "num_heads", "linear_num_heads")?.or(linear(
            config,
            "head_dim",
            "linear_head_dim",
        )?)
    {
        return Err(entry.invalid("which with the sizes of these heads no model has"));
    }
    Ok(spec)
}
