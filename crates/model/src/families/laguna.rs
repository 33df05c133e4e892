//! Laguna: a gate for each head, more heads in some layers, and a rotary embedding for each kind
//! of layer.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{
    Common, FamilyDefaults, absent, chosen, shared_width, switched_off, width, window, windows,
    without_ropes_of_kinds,
};
use super::entries::positive_or;
use super::per_layer::{has_any, heads_of_layers};
use super::ranked::{RankedLayers, routed};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, glm, qwen_moe, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{
    AttentionGate, AttentionSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, QkNorm, RankedRouter, Router,
    SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["laguna"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, OWN, MLP, qwen_moe::SHARED, glm::MOE, EXPERTS],
    spec,
};

/// The first rule for a role is used.
const OWN: &[TensorRule] = &[
    small(PieceKind::Attention, Role::OutputGate, "self_attn.g_proj.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.experts.e_score_correction_bias"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 500_000.0,
    kv_heads: Some(8),
    head_dim: Some(128),
    rotated: None,
    context: 131_072,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    switched_off(config, "moe_apply_router_weight_on_input")?;
    if let Some(entry) = config.get("moe_router_logit_softcapping")
        && entry.value.as_f64() != Some(0.0)
    {
        return Err(config.unsupported(entry, "0"));
    }
    let per_head = match config.get("gating") {
        None => true,
        Some(entry) => match (entry.value.as_bool(), entry.value.as_str()) {
            (Some(true), _) | (_, Some("per-head")) => true,
            (_, Some("per-element")) => false,
            _ => return Err(config.unsupported(entry, "true, per-head, per-element")),
        },
    };
    absent(config, "rope_scaling")?;
    without_ropes_of_kinds(config, &["rope_theta", "partial_rotary_factor"])?;
    let mut common = Common::unrotated(config, &DEFAULTS)?;
    let windows = windows(config, window(config, Some(512))?, &vec![false; common.layers])?;
    // If rotary entries are given without a share, the whole head is rotated.
    let share = if config.get("rope_parameters").is_some() { 1.0 } else { 0.5 };
    let mut ropes = [None; 2];
    let kinds = [("full_attention", DEFAULTS.theta, share), ("sliding_attention", 10_000.0, 1.0)];
    for (windowed, (kind, theta, share)) in kinds.into_iter().enumerate() {
        if has_any(&windows, windowed == 1) {
            ropes[windowed] = Some(common.add_rope(kind, theta, Some(share))?);
        }
    }
    let heads = heads_of_layers(config, "num_attention_heads_per_layer", &common)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        gate: Some(AttentionGate::Own { per_head, activation: Activation::Softplus }),
        ..common.attention.clone()
    };
    let routed = routed(config, ("first_k_dense_replace", 1), common.layers)?;
    let layers = RankedLayers::of(config, routed, "intermediate_size", experts)?;
    common.model(|l| {
        let window = windows[l];
        let rope = ropes[usize::from(windows[l].is_some())];
        let attention = AttentionSpec { heads: heads[l], window, rope, ..attention.clone() };
        (attention, layers.ffn(l))
    })
}

fn experts(config: &FamilyConfig) -> Result<Ffn, ConfigError> {
    let scale = positive_or(config.get("moe_routed_scaling_factor"), 1.0)?;
    let shared = shared_width(config, "shared_expert_intermediate_size", 512)?;
    let expert = MlpSpec::silu(width(config, "moe_intermediate_size")?);
    let router = Router::Ranked(RankedRouter { scale: scale as f32, ..RankedRouter::sigmoid() });
    let shared = Some(SharedSpec::added(MlpSpec::silu(shared)));
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }))
}
