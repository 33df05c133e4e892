//! Inkling: attention biases by distance instead of rotary embeddings, convolutions after keys,
//! values and branches, and a router that also scores the shared experts.

use sws_format::PieceKind;
use sws_kernels::functional::MAX_TAPS;

use super::common::{
    Common, FamilyDefaults, MAX_STATE, MAX_WIDTH, absent, chosen, switched_off, switched_on, width,
};
use super::entries::{count_or, positive_or, size_or};
use super::per_layer::{all_but_every, all_but_first, by_words, each_layer};
use super::ranked::only;
use super::{Ends, Family, TensorRule, matrix, small, stacked};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{
    AddedConv, AttentionExtras, AttentionSpec, DistanceSpec, Ffn, GateUp, MlpSpec, ModelSpec,
    MoeSpec, QkNorm, RankedRouter, Renormalise, Router, SharedSpec, Temperature,
};
use crate::spellings::{DIVISOR_OF_LOGITS, TAPS_OF_INKLING, WINDOW_OF_INKLING};

pub(super) const FAMILY: Family = Family {
    model_types: &["inkling_text"],
    prefix: "model.llm.",
    ends: Ends {
        embedding: "embed.weight",
        norm: "norm.weight",
        head: "unembed.weight",
        others: &[(Role::EmbeddingNorm, "embed_norm.weight")],
    },
    layer: &[ATTENTION, BRANCHES, DENSE, ROUTED],
    spec,
};

const ATTENTION: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Query, "attn.wq_du.weight"),
    matrix(PieceKind::Attention, Role::Distance, "attn.wr_du.weight"),
    matrix(PieceKind::Attention, Role::Key, "attn.wk_dv.weight"),
    matrix(PieceKind::Attention, Role::Value, "attn.wv_dv.weight"),
    small(PieceKind::Attention, Role::KeyConv, "attn.k_sconv.weight"),
    small(PieceKind::Attention, Role::ValueConv, "attn.v_sconv.weight"),
    small(PieceKind::Attention, Role::QueryNorm, "attn.q_norm.weight"),
    small(PieceKind::Attention, Role::KeyNorm, "attn.k_norm.weight"),
    small(PieceKind::Attention, Role::DistanceRows, "attn.rel_logits_proj.proj"),
    matrix(PieceKind::Attention, Role::Output, "attn.wo_ud.weight"),
];

const BRANCHES: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "attn_norm.weight"),
    small(PieceKind::Norms, Role::MixerConv, "attn_sconv.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "mlp_norm.weight"),
    small(PieceKind::Norms, Role::FfnConv, "mlp_sconv.weight"),
];

const DENSE: &[TensorRule] = &[
    matrix(PieceKind::Mlp, Role::GateUp, "mlp.w13_dn.weight"),
    matrix(PieceKind::Mlp, Role::Down, "mlp.w2_md.weight"),
    small(PieceKind::Mlp, Role::MlpScale, "mlp.global_scale"),
];

const ROUTED: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "mlp.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.gate.bias"),
    small(PieceKind::Router, Role::RouterScale, "mlp.gate.global_scale"),
    matrix(PieceKind::SharedExpert, Role::GateUp, "mlp.shared_experts.shared_w13_weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "mlp.shared_experts.shared_w2_weight"),
    stacked(Role::GateUp, "mlp.experts.w13_weight"),
    stacked(Role::Down, "mlp.experts.w2_weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(8),
    head_dim: Some(128),
    rotated: None,
    context: 131_072,
};

/// Entries that must be true: parts that every layer has.
const SWITCHED_ON: [&str; 6] = [
    "use_embed_norm",
    "use_sconv",
    "use_gate_bias",
    "use_global_scale",
    "norm_after_topk",
    "shared_expert_sink",
];

/// Limits far above any known model.
pub(super) const MAX_EXTENT: u64 = 1 << 20;
const MAX_SHARED: u64 = 64;

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    for key in SWITCHED_ON {
        switched_on(config, key)?;
    }
    for key in ["q_bias", "o_bias"] {
        switched_off(config, key)?;
    }
    only(config, "gate_activation", "sigmoid")?;
    absent(config, "final_logit_softcapping")?;
    let mut common = Common::never_rotated(config, &DEFAULTS)?;
    if config.get("max_position_embeddings").is_none()
        && let Some(entry) = config.get("model_max_length")
    {
        common.decoder.context = entry.size(1 << 32)?;
    }
    let layers = common.layers;
    let local = local(config, layers)?;
    let taps = taps(config)?;
    let Windowed { window, heads, kv_heads, head_dim } = windowed(config, 512, [64, 16])?;
    let rank = count(config, &["d_rel"], 16, MAX_COUNT)?;
    let extent = count(config, &["rel_extent"], 1024, MAX_EXTENT)?;
    let full = AttentionSpec {
        qk_norm: QkNorm::PerHead,
        rope: None,
        scale: 1.0 / common.attention.head_dim as f32,
        extras: AttentionExtras {
            conv: Some(AddedConv::of(taps)),
            temperature: temperature(config)?,
            distances: Some(DistanceSpec { rank, extent }),
            ..common.attention.extras
        },
        ..common.attention.clone()
    };
    let windowed = AttentionSpec {
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        scale: 1.0 / head_dim as f32,
        window: Some(window),
        extras: AttentionExtras {
            temperature: None,
            distances: Some(DistanceSpec { rank, extent: window }),
            ..full.extras
        },
        ..full.clone()
    };
    check_distances(config, [&full, &windowed])?;
    let (dense, expert) = match config.get("dense_intermediate_size") {
        Some(entry) => (entry.size(MAX_WIDTH)?, width(config, "intermediate_size")?),
        None if config.get("moe_intermediate_size").is_none() => {
            return Err(ConfigError::MissingKey("dense_intermediate_size"));
        }
        None => (width(config, "intermediate_size")?, width(config, "moe_intermediate_size")?),
    };
    let routed = routed(config, layers)?;
    let ffn = [Ffn::Dense(mlp(dense)), experts(config, expert)?];
    common.decoder.residual.scaled_mlp = true;
    common.decoder.residual.conv = Some(AddedConv::of(taps));
    let divisor = positive_or(config.any(&DIVISOR_OF_LOGITS), 24.0)?;
    common.decoder.logit_scale = 1.0 / divisor as f32;
    let vocab = common.decoder.vocab;
    let predicted = size_or(config.get("unpadded_vocab_size"), vocab, MAX_WIDTH)?;
    let mut spec = common.model(|l| {
        let attention = if local[l] { &windowed } else { &full };
        (attention.clone(), ffn[usize::from(routed[l])])
    })?;
    spec.embedding_norm = Some(spec.layers[0].norm);
    spec.head.rows = [predicted.min(vocab); 2];
    Ok(spec)
}

/// The entries of layers with a window.
pub(super) struct Windowed {
    pub(super) window: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

/// Reads the entries of layers with a window, given its length and numbers of heads by default.
pub(super) fn windowed(
    config: &FamilyConfig,
    window: usize,
    heads: [usize; 2],
) -> Result<Windowed, ConfigError> {
    let window = count(config, &WINDOW_OF_INKLING, window, MAX_EXTENT)?;
    let [heads, kv_heads, head_dim] = [
        count(config, &["swa_num_attention_heads"], heads[0], MAX_COUNT)?,
        count(config, &["swa_num_key_value_heads"], heads[1], MAX_COUNT)?,
        count(config, &["swa_head_dim"], 128, MAX_HEAD_DIM)?,
    ];
    if !heads.is_multiple_of(kv_heads) || heads * head_dim > MAX_WIDTH as usize {
        let reason = format!("which does not fit {kv_heads} key and value heads of {head_dim}");
        let keys = ["swa_num_attention_heads", "swa_num_key_value_heads"];
        let entry = config.any(&keys).ok_or(ConfigError::MissingKey(keys[0]))?;
        return Err(entry.invalid(reason));
    }
    Ok(Windowed { window, heads, kv_heads, head_dim })
}

/// Refuses more biases by distance than memory could hold, in full layers and in those with a window.
pub(super) fn check_distances(
    config: &FamilyConfig,
    layers: [&AttentionSpec; 2],
) -> Result<(), ConfigError> {
    let lengths: [&[&'static str]; 2] = [&["rel_extent"], &WINDOW_OF_INKLING];
    let heads = ["num_attention_heads", "swa_num_attention_heads"];
    for ((spec, length), heads) in layers.into_iter().zip(lengths).zip(heads) {
        let extent = match spec.extras.distances {
            Some(distances) => distances.extent,
            None => 0,
        };
        if spec.heads.saturating_mul(extent) > MAX_STATE {
            let entry = config.any(length).or(config.get(heads));
            let entry = entry.ok_or(ConfigError::MissingKey(heads))?;
            return Err(entry.invalid("with which no model weighs distances"));
        }
    }
    Ok(())
}

/// Number of values that convolutions see.
pub(super) fn taps(config: &FamilyConfig) -> Result<usize, ConfigError> {
    let taps = count(config, &TAPS_OF_INKLING, 4, MAX_COUNT)?;
    match config.any(&TAPS_OF_INKLING) {
        Some(entry) if !(2..=MAX_TAPS).contains(&taps) => {
            Err(config.unsupported(entry, "from 2 to 8"))
        }
        _ => Ok(taps),
    }
}

/// A size under one of several names, or its default.
pub(super) fn count(
    config: &FamilyConfig,
    keys: &[&'static str],
    default: usize,
    limit: u64,
) -> Result<usize, ConfigError> {
    size_or(config.any(keys), default, limit)
}

fn mlp(width: usize) -> MlpSpec {
    MlpSpec { gate_up: GateUp::Interleaved, ..MlpSpec::silu(width) }
}

fn experts(config: &FamilyConfig, width: usize) -> Result<Ffn, ConfigError> {
    let scale = positive_or(config.get("route_scale"), 8.0)? as f32;
    let parts = size_or(config.get("n_shared_experts"), 2, MAX_SHARED)?;
    let router = RankedRouter { scale, renormalise: Renormalise::None, ..RankedRouter::sigmoid() };
    Ok(Ffn::Moe(MoeSpec {
        shared: Some(SharedSpec::added(mlp(parts * width))),
        shared_scored: parts,
        ..MoeSpec::of(chosen(config)?, mlp(width), Router::Ranked(router))
    }))
}

/// The growth of queries in layers without a window.
fn temperature(config: &FamilyConfig) -> Result<Option<Temperature>, ConfigError> {
    match config.get("log_scaling_n_floor") {
        Some(entry) => growth(config, entry.positive()?),
        None => Ok(None),
    }
}

/// The growth of queries from this position on; `None` if they do not grow.
pub(super) fn growth(
    config: &FamilyConfig,
    length: f64,
) -> Result<Option<Temperature>, ConfigError> {
    let entry = config.get("log_scaling_alpha");
    if entry.is_some_and(|entry| entry.value.as_f64() == Some(0.0)) {
        return Ok(None);
    }
    let scale = positive_or(entry, 0.1)?;
    Ok(Some(Temperature { scale, length, first: 1, smooth: true }))
}

/// True for each layer with a window.
fn local(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    if let Some(entry) = config.get("layer_types") {
        return kinds(
            config,
            entry,
            layers,
            ["hybrid", "hybrid_sliding"],
            "hybrid, hybrid_sliding",
        );
    }
    let Some(entry) = config.get("local_layer_ids") else {
        return Ok(all_but_every(6, layers));
    };
    let mut local = vec![false; layers];
    for number in entry.list()? {
        match number.as_u64() {
            Some(layer) if layer < layers as u64 => local[layer as usize] = true,
            _ => {
                let reason = format!("which must list numbers of layers below {layers}");
                return Err(entry.invalid(reason));
            }
        }
    }
    Ok(local)
}

/// True for each layer with experts.
fn routed(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    if let Some(entry) = config.get("mlp_layer_types") {
        return kinds(config, entry, layers, ["dense", "sparse"], "dense, sparse");
    }
    let dense = count_or(config.get("dense_mlp_idx"), 0)?;
    Ok(all_but_first(dense, layers))
}

/// True for each layer of the second kind in a list of kinds.
pub(super) fn kinds(
    config: &FamilyConfig,
    entry: ConfigEntry<'_>,
    layers: usize,
    [first, second]: [&str; 2],
    supported: &'static str,
) -> Result<Vec<bool>, ConfigError> {
    let kinds = [(first, false), (second, true)];
    by_words(config, entry, each_layer(entry, layers)?, &kinds, supported)
}
