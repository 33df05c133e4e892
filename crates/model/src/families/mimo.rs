//! MiMo V2 Flash: values shorter than keys, windowed layers with sinks and more KV heads, and the
//! experts of DeepSeek V3.

use sws_format::PieceKind;

use super::common::{
    Common, FamilyDefaults, MAX_WIDTH, absent, switched_off, switched_on, window, windows,
};
use super::entries::{optional_positive, positive_or, size_or};
use super::per_layer::{all_but_every, flags_of_layers, windows_where};
use super::ranked::{RANKED, RankedKeys, RankedLayers, moe, only, routed, sigmoid};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, glm, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::{INFINITE, MAX_HEAD_DIM, Rope};
use crate::spec::{AttentionExtras, AttentionSpec, ModelSpec, Norm, Router};
use crate::spellings::EPS_OF_MIMO;

pub(super) const FAMILY: Family = Family {
    model_types: &["mimo_v2_flash"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, SINKS, MLP, glm::MOE, EXPERTS],
    spec,
};

const SINKS: &[TensorRule] =
    &[small(PieceKind::Attention, Role::Sinks, "self_attn.attention_sink_bias")];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 5e6,
    kv_heads: Some(4),
    head_dim: Some(192),
    rotated: Some(0.334),
    context: 131_072,
};

/// The first layer and every sixth one are full. The configurations on the hub list windowed layers
/// and layers with experts as 0 and 1.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    const KEYS: RankedKeys = RankedKeys { shared: ("n_shared_experts", 0), ..RANKED };
    only(config, "scoring_func", "sigmoid")?;
    only(config, "topk_method", "noaux_tc")?;
    only(config, "attention_projection_layout", "split")?;
    switched_on(config, "add_swa_attention_sink_bias")?;
    switched_off(config, "add_full_attention_sink_bias")?;
    absent(config, "rope_scaling")?;
    let mut common = Common::unrotated(config, &DEFAULTS)?;
    if let Some(entry) = config.any(&EPS_OF_MIMO) {
        common.decoder.norm = Norm::Rms { eps: entry.epsilon()? as f32, one_plus: false };
    }
    let windows = windows_of(config, common.layers)?;
    let ropes = ropes(config, &mut common)?;

    let value_dim = size_or(config.get("v_head_dim"), 128, MAX_HEAD_DIM)?;
    let value_scale = match config.raw("attention_value_scale") {
        None => Some(0.707),
        Some(_) => optional_positive(config.get("attention_value_scale"))?,
    };
    let full = AttentionSpec {
        value_dim,
        qkv_bias: config.flag("attention_bias", false)?,
        rope: Some(ropes[0]),
        extras: AttentionExtras { value_scale, ..common.attention.extras },
        ..common.attention.clone()
    };
    if full.heads.saturating_mul(value_dim) as u64 > MAX_WIDTH {
        return Err(config.need("v_head_dim")?.invalid("which with so many heads no model has"));
    }
    let same = [
        ("swa_num_attention_heads", full.heads),
        ("swa_head_dim", full.head_dim),
        ("swa_v_head_dim", value_dim),
    ];
    for (key, number) in same {
        if let Some(entry) = config.get(key)
            && entry.value.as_u64() != Some(number as u64)
        {
            return Err(config.unsupported(entry, "the same in all layers"));
        }
    }
    let entry = config.get("swa_num_key_value_heads");
    let kv_heads = size_or(entry, 2 * full.kv_heads, MAX_COUNT)?;
    if !full.heads.is_multiple_of(kv_heads) {
        let entry = match entry {
            Some(entry) => entry,
            None => config.need("num_attention_heads")?,
        };
        return Err(entry.invalid("which leaves windowed layers uneven groups of heads"));
    }
    let local = AttentionSpec { kv_heads, sinks: true, rope: Some(ropes[1]), ..full.clone() };

    let router = Router::Ranked(sigmoid(config, &KEYS)?);
    let routed = match config.get("moe_layer_freq") {
        Some(entry) if entry.list().is_ok() => flags_of_layers(entry, common.layers)?,
        _ => routed(config, KEYS.dense, common.layers)?,
    };
    let layers =
        RankedLayers::of(config, routed, "intermediate_size", |config| moe(config, &KEYS, router))?;
    common.model(|l| {
        let attention = if windows[l].is_some() { &local } else { &full };
        (AttentionSpec { window: windows[l], ..attention.clone() }, layers.ffn(l))
    })
}

/// The window of each layer. `sliding_window_size` does not count the query itself.
fn windows_of(config: &FamilyConfig, layers: usize) -> Result<Vec<Option<usize>>, ConfigError> {
    let size = match config.get("sliding_window_size") {
        Some(entry) => Some(entry.size(1 << 32)? + 1),
        None => window(config, Some(129))?,
    };
    match config.get("hybrid_layer_pattern") {
        Some(entry) if config.get("layer_types").is_none() => {
            Ok(windows_where(size, &flags_of_layers(entry, layers)?))
        }
        _ => {
            let mut windowed = all_but_every(6, layers);
            windowed[0] = false;
            windows(config, size, &windowed)
        }
    }
}

/// The rotary embeddings of full layers and of windowed layers. The latter may have only a base.
fn ropes(config: &FamilyConfig, common: &mut Common<'_>) -> Result<[usize; 2], ConfigError> {
    const THETA: f64 = 10_000.0;
    if config.get("rope_parameters").is_some() {
        // The whole head is rotated, unless the entries give a share.
        let full = common.add_rope("full_attention", DEFAULTS.theta, Some(1.0))?;
        return Ok([full, common.add_rope("sliding_attention", THETA, Some(1.0))?]);
    }
    // Transformers ignores these entries, and computes with the values of the published model.
    for (key, value) in [
        ("rope_theta", DEFAULTS.theta),
        ("swa_rope_theta", THETA),
        ("partial_rotary_factor", 0.334),
    ] {
        if let Some(entry) = config.get(key)
            && entry.value.as_f64() != Some(value)
        {
            return Err(config.unsupported(entry, "`rope_parameters` for each kind of layer"));
        }
    }
    let full = common.add_rope("full_attention", DEFAULTS.theta, DEFAULTS.rotated)?;
    let entry = config.get("swa_rope_theta");
    let theta = positive_or(entry, THETA)?;
    let local = Rope::plain(theta, common.ropes[full].dim);
    if let Some(entry) = entry
        && !local.is_finite(common.decoder.context)
    {
        return Err(entry.invalid(INFINITE));
    }
    common.ropes.push(local);
    Ok([full, full + 1])
}
