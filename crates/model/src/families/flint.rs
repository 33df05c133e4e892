//! Flint: the layout of Qwen3's experts beside a shared one without a gate, chosen by sigmoid, sinks
//! in all layers, and rotary embeddings in windowed layers only.

use sws_format::PieceKind;

use super::common::{
    Common, FamilyDefaults, chosen, shared_width, switched_off, width, window, windows,
};
use super::qwen_moe::{MOE, SHARED, routed};
use super::ranked::RankedLayers;
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{
    AttentionSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, QkNorm, RankedRouter, Renormalise, Router,
    SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["flint"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, SINKS, MLP, MOE, SHARED, EXPERTS],
    spec,
};

const SINKS: &[TensorRule] =
    &[small(PieceKind::Attention, Role::Sinks, "self_attn.softmax_offset")];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(4),
    head_dim: Some(128),
    rotated: None,
    context: 262_144,
};

/// By default the first two layers, every fourth one after them and the last have no window, and
/// the first two have no experts.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    switched_off(config, "use_sliding_window")?;
    let common = Common::read(config, &DEFAULTS)?;
    let layers = common.layers;
    let windowed: Vec<bool> =
        (0..layers).map(|l| l >= 2 && l % 4 != 1 && l != layers - 1).collect();
    let windows = windows(config, window(config, Some(513))?, &windowed)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        sinks: true,
        ..common.attention.clone()
    };
    let routed = routed(config, layers, &[0, 1])?;
    let layers = RankedLayers::of(config, routed, "intermediate_size", experts)?;
    common.model(|l| {
        let rope = windows[l].and(attention.rope);
        (AttentionSpec { window: windows[l], rope, ..attention.clone() }, layers.ffn(l))
    })
}

fn experts(config: &FamilyConfig) -> Result<Ffn, ConfigError> {
    let renormalise = match config.flag("norm_topk_prob", true)? {
        true => Renormalise::Sum { plus: 0.0 },
        false => Renormalise::None,
    };
    let router = RankedRouter { correction: false, renormalise, ..RankedRouter::sigmoid() };
    let shared = shared_width(config, "shared_expert_intermediate_size", 1024)?;
    let shared = Some(SharedSpec::added(MlpSpec::silu(shared)));
    let expert = MlpSpec::silu(width(config, "moe_intermediate_size")?);
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, Router::Ranked(router)) }))
}
