//! Gemma 2 and 3: norms before and after each branch, with factors of one plus their weights.

use sws_format::{PieceKind, Value};
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, absent, switched_off, width, window, windows};
use super::entries::{entry_in, optional_positive, positive_or, size_or};
use super::per_layer::all_but_every;
use super::{ATTENTION, ENDS, Family, MLP, TensorRule, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::{INFINITE, Rope};
use crate::spec::{AttentionExtras, AttentionSpec, Ffn, MlpSpec, ModelSpec, QkNorm};
use crate::spellings::PATTERN;

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma2", "gemma3_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP],
    spec,
};

pub(super) const NORMS: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "input_layernorm.weight"),
    small(PieceKind::Norms, Role::MixerPostNorm, "post_attention_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "pre_feedforward_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnPostNorm, "post_feedforward_layernorm.weight"),
];

/// Gemma 2 caps scores and logits, and has a window in every other layer. Gemma 3 has norms on
/// heads, a window in five layers of six, and a rotary embedding of its own for these.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let is_third = config.model_type() == "gemma3_text";
    let defaults = FamilyDefaults {
        eps: 1e-6,
        theta: if is_third { 1e6 } else { 10_000.0 },
        kv_heads: Some(4),
        head_dim: Some(256),
        rotated: None,
        context: if is_third { 131_072 } else { 8192 },
    };
    switched_off(config, "use_bidirectional_attention")?;
    let mut common = match is_third {
        true => Common::unrotated(config, &defaults)?,
        false => Common::read(config, &defaults)?,
    };
    if is_third {
        // Entries for each kind of layer. The older entries apply to full layers.
        if let Some(entry) = config.get("rope_parameters") {
            absent(config, "rope_scaling")?;
            let of_kinds = ["full_attention", "sliding_attention"];
            if entry.object()?.keys().any(|key| !of_kinds.contains(&key.as_str())) {
                return Err(config.unsupported(entry, "full_attention and sliding_attention"));
            }
        }
        // The class has both entries, but attention ignores this one.
        absent(config, "attn_logit_softcapping")?;
        if config.wrapper().is_some() {
            absent(config, "final_logit_softcapping")?;
        }
    }
    let pattern = match is_third {
        true => size_or(config.any(&PATTERN), 6, MAX_COUNT)?,
        false => 2,
    };
    let window = window(config, Some(4096))?;
    if is_third && window.is_none() {
        // Without windows, rotary embeddings would still differ between layers.
        let entry = ConfigEntry { key: "sliding_window", value: &Value::Null };
        return Err(config.unsupported(entry, "a number of positions"));
    }
    let windows = windows(config, window, &all_but_every(pattern, common.layers))?;
    let mut full = 0;
    let mut windowed = 0;
    if is_third {
        full = common.add_rope("full_attention", defaults.theta, None)?;
        windowed = local_rope(config, &mut common)?;
    }

    if !config.is_gguf() {
        common.decoder.norm = common.decoder.norm.one_plus();
    }
    common.decoder.residual = common.decoder.residual.normed(common.decoder.norm);
    common.decoder.embedding_scale = (common.decoder.hidden as f64).sqrt() as f32;
    let caps = if is_third { [None, None] } else { [Some(30.0), Some(50.0)] };
    common.decoder.logit_cap = cap_or(config, "final_logit_softcapping", caps[0])?;
    let soft_cap = cap_or(config, "attn_logit_softcapping", caps[1])?;
    let scalar = positive_or(config.get("query_pre_attn_scalar"), 256.0)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: if is_third { QkNorm::PerHead } else { QkNorm::None },
        scale: (1.0 / scalar.sqrt()) as f32,
        extras: AttentionExtras { soft_cap, ..common.attention.extras },
        ..common.attention.clone()
    };
    let width = width(config, "intermediate_size")?;
    let mlp = MlpSpec { activation: Activation::GeluTanh, ..MlpSpec::silu(width) };
    common.model(|l| {
        let rope = Some(if windows[l].is_some() { windowed } else { full });
        (AttentionSpec { window: windows[l], rope, ..attention.clone() }, Ffn::Dense(mlp))
    })
}

/// A cap, where null means none, or the default of an absent entry.
fn cap_or(
    config: &FamilyConfig,
    key: &'static str,
    default: Option<f32>,
) -> Result<Option<f32>, ConfigError> {
    match config.raw(key) {
        None => Ok(default),
        Some(_) => optional_positive(config.get(key)),
    }
}

/// The rotary embedding of layers with a window. Unless its entries set a base, it has its own
/// base, and no scaling.
fn local_rope(config: &FamilyConfig, common: &mut Common<'_>) -> Result<usize, ConfigError> {
    const KIND: &str = "sliding_attention";
    const THETA: f64 = 10_000.0;
    let given = config.get("rope_parameters").map(ConfigEntry::object).transpose()?;
    let given = entry_in(given, KIND).map(ConfigEntry::object).transpose()?;
    if entry_in(given, "rope_theta").is_some() {
        return common.add_rope(KIND, THETA, None);
    }
    if let Some(kind) = entry_in(given, "rope_type").or(entry_in(given, "type"))
        && kind.word()? != "default"
    {
        return Err(config.unsupported(kind, "default without a `rope_theta` beside it"));
    }
    let entry = config.get("rope_local_base_freq");
    let rope = Rope::plain(positive_or(entry, THETA)?, common.attention.head_dim);
    if let Some(entry) = entry
        && !rope.is_finite(common.decoder.context)
    {
        return Err(entry.invalid(INFINITE));
    }
    common.ropes.push(rope);
    Ok(common.ropes.len() - 1)
}
