//! Gemma 4: longer heads in layers without a window, normed values, and experts beside a dense MLP.
//! Small models have per-layer inputs from a table, and layers that reuse the keys and values of
//! earlier ones.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, MAX_WIDTH, absent, chosen, width, window, windows};
use super::entries::{entry_in, optional_positive, positive_or, size_or};
use super::per_layer::all_but_every;
use super::single_layers::{SINGLE, of_kind};
use super::{ATTENTION, ENDS, Ends, Family, MLP, TensorRule, gemma, matrix, small, stacked};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::{INFINITE, MAX_HEAD_DIM, Rope};
use crate::spec::{
    AttentionExtras, AttentionSpec, Ffn, GateUp, KeyValues, LayerInputs, MlpSpec, ModelSpec,
    MoeSpec, QkNorm, Router, SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma4_text"],
    prefix: "model.",
    ends: Ends {
        others: &[
            (Role::Table, "embed_tokens_per_layer.weight"),
            (Role::LayerInputs, "per_layer_model_projection.weight"),
            (Role::LayerInputsNorm, "per_layer_projection_norm.weight"),
        ],
        ..ENDS
    },
    layer: &[gemma::NORMS, NORMS, ATTENTION, MOE, MLP, INPUTS],
    spec,
};

const NORMS: &[TensorRule] = &[
    small(PieceKind::Norms, Role::SharedPostNorm, "post_feedforward_layernorm_1.weight"),
    small(PieceKind::Norms, Role::ExpertsNorm, "pre_feedforward_layernorm_2.weight"),
    small(PieceKind::Norms, Role::ExpertsPostNorm, "post_feedforward_layernorm_2.weight"),
    small(PieceKind::Norms, Role::StateScale, "layer_scalar"),
];

const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::RouterNorm, "router.scale"),
    small(PieceKind::Router, Role::Router, "router.proj.weight"),
    small(PieceKind::Router, Role::RouterFactors, "router.per_expert_scale"),
    stacked(Role::GateUp, "experts.gate_up_proj"),
    stacked(Role::Down, "experts.down_proj"),
];

const INPUTS: &[TensorRule] = &[
    matrix(PieceKind::LayerInput, Role::LayerInputGate, "per_layer_input_gate.weight"),
    matrix(PieceKind::LayerInput, Role::LayerInputUp, "per_layer_projection.weight"),
    small(PieceKind::Norms, Role::LayerInputNorm, "post_per_layer_input_norm.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(4),
    head_dim: Some(256),
    rotated: None,
    context: 131_072,
};

/// A rotary embedding for each kind of layer.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    if let Some(entry) = config.get("use_bidirectional_attention")
        && entry.word()? == "all"
    {
        return Err(config.unsupported(entry, "vision"));
    }
    absent(config, "rope_scaling")?;
    let mut common = Common::unrotated(config, &DEFAULTS)?;
    let window = window(config, Some(512))?;
    let mut windows = windows(config, window, &all_but_every(6, common.layers))?;
    // The last layer never has a window, whatever the list says, as in transformers.
    windows[common.layers - 1] = None;
    let key_values = key_values(config, &windows)?;

    let bias = config.flag("attention_bias", false)?;
    let local = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        scale: 1.0,
        window,
        extras: AttentionExtras { value_norm: true, ..common.attention.extras },
        ..common.attention.clone()
    };
    let full = full(config, &local, &windows)?;
    let context = common.decoder.context;
    common.ropes = vec![
        Rope::of_kind(config, "sliding_attention", local.head_dim, (10_000.0, None), context)?,
        full_rope(config, full.head_dim, context, 0.25)?,
    ];
    common.decoder.residual = common.decoder.residual.normed(common.decoder.norm);
    common.decoder.residual.scaled_state = true;
    common.decoder.embedding_scale = (common.decoder.hidden as f64).sqrt() as f32;
    common.decoder.layer_inputs = layer_inputs(config, &common)?;
    common.decoder.logit_cap = optional_positive(config.get("final_logit_softcapping"))?;
    let mlp = width(config, "intermediate_size")?;
    let wide = match config.flag("use_double_wide_mlp", false)? {
        true => 2 * mlp,
        false => mlp,
    };
    let experts = match config.flag("enable_moe_block", false)? {
        false => None,
        true => {
            common.decoder.residual.split = true;
            let expert = gelu(width(config, "moe_intermediate_size")?);
            let expert = MlpSpec { gate_up: GateUp::Halves, ..expert };
            Some(MoeSpec::of(chosen(config)?, expert, Router::SoftmaxScaled))
        }
    };
    common.model(|l| {
        let attention = if windows[l].is_some() { &local } else { &full };
        let shares = matches!(key_values[l], KeyValues::Of(_));
        let attention = AttentionSpec { key_values: key_values[l], ..attention.clone() };
        (attention, ffn(if shares { wide } else { mlp }, experts))
    })
}

/// An MLP of this width, beside experts if there are any.
fn ffn(width: usize, experts: Option<MoeSpec>) -> Ffn {
    match experts {
        None => Ffn::Dense(gelu(width)),
        Some(moe) => {
            let shared = SharedSpec { is_mlp: true, ..SharedSpec::added(gelu(width)) };
            Ffn::Moe(MoeSpec { shared: Some(shared), ..moe })
        }
    }
}

fn gelu(width: usize) -> MlpSpec {
    MlpSpec { activation: Activation::GeluTanh, ..MlpSpec::silu(width) }
}

/// Number of first layers with keys and values of their own. Checkpoints contain unused ones for
/// the other layers.
pub(crate) fn layers_with_keys(config: &FamilyConfig) -> Result<u32, ConfigError> {
    let layers = config.layers()?;
    let shared = match config.get("num_kv_shared_layers") {
        Some(entry) if FAMILY.model_types.contains(&config.model_type()) => {
            entry.count(u64::from(layers))? as u32
        }
        _ => 0,
    };
    Ok(layers - shared)
}

/// The source of each layer's keys and values. The last layers use those of the last layer of the
/// same kind that has its own.
fn key_values(
    config: &FamilyConfig,
    windows: &[Option<usize>],
) -> Result<Vec<KeyValues>, ConfigError> {
    let (own, shared) = windows.split_at(layers_with_keys(config)? as usize);
    let mut key_values = vec![KeyValues::Own; windows.len()];
    for (l, window) in (own.len()..).zip(shared) {
        let Some(of) = own.iter().rposition(|it| it.is_some() == window.is_some()) else {
            let entry = config.need("num_kv_shared_layers")?;
            return Err(entry.invalid("which leaves no layer of a kind with keys of its own"));
        };
        (key_values[of], key_values[l]) = (KeyValues::Lent, KeyValues::Of(of));
    }
    Ok(key_values)
}

/// The per-layer inputs of tokens.
fn layer_inputs(
    config: &FamilyConfig,
    common: &Common<'_>,
) -> Result<Option<LayerInputs>, ConfigError> {
    let entry = config.need("hidden_size_per_layer_input")?;
    let width = match entry.count(MAX_WIDTH)? as usize {
        0 => return Ok(None),
        width if (width * common.layers) as u64 > MAX_WIDTH => {
            return Err(
                entry.invalid("with which rows of the table are wider than those of any model")
            );
        }
        width => width,
    };
    let vocab = common.decoder.vocab;
    let rows = match size_or(config.get("vocab_size_per_layer_input"), vocab, MAX_WIDTH)? {
        few if few < vocab => {
            let reason = format!("and each of the {vocab} tokens needs a row");
            return Err(config.need("vocab_size_per_layer_input")?.invalid(reason));
        }
        rows => rows,
    };
    Ok(Some(LayerInputs {
        width,
        rows,
        row_scale: (width as f64).sqrt() as f32,
        product_scale: (common.decoder.hidden as f64).powf(-0.5) as f32,
        scale: std::f32::consts::FRAC_1_SQRT_2,
        activation: Activation::GeluTanh,
    }))
}

/// The attention of layers without a window.
fn full(
    config: &FamilyConfig,
    local: &AttentionSpec,
    windows: &[Option<usize>],
) -> Result<AttentionSpec, ConfigError> {
    let full: Vec<bool> = windows.iter().map(Option::is_none).collect();
    let values_are_keys = config.flag("attention_k_eq_v", false)?;
    // If there are entries of single layers, the entries for full layers have no effect.
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
    let kv_heads = match kv_heads {
        Some(entry) if single || values_are_keys => match entry.size(MAX_COUNT)? {
            count if local.heads.is_multiple_of(count) => count,
            _ => return Err(entry.invalid("which does not divide the number of heads")),
        },
        _ => local.kv_heads,
    };
    let window = None;
    let rope = Some(1);
    let value_dim = head_dim;
    let local = local.clone();
    let extras = AttentionExtras { values_are_keys, ..local.extras };
    let full = AttentionSpec { kv_heads, head_dim, value_dim, window, rope, extras, ..local };
    if full.q_width() as u64 > MAX_WIDTH {
        let entry = match config.any(&["global_head_dim", "head_dim"]) {
            Some(entry) => entry,
            None => config.need("num_attention_heads")?,
        };
        return Err(entry.invalid("with which heads are wider than those of any model"));
    }
    Ok(full)
}

/// The rotary embedding of layers without a window. It spans the whole head, and the last angles
/// are zero.
pub(super) fn full_rope(
    config: &FamilyConfig,
    head_dim: usize,
    context: usize,
    share: f64,
) -> Result<Rope, ConfigError> {
    const KIND: &str = "full_attention";
    const THETA: f64 = 1e6;
    let given = match config.get("rope_parameters") {
        None => None,
        Some(given) => {
            let of_kind = entry_in(Some(given.object()?), KIND);
            Some(of_kind.ok_or(ConfigError::MissingKey(KIND))?.object()?)
        }
    };
    let kind = entry_in(given, "rope_type").or(entry_in(given, "type"));
    let kind = kind.map(ConfigEntry::word).transpose()?;
    if given.is_some() && kind != Some("proportional") {
        return Rope::of_kind(config, KIND, head_dim, (THETA, None), context);
    }
    let share = if given.is_some() { 1.0 } else { share };
    let share_entry = entry_in(given, "partial_rotary_factor");
    let share = positive_or(share_entry, share)?;
    let theta_entry = entry_in(given, "rope_theta");
    let mut rope = Rope::plain(positive_or(theta_entry, THETA)?, head_dim);
    let turned = (share * head_dim as f64 / 2.0) as usize;
    if turned > rope.inv_freq.len() {
        return Err(share_entry.ok_or(ConfigError::MissingKey(KIND))?.invalid("which is above 1"));
    }
    rope.inv_freq[turned..].fill(0.0);
    let factor_entry = entry_in(given, "factor");
    let factor = positive_or(factor_entry, 1.0)? as f32;
    for angle in &mut rope.inv_freq {
        *angle /= factor;
    }
    if !rope.is_finite(context) {
        let entry = theta_entry.or(factor_entry);
        return Err(entry.ok_or(ConfigError::MissingKey(KIND))?.invalid(INFINITE));
    }
    Ok(rope)
}
