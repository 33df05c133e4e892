//! Gemma 4: longer heads in layers without a window, values that are normed, and experts beside a
//! dense MLP.

use sws_kernels::functional::Activation;
use sws_store::PieceKind;

use super::common::{Common, Defaults, MAX_WIDTH, absent, chosen, width, window, windows};
use super::per_layer::{SINGLE, of_kind};
use super::{ATTENTION, ENDS, Family, MLP, Rule, gemma, small, stacked};
use crate::config::{Config, ConfigError, Entry, MAX_COUNT};
use crate::role::Role;
use crate::rope::{INFINITE, MAX_HEAD_DIM, Rope};
use crate::spec::{
    AttentionSpec, Ffn, GateUp, MlpSpec, ModelSpec, MoeSpec, QkNorm, Router, SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma4_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[gemma::NORMS, NORMS, ATTENTION, MOE, MLP],
    spec,
};

const NORMS: &[Rule] = &[
    small(PieceKind::Norms, Role::SharedPostNorm, "post_feedforward_layernorm_1.weight"),
    small(PieceKind::Norms, Role::ExpertsNorm, "pre_feedforward_layernorm_2.weight"),
    small(PieceKind::Norms, Role::ExpertsPostNorm, "post_feedforward_layernorm_2.weight"),
    small(PieceKind::Norms, Role::StateScale, "layer_scalar"),
];

const MOE: &[Rule] = &[
    small(PieceKind::Router, Role::RouterNorm, "router.scale"),
    small(PieceKind::Router, Role::Router, "router.proj.weight"),
    small(PieceKind::Router, Role::RouterFactors, "router.per_expert_scale"),
    stacked(Role::GateUp, "experts.gate_up_proj"),
    stacked(Role::Down, "experts.down_proj"),
];

const DEFAULTS: Defaults = Defaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(4),
    head_dim: Some(256),
    rotated: None,
    context: 131_072,
};

/// A rotary embedding for each kind of layer. Models with a table of embeddings for each layer, or
/// layers that share keys and values, are refused.
fn spec(config: &Config) -> Result<ModelSpec, ConfigError> {
    let per_layer = config.need("hidden_size_per_layer_input")?;
    for entry in [Some(per_layer), config.get("num_kv_shared_layers")].into_iter().flatten() {
        if entry.count(u64::MAX)? != 0 {
            return Err(config.unsupported(entry, "0, as in models with experts"));
        }
    }
    if let Some(entry) = config.get("use_bidirectional_attention")
        && entry.word()? == "all"
    {
        return Err(config.unsupported(entry, "vision"));
    }
    absent(config, "rope_scaling")?;
    let mut common = Common::unrotated(config, &DEFAULTS)?;
    let window = window(config, Some(512))?;
    let mut windows = windows(config, common.layers, window, |l| !(l + 1).is_multiple_of(6))?;
    // As in transformers, whatever the list says.
    windows[common.layers - 1] = None;

    let bias = config.flag("attention_bias", false)?;
    let local = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        value_norm: true,
        scale: 1.0,
        window,
        ..common.attention.clone()
    };
    let full = full(config, &local, &windows)?;
    let context = common.decoder.context;
    common.ropes = vec![
        Rope::of_kind(config, "sliding_attention", local.head_dim, (10_000.0, None), context)?,
        full_rope(config, full.head_dim, context)?,
    ];
    common.decoder.residual.post_norms = true;
    common.decoder.residual.scaled_state = true;
    common.decoder.embedding_scale = (common.decoder.hidden as f64).sqrt() as f32;
    common.decoder.logit_cap = gemma::cap_of(config.get("final_logit_softcapping"))?;
    let gelu = |width| MlpSpec { activation: Activation::GeluTanh, ..MlpSpec::silu(width) };
    let mlp = gelu(width(config, "intermediate_size")?);
    let ffn = match config.flag("enable_moe_block", false)? {
        false => Ffn::Dense(mlp),
        true => {
            common.decoder.residual.split = true;
            let expert = gelu(width(config, "moe_intermediate_size")?);
            let expert = MlpSpec { gate_up: GateUp::Halves, ..expert };
            Ffn::Moe(MoeSpec {
                shared: Some(SharedSpec { is_mlp: true, ..SharedSpec::added(mlp) }),
                ..MoeSpec::of(chosen(config)?, expert, Router::SoftmaxScaled)
            })
        }
    };
    common.model(|l| match windows[l] {
        Some(_) => (local.clone(), ffn),
        None => (full.clone(), ffn),
    })
}

/// The attention of layers without a window.
fn full(
    config: &Config,
    local: &AttentionSpec,
    windows: &[Option<usize>],
) -> Result<AttentionSpec, ConfigError> {
    let full: Vec<bool> = windows.iter().map(Option::is_none).collect();
    let values_are_keys = config.flag("attention_k_eq_v", false)?;
    // Beside entries of single layers, those of full layers mean nothing.
    let single = config.get(SINGLE).is_some();
    let head_dim = match of_kind(config, "head_dim", &full, "global_head_dim")? {
        None if single => local.head_dim,
        None => 512,
        Some(entry) => match entry.size(MAX_HEAD_DIM)? {
            odd if odd % 2 == 1 => {
                return Err(entry.invalid("and a rotary embedding turns pairs: it must be even"));
            }
            even => even,
        },
    };
    let kv_heads = of_kind(config, "num_key_value_heads", &full, "num_global_key_value_heads")?;
    let kv_heads = match kv_heads.filter(|_| single || values_are_keys) {
        None => local.kv_heads,
        Some(entry) => match entry.size(MAX_COUNT)? {
            count if local.heads.is_multiple_of(count) => count,
            _ => return Err(entry.invalid("which does not divide the number of heads")),
        },
    };
    let (window, rope) = (None, Some(1));
    let (value_dim, local) = (head_dim, local.clone());
    let full =
        AttentionSpec { kv_heads, head_dim, value_dim, values_are_keys, window, rope, ..local };
    if full.q_width() as u64 > MAX_WIDTH {
        let entry = config.any(&["global_head_dim", "head_dim"]);
        let entry = entry.map_or_else(|| config.need("num_attention_heads"), Ok)?;
        return Err(entry.invalid("with which heads are wider than those of any model"));
    }
    Ok(full)
}

/// The rotary embedding of layers without a window: angles over the whole head, of which the last
/// are zero.
fn full_rope(config: &Config, head_dim: usize, context: usize) -> Result<Rope, ConfigError> {
    const KIND: &str = "full_attention";
    const THETA: f64 = 1e6;
    let given = match config.get("rope_parameters") {
        None => None,
        Some(given) => {
            let value = given.object()?.get(KIND).filter(|value| !value.is_null());
            let value = value.ok_or(ConfigError::MissingKey(KIND))?;
            Some(Entry { key: KIND, value }.object()?)
        }
    };
    let entry = |key| {
        let value = given.and_then(|given| given.get(key)).filter(|value| !value.is_null());
        value.map(|value| Entry { key, value })
    };
    let kind = entry("rope_type").or(entry("type")).map(Entry::word).transpose()?;
    if given.is_some() && kind != Some("proportional") {
        return Rope::of_kind(config, KIND, head_dim, (THETA, None), context);
    }
    let number = |key, default| entry(key).map_or(Ok(default), Entry::positive);
    let share = number("partial_rotary_factor", if given.is_some() { 1.0 } else { 0.25 })?;
    let mut rope = Rope::plain(number("rope_theta", THETA)?, head_dim);
    let turned = (share * head_dim as f64 / 2.0) as usize;
    if turned > rope.inv_freq.len() {
        let entry = entry("partial_rotary_factor");
        return Err(entry.ok_or(ConfigError::MissingKey(KIND))?.invalid("which is above 1"));
    }
    rope.inv_freq[turned..].fill(0.0);
    let factor = number("factor", 1.0)? as f32;
    rope.inv_freq.iter_mut().for_each(|angle| *angle /= factor);
    if !rope.is_finite(context) {
        let entry = entry("rope_theta").or(entry("factor"));
        return Err(entry.ok_or(ConfigError::MissingKey(KIND))?.invalid(INFINITE));
    }
    Ok(rope)
}
