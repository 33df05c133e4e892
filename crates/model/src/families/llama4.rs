//! Llama 4: attention within chunks, layers without rotary embeddings in which queries grow with
//! the position, and experts whose inputs are weighted.

use sws_format::PieceKind;
use sws_kernels::functional::RopePairs;

use super::common::{Common, FamilyDefaults, MAX_WIDTH, chosen, full_layers, width};
use super::entries::{optional_size, positive_or, size_or};
use super::per_layer::{all_but_every, among, every_nth, flags_of_layers, numbers_of_layers};
use super::ranked::RankedLayers;
use super::{ATTENTION, ENDS, Family, NORMS, TensorRule, expert, matrix, small, stacked};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{
    AttentionExtras, AttentionSpec, Ffn, GateUp, MlpSpec, ModelSpec, MoeSpec, QkNorm, RankedRouter,
    Renormalise, Router, RouterScores, SharedSpec, Temperature,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["llama4_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, FEED_FORWARD],
    spec,
};

const FEED_FORWARD: &[TensorRule] = &[
    matrix(PieceKind::Mlp, Role::Gate, "feed_forward.gate_proj.weight"),
    matrix(PieceKind::Mlp, Role::Up, "feed_forward.up_proj.weight"),
    matrix(PieceKind::Mlp, Role::Down, "feed_forward.down_proj.weight"),
    small(PieceKind::Router, Role::Router, "feed_forward.router.weight"),
    matrix(PieceKind::SharedExpert, Role::Gate, "feed_forward.shared_expert.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "feed_forward.shared_expert.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "feed_forward.shared_expert.down_proj.weight"),
    stacked(Role::GateUp, "feed_forward.experts.gate_up_proj").transposed(),
    stacked(Role::Down, "feed_forward.experts.down_proj").transposed(),
    // Names in GGUF files, which store gates and ups separately.
    expert(Role::Gate, "feed_forward.experts.#.gate_proj.weight"),
    expert(Role::Up, "feed_forward.experts.#.up_proj.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 500_000.0,
    kv_heads: Some(8),
    head_dim: Some(128),
    rotated: None,
    context: 131_072,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = Common::read(config, &DEFAULTS)?;
    common.ropes[0].pairs = RopePairs::Interleaved;
    let layers = common.layers;
    let rotated = match config.get("no_rope_layers") {
        Some(entry) if !is_empty(entry) => flags_of_layers(entry, layers)?,
        _ => {
            let interval = size_or(config.get("no_rope_layer_interval"), 4, MAX_COUNT)?;
            all_but_every(interval, layers)
        }
    };
    let supported = "full_attention and chunked_attention";
    let full = match full_layers(config, layers, "chunked_attention", supported)? {
        Some(full) => full,
        None => rotated.iter().map(|rotated| !rotated).collect(),
    };
    let chunk = match config.raw("attention_chunk_size") {
        None => Some(8192),
        Some(_) => optional_size(config.get("attention_chunk_size"), MAX_WIDTH)?,
    };
    let qk_norm = match config.flag("use_qk_norm", true)? {
        true => QkNorm::Unweighted,
        false => QkNorm::None,
    };
    let temperature = temperature(config)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, ..common.attention.clone() };
    let routed = routed(config, layers)?;
    let ffn = RankedLayers::of(config, routed, "intermediate_size_mlp", experts)?;
    common.model(|l| {
        let window = if full[l] { None } else { chunk };
        let temperature = if rotated[l] { None } else { temperature };
        let extras = AttentionExtras { aligned: true, temperature, ..attention.extras };
        let attention = AttentionSpec { window, extras, ..attention.clone() };
        let attention = match rotated[l] {
            true => AttentionSpec { qk_norm, ..attention },
            false => AttentionSpec { rope: None, ..attention },
        };
        (attention, ffn.ffn(l))
    })
}

fn is_empty(entry: ConfigEntry<'_>) -> bool {
    matches!(entry.value.as_list(), Some([]))
}

/// The growth of queries in layers without a rotary embedding. In some files the switch is a
/// number.
fn temperature(config: &FamilyConfig) -> Result<Option<Temperature>, ConfigError> {
    let on = match config.get("attn_temperature_tuning") {
        None => true,
        Some(entry) => match entry.value.as_u64() {
            Some(number) => number != 0,
            None => entry.flag()?,
        },
    };
    let scale = positive_or(config.get("attn_scale"), 0.1)?;
    let length = positive_or(config.get("floor_scale"), 8192.0)?;
    Ok(on.then_some(Temperature { scale, length, first: 1, smooth: false }))
}

/// True for each layer that has experts.
fn routed(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let Some(entry) = config.get("moe_layers") else {
        let step = size_or(config.get("interleave_moe_layer_step"), 1, MAX_COUNT)?;
        return Ok(every_nth(step, layers));
    };
    Ok(among(&numbers_of_layers(entry)?, layers))
}

fn experts(config: &FamilyConfig) -> Result<Ffn, ConfigError> {
    let (experts, top_k) = match config.get("num_experts_per_tok") {
        None => (config.size("num_local_experts", MAX_COUNT)?, 1),
        Some(_) => chosen(config)?,
    };
    if top_k != 1 {
        return Err(config.unsupported(config.need("num_experts_per_tok")?, "1"));
    }
    let mlp = MlpSpec::silu(width(config, "intermediate_size")?);
    let expert = MlpSpec { gate_up: GateUp::Halves, ..mlp };
    let router = Router::Ranked(RankedRouter {
        scores: RouterScores::SigmoidOfRanks,
        correction: false,
        renormalise: Renormalise::None,
        ..RankedRouter::sigmoid()
    });
    Ok(Ffn::Moe(MoeSpec {
        weighted_inputs: true,
        shared: Some(SharedSpec::added(mlp)),
        ..MoeSpec::of((experts, top_k), expert, router)
    }))
}
