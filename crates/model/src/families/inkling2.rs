//! Inkling 2: kept states, of which queries, keys and values of full layers read a mix each, limited
//! lengths of queries and keys, convolutions whose weights depend on tokens, sinks and gates.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, MAX_WIDTH, chosen};
use super::entries::positive_or;
use super::inkling::{MAX_EXTENT, Windowed, check_distances, count, growth, kinds, taps, windowed};
use super::kimi_k3::kept;
use super::per_layer::all_but_every;
use super::ranked::only;
use super::{Ends, Family, TensorRule, matrix, numbered_from, small, stacked};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{
    AddedConv, AttentionExtras, AttentionGate, AttentionSpec, DistanceSpec, Ffn, GateUp,
    KeptStates, MlpSpec, ModelSpec, MoeSpec, QkNorm, RankedRouter, Renormalise, Router,
};
use crate::spellings::{CONTEXT_OF_INKLING2, FACTOR_OF_INKLING2, WIDTH_OF_INKLING2};

pub(super) const FAMILY: Family = Family {
    model_types: &["inkling2_text"],
    prefix: "model.llm.",
    ends: Ends {
        embedding: "embed.weight",
        norm: "norm.weight",
        head: "model.llm.unembed.weight",
        others: &[
            (Role::EmbeddingNorm, "embed_norm.weight"),
            (Role::HeadMix, "attn_res.output_query"),
        ],
    },
    layer: &[ATTENTION, BRANCHES, ROUTED],
    spec,
};

pub(super) const ATTENTION: &[TensorRule] = &[
    numbered_from(1, PieceKind::Attention, Role::MixerMix, "attn_res.attn_queries."),
    matrix(PieceKind::Attention, Role::Query, "attn.wq_du.weight"),
    matrix(PieceKind::Attention, Role::Distance, "attn.wr_du.weight"),
    matrix(PieceKind::Attention, Role::Key, "attn.wk_dv.weight"),
    matrix(PieceKind::Attention, Role::Value, "attn.wv_dv.weight"),
    matrix(PieceKind::Attention, Role::OutputGate, "attn.gate_attn.weight"),
    matrix(PieceKind::Attention, Role::TokenSinks, "attn.attn_sink_proj.weight"),
    matrix(PieceKind::Attention, Role::KeyTaps, "attn.k_sconv.weight_proj"),
    matrix(PieceKind::Attention, Role::ValueTaps, "attn.v_sconv.weight_proj"),
    small(PieceKind::Attention, Role::KeyConv, "attn.k_sconv.weight"),
    small(PieceKind::Attention, Role::KeyConv, "attn.k_sconv.static_w"),
    small(PieceKind::Attention, Role::ValueConv, "attn.v_sconv.weight"),
    small(PieceKind::Attention, Role::ValueConv, "attn.v_sconv.static_w"),
    small(PieceKind::Attention, Role::QueryNorm, "attn.q_l2_clip.scale"),
    small(PieceKind::Attention, Role::DistanceNorm, "attn.rel_l2_clip.scale"),
    small(PieceKind::Attention, Role::DistanceRows, "attn.rel_logits_proj.proj"),
    matrix(PieceKind::Attention, Role::Output, "attn.wo_ud.weight"),
];

pub(super) const BRANCHES: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "attn_norm.weight"),
    small(PieceKind::Norms, Role::MixerNorm, "q_input_norm.weight"),
    small(PieceKind::Norms, Role::KeyInputNorm, "k_input_norm.weight"),
    small(PieceKind::Norms, Role::ValueInputNorm, "v_input_norm.weight"),
    small(PieceKind::Norms, Role::MixerConv, "attn_sconv.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "mlp_norm.weight"),
    small(PieceKind::Norms, Role::FfnConv, "mlp_sconv.weight"),
];

pub(super) const ROUTED: &[TensorRule] = &[
    numbered_from(0, PieceKind::Router, Role::FfnMix, "attn_res.mlp_queries."),
    small(PieceKind::Router, Role::Router, "mlp.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.gate.bias"),
    stacked(Role::GateUp, "mlp.experts.w13_weight"),
    stacked(Role::Down, "mlp.experts.w2_weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(8),
    head_dim: Some(128),
    rotated: None,
    context: 1 << 20,
};

/// The number added to the mean of squares before states are mixed.
const KEPT_EPS: f32 = 1e-6;

/// Layers from one kept state to the next, by default.
const KEPT_EVERY: usize = 6;

/// Layers from one without a window to the next, by default.
const FULL_EVERY: usize = 6;

/// Defaults in which Inkling 2 and its looped variant differ: heads of layers with a window, and the
/// position from which queries grow.
pub(super) struct ClassDefaults {
    pub(super) heads: usize,
    pub(super) growth: f64,
}

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    sized(config, &ClassDefaults { heads: 48, growth: 128_000.0 })
}

/// The model that a configuration describes, where absent entries mean this.
pub(super) fn sized(
    config: &FamilyConfig,
    sizes: &ClassDefaults,
) -> Result<ModelSpec, ConfigError> {
    only(config, "scoring_func", "sigmoid")?;
    let mut common = Common::never_rotated(config, &DEFAULTS)?;
    common.decoder.context = count(config, &CONTEXT_OF_INKLING2, DEFAULTS.context, 1 << 32)?;
    let layers = common.layers;
    let every = kept(config, "n_layers_per_attn_res_block", (Some(KEPT_EVERY), layers))?;
    let local = match config.get("layer_types") {
        Some(entry) => {
            let supported = "hybrid, hybrid_sliding";
            kinds(config, entry, layers, ["hybrid", "hybrid_sliding"], supported)?
        }
        None => all_but_every(FULL_EVERY, layers),
    };
    let conv = AddedConv { taps: taps(config)?, divided: true, of_tokens: false };
    let Windowed { window, heads, kv_heads, head_dim } = windowed(config, 1024, [sizes.heads, 8])?;
    let rank = count(config, &["d_rel"], 16, MAX_COUNT)?;
    let extent = count(config, &["rel_extent"], 1024, MAX_EXTENT)?;
    let length = positive_or(config.get("log_scaling_n_floor"), sizes.growth)?;
    let full = AttentionSpec {
        qk_norm: QkNorm::Limited {
            length: positive_or(config.get("qk_l2_clip_threshold"), 22.627_416_997_969_522)? as f32,
            of_distances: positive_or(config.get("rel_l2_clip_threshold"), 8.0)? as f32,
        },
        rope: None,
        gate: Some(AttentionGate::Own { per_head: false, activation: Activation::Sigmoid }),
        extras: AttentionExtras {
            inputs_apart: true,
            conv: Some(AddedConv { of_tokens: true, ..conv }),
            value_norm: true,
            temperature: growth(config, length)?,
            distances: Some(DistanceSpec { rank, extent }),
            token_sinks: true,
            ..common.attention.extras
        },
        ..common.attention.clone()
    };
    let windowed = AttentionSpec {
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        scale: (1.0 / (head_dim as f64).sqrt()) as f32,
        window: Some(window),
        extras: AttentionExtras {
            inputs_apart: false,
            conv: Some(conv),
            temperature: None,
            distances: Some(DistanceSpec { rank, extent: window }),
            ..full.extras
        },
        ..full.clone()
    };
    check_distances(config, [&full, &windowed])?;
    let ffn = experts(config)?;
    let decoder = &mut common.decoder;
    decoder.kept = every.map(|every| KeptStates { every, normed: Some(KEPT_EPS) });
    decoder.residual.conv = Some(conv);
    let cap = positive_or(config.get("final_logit_softcapping"), 30.0)?;
    decoder.logit_cap = Some(cap as f32);
    let vocab = decoder.vocab;
    let predicted = count(config, &["unpadded_vocab_size"], 200_058, MAX_WIDTH)?.min(vocab);
    let mut spec = common.model(|l| {
        let attention = if local[l] { &windowed } else { &full };
        (attention.clone(), ffn)
    })?;
    spec.embedding_norm = Some(spec.layers[0].norm);
    spec.head.rows = [predicted; 2];
    Ok(spec)
}

fn experts(config: &FamilyConfig) -> Result<Ffn, ConfigError> {
    let width = config.any(&WIDTH_OF_INKLING2);
    let width = width.ok_or(ConfigError::MissingKey(WIDTH_OF_INKLING2[0]))?.size(MAX_WIDTH)?;
    let gate = positive_or(config.get("mlp_gate_softcap"), 4.0)? as f32;
    let up = positive_or(config.get("mlp_up_softcap"), 25.0)? as f32;
    let activation = Activation::Situ { gate, up };
    let expert = MlpSpec { activation, gate_up: GateUp::Interleaved, ..MlpSpec::silu(width) };
    let scale = positive_or(config.any(&FACTOR_OF_INKLING2), 8.0)? as f32;
    let renormalise = Renormalise::Sum { plus: 1e-20 };
    let router = Router::Ranked(RankedRouter { scale, renormalise, ..RankedRouter::sigmoid() });
    Ok(Ffn::Moe(MoeSpec::of(chosen(config)?, expert, router)))
}
