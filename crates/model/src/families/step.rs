//! Step 3.5 and 3.7: a gate for each head, more heads in windowed layers, and limits of activations by
//! layer.

use sws_format::{PieceKind, Value};
use sws_kernels::functional::Activation;

use super::common::{
    Common, FamilyDefaults, MAX_WIDTH, chosen, shared_width, switched_on, width, window,
};
use super::entries::{entry_in, positive_or, size_or};
use super::per_layer::{among, first_layers, numbers_of_layers};
use super::ranked::{RankedLayers, only, routed};
use super::single_layers::of_kind;
use super::{ATTENTION, ENDS, Family, MLP, NORMS, TensorRule, matrix, small, stacked};
use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::Rope;
use crate::spec::{
    AttentionGate, AttentionSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, QkNorm, RankedRouter, Router,
    SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["step3p5"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, OWN],
    spec,
};

const OWN: &[TensorRule] = &[
    small(PieceKind::Attention, Role::OutputGate, "self_attn.g_proj.weight"),
    small(PieceKind::Router, Role::Router, "moe.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "moe.router_bias"),
    stacked(Role::Gate, "moe.gate_proj.weight"),
    stacked(Role::Up, "moe.up_proj.weight"),
    stacked(Role::Down, "moe.down_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Gate, "share_expert.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "share_expert.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "share_expert.down_proj.weight"),
];

const THETA: f64 = 10_000.0;

/// All norms add one to their weights, as is already done in GGUF files. Lists may include layers for
/// multi-token prediction.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    for key in
        ["use_head_wise_attn_gate", "use_moe_router_bias", "norm_expert_weight", "use_qk_norm"]
    {
        switched_on(config, key)?;
    }
    only(config, "moe_router_activation", "sigmoid")?;
    let kv_heads = size_or(config.get("num_attention_groups"), 8, MAX_COUNT)?;
    let defaults = FamilyDefaults {
        eps: 1e-5,
        theta: THETA,
        kv_heads: Some(kv_heads),
        head_dim: Some(128),
        rotated: None,
        context: 128_000,
    };
    let mut common = Common::unrotated(config, &defaults)?;
    let layers = common.layers;
    if !config.is_gguf() {
        common.decoder.norm = common.decoder.norm.one_plus();
    }
    let windows = windows_of(config, layers)?;
    let mut ropes = [None; 2];
    for windowed in [false, true] {
        if let Some(l) = windows.iter().position(|window| window.is_some() == windowed) {
            ropes[usize::from(windowed)] = Some(common.ropes.len());
            let rope = rope(config, l, windowed, &common)?;
            common.ropes.push(rope);
        }
    }
    let bias = config.flag("attention_bias", false)?;
    let head_dim = common.attention.head_dim as f64;
    let scalar = positive_or(config.get("query_pre_attn_scalar"), head_dim)?;
    let full = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        scale: (1.0 / scalar.sqrt()) as f32,
        rope: ropes[0],
        gate: Some(AttentionGate::Own { per_head: true, activation: Activation::Sigmoid }),
        ..common.attention.clone()
    };
    let heads = windowed_heads(config, &full, &windows)?;
    let local = AttentionSpec { heads, rope: ropes[1], ..full.clone() };
    let expert_limits = limits(config, "swiglu_limits", layers)?;
    let shared_limits = limits(config, "swiglu_limits_shared", layers)?;
    let bias = config.flag("mlp_bias", false)?;
    let routed = routed_of(config, layers)?;
    let ffn =
        RankedLayers::of(config, routed, "intermediate_size", |config| experts(config, bias))?;
    common.model(|l| {
        let attention = if windows[l].is_some() { &local } else { &full };
        let mut ffn = ffn.ffn(l);
        match &mut ffn {
            Ffn::None => {}
            Ffn::Dense(mlp) => {
                mlp.bias = bias;
                mlp.activation = shared_limits[l];
            }
            Ffn::Moe(moe) => {
                moe.expert.activation = expert_limits[l];
                if let Some(shared) = &mut moe.shared {
                    shared.mlp.activation = shared_limits[l];
                }
            }
        }
        (AttentionSpec { window: windows[l], ..attention.clone() }, ffn)
    })
}

/// The window of each layer.
fn windows_of(config: &FamilyConfig, layers: usize) -> Result<Vec<Option<usize>>, ConfigError> {
    let window = window(config, None)?;
    let Some(entry) = config.get("layer_types") else { return Ok(vec![None; layers]) };
    let supported = "full_attention, and sliding_attention with a window";
    let mut windows = Vec::with_capacity(layers);
    for kind in first_layers(entry, layers)? {
        windows.push(match (kind.as_str(), window) {
            (Some("full_attention"), _) => None,
            (Some("sliding_attention"), Some(window)) => Some(window),
            _ => return Err(config.unsupported(entry, supported)),
        });
    }
    Ok(windows)
}

/// The rotary embedding of a layer. All layers of a kind share it. Only full layers have scaling.
fn rope(
    config: &FamilyConfig,
    layer: usize,
    windowed: bool,
    common: &Common<'_>,
) -> Result<Rope, ConfigError> {
    let kind = if windowed { "sliding_attention" } else { "full_attention" };
    let dim = common.attention.head_dim;
    let context = common.decoder.context;
    let default = (THETA, Some(1.0));
    if config.get("rope_parameters").is_some() {
        return Rope::of_kind(config, kind, dim, default, context);
    }
    let mut entries = match config.get("rope_scaling") {
        Some(entry) if !windowed => entry.object()?.clone(),
        _ => ConfigMap::new(),
    };
    for (key, list) in
        [("rope_theta", "rope_theta"), ("partial_rotary_factor", "partial_rotary_factors")]
    {
        if let Some(value) = of_layer(config, list, layer)? {
            entries.insert(key.to_owned(), value.clone());
        }
    }
    Rope::of_entries(config, &entries, dim, default, context)
}

/// The value of an entry for a layer: from a list, or the same for all layers.
fn of_layer<'a>(
    config: &FamilyConfig<'a>,
    key: &'static str,
    layer: usize,
) -> Result<Option<&'a Value>, ConfigError> {
    let Some(entry) = config.get(key) else { return Ok(None) };
    let value = match entry.value.as_list() {
        None => Some(entry.value),
        Some(list) => list.get(layer),
    };
    match value {
        Some(value) if value.is_null() => Ok(None),
        Some(value) => Ok(Some(value)),
        None => Err(entry.invalid("which must have an entry for each layer")),
    }
}

/// The number of query heads of windowed layers.
fn windowed_heads(
    config: &FamilyConfig,
    full: &AttentionSpec,
    windows: &[Option<usize>],
) -> Result<usize, ConfigError> {
    let other = config.get("attention_other_setting").map(ConfigEntry::object).transpose()?;
    for (key, number) in [("num_attention_groups", full.kv_heads), ("head_dim", full.head_dim)] {
        if let Some(entry) = entry_in(other, key)
            && entry.value.as_u64() != Some(number as u64)
        {
            return Err(config.unsupported(entry, "the same in all layers"));
        }
    }
    let windowed: Vec<bool> = windows.iter().map(Option::is_some).collect();
    let entry = of_kind(config, "num_attention_heads", &windowed, "num_sliding_attention_heads")?;
    let entry = entry.or(entry_in(other, "num_attention_heads"));
    let Some(entry) = entry else { return Ok(full.heads) };
    let heads = entry.size(MAX_WIDTH / full.head_dim as u64)?;
    if !heads.is_multiple_of(full.kv_heads) {
        let reason =
            format!("which is not a multiple of the {} key and value heads", full.kv_heads);
        return Err(entry.invalid(reason));
    }
    Ok(heads)
}

/// The activation of each layer. A limit of 0 means no limit.
pub(super) fn limits(
    config: &FamilyConfig,
    key: &'static str,
    layers: usize,
) -> Result<Vec<Activation>, ConfigError> {
    let Some(entry) = config.get(key) else { return Ok(vec![Activation::Silu; layers]) };
    let mut activations = Vec::with_capacity(layers);
    for value in first_layers(entry, layers)? {
        activations.push(match value.as_f64() {
            _ if value.is_null() => Activation::Silu,
            Some(0.0) => Activation::Silu,
            _ => {
                let limit = ConfigEntry { key, value }.positive()? as f32;
                Activation::CappedSilu { limit }
            }
        });
    }
    Ok(activations)
}

/// True for each layer with experts; by default all except the first three.
fn routed_of(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let numbers = match config.get("moe_layers_enum") {
        Some(entry) if config.get("mlp_layer_types").is_none() => match entry.value.as_list() {
            Some(_) => numbers_of_layers(entry)?,
            None => numbers_in_words(entry)?,
        },
        _ => return routed(config, ("first_k_dense_replace", 3), layers),
    };
    Ok(among(&numbers, layers))
}

/// The numbers of layers in a string, with commas between them.
fn numbers_in_words(entry: ConfigEntry<'_>) -> Result<Vec<u64>, ConfigError> {
    let mut numbers = Vec::new();
    for number in entry.word()?.split(',').map(str::trim) {
        match number.parse() {
            Ok(number) => numbers.push(number),
            Err(_) if number.is_empty() => {}
            Err(_) => return Err(entry.invalid("which must list numbers of layers")),
        }
    }
    Ok(numbers)
}

fn experts(config: &FamilyConfig, bias: bool) -> Result<Ffn, ConfigError> {
    let scale = positive_or(config.get("moe_router_scaling_factor"), 1.0)?;
    let shared = shared_width(config, "share_expert_dim", 1280)?;
    let expert = MlpSpec::silu(width(config, "moe_intermediate_size")?);
    let router = Router::Ranked(RankedRouter { scale: scale as f32, ..RankedRouter::sigmoid() });
    let shared = Some(SharedSpec::added(MlpSpec { bias, ..MlpSpec::silu(shared) }));
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }))
}
