//! LongCat Flash: two latent attentions and two MLPs in a layer of the checkpoint. Experts read the
//! state before the first MLP and are added after the second; some choices return their input.

use sws_format::PieceKind;

use super::bailing::turned;
use super::common::{
    DecoderParts, FamilyDefaults, MAX_WIDTH, chosen, same_window, switched_off, switched_on, width,
};
use super::dots3::longer;
use super::kimi_linear::SIZES;
use super::ranked::{RANKED, RankedKeys, only, scale};
use super::{ENDS, EXPERTS, Family, TensorRule, matrix, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{
    Ffn, LatentSpec, Mixer, MlpSpec, ModelSpec, MoeSpec, RankedRouter, Renormalise, Router,
    RouterScores, SharedSpec,
};
use crate::spellings::{DENSE_OF_LONGCAT, EXPERT_OF_LONGCAT};

pub(super) const FAMILY: Family = Family {
    model_types: &["longcat_flash"],
    prefix: "model.",
    ends: ENDS,
    layer: &[LAYER, EXPERTS],
    spec,
};

const LAYER: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "input_layernorm.@.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "post_attention_layernorm.@.weight"),
    matrix(PieceKind::Attention, Role::QueryDown, "self_attn.@.q_a_proj.weight"),
    small(PieceKind::Attention, Role::QueryDownNorm, "self_attn.@.q_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::QueryUp, "self_attn.@.q_b_proj.weight"),
    matrix(PieceKind::Attention, Role::KvDown, "self_attn.@.kv_a_proj_with_mqa.weight"),
    small(PieceKind::Attention, Role::KvDownNorm, "self_attn.@.kv_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::KvUp, "self_attn.@.kv_b_proj.weight"),
    matrix(PieceKind::Attention, Role::Output, "self_attn.@.o_proj.weight"),
    matrix(PieceKind::Mlp, Role::Gate, "mlps.@.gate_proj.weight"),
    matrix(PieceKind::Mlp, Role::Up, "mlps.@.up_proj.weight"),
    matrix(PieceKind::Mlp, Role::Down, "mlps.@.down_proj.weight"),
    small(PieceKind::Router, Role::Router, "mlp.router.classifier.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.router.e_score_correction_bias"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 1e7,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 131_072,
};

const KEYS: RankedKeys = RankedKeys { scale: ("routed_scaling_factor", 6.0), ..RANKED };

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    for key in ["attention_bias", "router_bias", "norm_topk_prob"] {
        switched_off(config, key)?;
    }
    for key in ["mla_scale_q_lora", "mla_scale_kv_lora"] {
        switched_on(config, key)?;
    }
    only(config, "attention_method", "MLA")?;
    only(config, "zero_expert_type", "identity")?;
    let decoder = DecoderParts::read(config, &DEFAULTS)?;
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != decoder.heads
    {
        return Err(config.unsupported(entry, "as many as `num_attention_heads`"));
    }
    if let Some(entry) = config.get("num_layers").or(config.get("num_hidden_layers"))
        && !decoder.layers.is_multiple_of(2)
    {
        return Err(config.unsupported(entry, "an even number, of halves of layers"));
    }
    same_window(config, decoder.layers, None)?;
    let (latent, rope) = turned(config, &decoder, DEFAULTS.theta, &SIZES)?;
    // Latents are shorter than the state, and are scaled as if they were as long.
    let query_rank = config.size("q_lora_rank", MAX_WIDTH)?;
    let latent = LatentSpec {
        scale: (f64::from(latent.scale) * longer(decoder.hidden, query_rank)) as f32,
        latent_scale: longer(decoder.hidden, latent.rank) as f32,
        ..latent
    };
    let dense = mlp(config, DENSE_OF_LONGCAT)?;
    let expert = mlp(config, EXPERT_OF_LONGCAT)?;
    let (experts, top_k, identities) = choices(config)?;
    let router = Router::Ranked(RankedRouter {
        scores: RouterScores::Softmax,
        correction: true,
        groups: None,
        renormalise: Renormalise::None,
        scale: scale(config, &KEYS)?,
    });
    let moe = MoeSpec {
        identities,
        shared: Some(SharedSpec { is_mlp: true, ..SharedSpec::added(dense) }),
        added_later: true,
        ..MoeSpec::of((experts, top_k), expert, router)
    };
    decoder.model(vec![rope], |l| {
        let ffn = if l.is_multiple_of(2) { Ffn::Moe(moe) } else { Ffn::Dense(dense) };
        (Mixer::Latent(latent), ffn)
    })
}

/// An MLP whose width has one of two names.
fn mlp(config: &FamilyConfig, keys: [&'static str; 2]) -> Result<MlpSpec, ConfigError> {
    let entry = config.any(&keys).ok_or(ConfigError::MissingKey(keys[0]))?;
    Ok(MlpSpec::silu(width(config, entry.key)?))
}

/// The number of experts, of experts per token, and of identity choices.
fn choices(config: &FamilyConfig) -> Result<(usize, usize, usize), ConfigError> {
    let (experts, top_k) = chosen(config)?;
    let Some(entry) = config.get("zero_expert_num") else { return Ok((experts, top_k, 0)) };
    let identities = entry.count(MAX_COUNT)? as usize;
    if experts + identities > MAX_COUNT as usize {
        return Err(entry.invalid("and no router has so many rows"));
    }
    Ok((experts, top_k, identities))
}
