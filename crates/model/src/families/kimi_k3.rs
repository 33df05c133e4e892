//! Kimi K3: Kimi Linear with a residual that keeps earlier states, experts that read a latent,
//! gated latent attention, and an activation of its own. Its language model has the same model
//! type.

use sws_format::PieceKind;
use sws_kernels::functional::{Activation, MAX_STATES};

use super::bailing::bound_of;
use super::common::{DecoderParts, MAX_WIDTH, switched_off, switched_on};
use super::entries::{optional_positive, optional_size, positive_or};
use super::kimi_linear::{DEFAULTS, SIZES, delta, full, latent, linear};
use super::ranked::{RANKED, RankedKeys, RankedLayers, only, sigmoid};
use super::{TensorRule, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{
    DeltaInputs, DeltaSpec, Ffn, KeptStates, LatentGates, LatentNorm, LatentSpec, Mixer, ModelSpec,
};

pub(super) const LAYER: &[TensorRule] = &[
    small(PieceKind::Attention, Role::MixerMixNorm, "self_attention_res_norm.weight"),
    small(PieceKind::Attention, Role::MixerMix, "self_attention_res_proj.weight"),
    small(PieceKind::Router, Role::FfnMixNorm, "mlp_res_norm.weight"),
    small(PieceKind::Router, Role::FfnMix, "mlp_res_proj.weight"),
    matrix(PieceKind::Attention, Role::OutputGate, "self_attn.g_proj.weight"),
    matrix(
        PieceKind::SharedExpert,
        Role::ExpertsDown,
        "block_sparse_moe.routed_expert_down_proj.weight",
    ),
    small(PieceKind::SharedExpert, Role::LatentNorm, "block_sparse_moe.routed_expert_norm.weight"),
    matrix(
        PieceKind::SharedExpert,
        Role::ExpertsUp,
        "block_sparse_moe.routed_expert_up_proj.weight",
    ),
];

pub(super) const OUTSIDE: &[(Role, &str)] = &[
    (Role::HeadMixNorm, "output_attn_res_norm.weight"),
    (Role::HeadMix, "output_attn_res_proj.weight"),
];

const KEYS: RankedKeys = RankedKeys {
    dense: ("first_k_dense_replace", 0),
    shared: ("num_shared_experts", 0),
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
    only(config, "topk_method", "noaux_tc")?;
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != decoder.heads
    {
        return Err(config.unsupported(entry, "as many as `num_attention_heads`"));
    }
    let count = decoder.layers;
    let eps = decoder.norm.eps();
    decoder.kept = kept(config, "attn_res_block_size", (None, count))?.map(every);
    let full = full(config, count)?;
    let latent = match full.contains(&true) {
        true => Some(gated(config, decoder.heads, eps)?),
        false => None,
    };
    let delta = match full.contains(&false) {
        true => Some(bounded(config, eps)?),
        false => None,
    };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, count)?;
    let layers = layers.activated(activation(config)?);
    let width = latent_of_experts(config, decoder.hidden)?;
    let norm = config.flag("latent_moe_use_norm", false)?;
    decoder.model(Vec::new(), |l| {
        let mixer = match full[l] {
            true => latent.map(Mixer::Latent),
            false => delta.map(Mixer::Delta),
        };
        let mut ffn = layers.ffn(l);
        if let Ffn::Moe(moe) = &mut ffn {
            moe.latent = width;
            if norm && width.is_some() {
                moe.latent_norm = LatentNorm::OfSum;
            }
        }
        (mixer.expect("every layer is of one kind or the other"), ffn)
    })
}

fn every(every: usize) -> KeptStates {
    KeptStates { every, normed: None }
}

/// The number of layers from one kept state to the next; the default where nothing is said.
pub(super) fn kept(
    config: &FamilyConfig,
    key: &'static str,
    (default, layers): (Option<usize>, usize),
) -> Result<Option<usize>, ConfigError> {
    let given = config.get(key);
    let Some(every) = optional_size(given, MAX_COUNT)?.or(default) else {
        return Ok(None);
    };
    if layers.div_ceil(every) >= MAX_STATES {
        let entry = match given {
            Some(entry) => entry,
            None => config.need("num_hidden_layers")?,
        };
        return Err(config.unsupported(entry, "such that fewer than 64 states are kept"));
    }
    Ok(Some(every))
}

/// Latent attention without rotation, with a gate for each element of a value.
fn gated(config: &FamilyConfig, heads: usize, eps: f32) -> Result<LatentSpec, ConfigError> {
    let gates = match config.flag("mla_use_output_gate", false)? {
        true => LatentGates::PerElement,
        false => LatentGates::None,
    };
    Ok(LatentSpec { gates, eps, ..latent(config, heads, &SIZES)? })
}

fn bounded(config: &FamilyConfig, eps: f32) -> Result<DeltaSpec, ConfigError> {
    let spec = delta(config, 32, eps)?;
    let full_rank = linear(config, "use_full_rank_gate", "use_full_rank_gate")?;
    let gate_latent = match full_rank {
        Some(entry) => !entry.flag()?,
        None => true,
    };
    let bound = linear(config, "gate_lower_bound", "gate_lower_bound")?;
    Ok(DeltaSpec {
        inputs: DeltaInputs::PerElement { rank: spec.key_dim, gate_latent },
        bound: bound.map(bound_of).transpose()?,
        // The number in published models. `ModelSpec::for_weights` corrects it by the weights.
        rates: if config.wrapper().is_some() { spec.heads.max(spec.key_dim) } else { spec.heads },
        ..spec
    })
}

fn activation(config: &FamilyConfig) -> Result<Activation, ConfigError> {
    match config.get("hidden_act").map(ConfigEntry::word).transpose()? {
        Some("situ") => {
            let gate = positive_or(config.get("activation_situ_beta"), 1.0)? as f32;
            let up = optional_positive(config.get("activation_situ_linear_beta"))?;
            Ok(Activation::Situ { gate, up: up.unwrap_or(f32::INFINITY) })
        }
        _ => Ok(Activation::Silu),
    }
}

/// Size of the latent that experts read.
fn latent_of_experts(config: &FamilyConfig, hidden: usize) -> Result<Option<usize>, ConfigError> {
    let Some(entry) = config.get("routed_expert_hidden_size") else { return Ok(None) };
    match entry.size(MAX_WIDTH)? {
        width if width > hidden => {
            Err(entry.invalid("which is more than the elements of the hidden state"))
        }
        width => Ok(Some(width)),
    }
}
