//! Mellum 2: the experts of Qwen3, and a rotary embedding for each kind of layer.

use super::common::{Common, FamilyDefaults, absent, moe, window, windows, without_ropes_of_kinds};
use super::per_layer::has_any;
use super::ranked::{RankedLayers, routed};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, qwen_moe};
use crate::config::{ConfigError, FamilyConfig};
use crate::spec::{AttentionSpec, ModelSpec, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_types: &["mellum"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, qwen_moe::MOE, EXPERTS],
    spec,
};

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 500_000.0,
    kv_heads: Some(4),
    head_dim: Some(128),
    rotated: None,
    context: 131_072,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    absent(config, "rope_scaling")?;
    without_ropes_of_kinds(config, &["rope_theta"])?;
    let mut common = Common::unrotated(config, &DEFAULTS)?;
    let windows = windows(config, window(config, Some(1024))?, &vec![false; common.layers])?;
    let mut ropes = [None; 2];
    let kinds = [("full_attention", DEFAULTS.theta), ("sliding_attention", 10_000.0)];
    for (windowed, (kind, theta)) in kinds.into_iter().enumerate() {
        if has_any(&windows, windowed == 1) {
            ropes[windowed] = Some(common.add_rope(kind, theta, None)?);
        }
    }
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        ..common.attention.clone()
    };
    let renormalise = config.flag("norm_topk_prob", true)?;
    let routed = routed(config, ("first_k_dense_replace", 0), common.layers)?;
    let layers = RankedLayers::of(config, routed, "intermediate_size", |config| {
        moe(config, "moe_intermediate_size", renormalise, None)
    })?;
    common.model(|l| {
        let window = windows[l];
        let rope = ropes[usize::from(windows[l].is_some())];
        (AttentionSpec { window, rope, ..attention.clone() }, layers.ffn(l))
    })
}
