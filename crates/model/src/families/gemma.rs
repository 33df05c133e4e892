//! Gemma 2 and 3: norms before and after each branch, with one plus their weights.

use sws_kernels::functional::Activation;
use sws_store::PieceKind;

use super::common::{Common, Defaults, switched_off, width, window, windows};
use super::{ATTENTION, ENDS, Family, MLP, Rule, small};
use crate::config::{Config, ConfigError, Entry, MAX_COUNT};
use crate::role::Role;
use crate::rope::Rope;
use crate::spec::{AttentionSpec, Ffn, MlpSpec, ModelSpec, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma2", "gemma3_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP],
    spec,
};

pub(super) const NORMS: &[Rule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "input_layernorm.weight"),
    small(PieceKind::Norms, Role::MixerPostNorm, "post_attention_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "pre_feedforward_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnPostNorm, "post_feedforward_layernorm.weight"),
];

/// Gemma 2 caps scores and logits, and has a window in every other layer. Gemma 3 has norms on
/// heads, a window in five layers of six, and a rotary embedding of its own for these.
fn spec(config: &Config) -> Result<ModelSpec, ConfigError> {
    let is_third = config.model_type() == "gemma3_text";
    let defaults = Defaults {
        eps: 1e-6,
        theta: if is_third { 1e6 } else { 10_000.0 },
        kv_heads: Some(4),
        head_dim: Some(256),
        rotated: None,
        context: if is_third { 131_072 } else { 8192 },
    };
    switched_off(config, "use_bidirectional_attention")?;
    let mut common = Common::unrotated(config, &defaults)?;
    let pattern = match is_third {
        true => {
            let keys = ["sliding_window_pattern", "_sliding_window_pattern"];
            config.any(&keys).map_or(Ok(6), |entry| entry.size(MAX_COUNT))?
        }
        false => 2,
    };
    let window = window(config, Some(4096))?;
    let windows = windows(config, common.layers, window, |l| !(l + 1).is_multiple_of(pattern))?;
    let full = common.add_rope("full_attention", defaults.theta, None)?;
    let windowed = if is_third { local_rope(config, &mut common)? } else { full };

    let cap = |key, default: Option<f64>| match config.raw(key) {
        None => Ok(default.map(|cap| cap as f32)),
        Some(_) => cap_of(config.get(key)),
    };
    common.decoder.norm = common.decoder.norm.one_plus();
    common.decoder.residual.post_norms = true;
    common.decoder.embedding_scale = (common.decoder.hidden as f64).sqrt() as f32;
    common.decoder.logit_cap = cap("final_logit_softcapping", (!is_third).then_some(30.0))?;
    let soft_cap = cap("attn_logit_softcapping", (!is_third).then_some(50.0))?;
    let scalar = config.get("query_pre_attn_scalar").map_or(Ok(256.0), Entry::positive)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: if is_third { QkNorm::PerHead } else { QkNorm::None },
        scale: (1.0 / scalar.sqrt()) as f32,
        soft_cap,
        ..common.attention.clone()
    };
    let width = width(config, "intermediate_size")?;
    let mlp = MlpSpec { activation: Activation::GeluTanh, ..MlpSpec::silu(width) };
    common.model(|l| {
        let rope = Some(if windows[l].is_some() { windowed } else { full });
        (AttentionSpec { window: windows[l], rope, ..attention.clone() }, Ffn::Dense(mlp))
    })
}

/// A cap, unless it is absent.
pub(super) fn cap_of(entry: Option<Entry<'_>>) -> Result<Option<f32>, ConfigError> {
    Ok(entry.map(Entry::positive).transpose()?.map(|cap| cap as f32))
}

/// The rotary embedding of layers with a window. Without one for each kind of layer, it has a base
/// of its own and no scaling.
fn local_rope(config: &Config, common: &mut Common<'_>) -> Result<usize, ConfigError> {
    const THETA: f64 = 10_000.0;
    let given = config.get("rope_parameters").map(Entry::object).transpose()?;
    if given.is_some_and(|given| given.values().any(|value| value.as_map().is_some())) {
        return common.add_rope("sliding_attention", THETA, None);
    }
    let entry = config.get("rope_local_base_freq");
    let rope = Rope::plain(entry.map_or(Ok(THETA), Entry::positive)?, common.attention.head_dim);
    if let Some(entry) = entry.filter(|_| rope.inv_freq.iter().any(|angle| !angle.is_finite())) {
        return Err(entry.invalid("by which angles of rotary embeddings become infinite"));
    }
    common.ropes.push(rope);
    Ok(common.ropes.len() - 1)
}
