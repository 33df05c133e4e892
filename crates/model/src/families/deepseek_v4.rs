//! DeepSeek V4: several residual streams, attention to the last positions and to pooled entries,
//! and a table that selects the experts in the first layers.

use sws_format::PieceKind;
use sws_kernels::functional::{Activation, MAX_STREAMS, RopePairs, StreamWriting, Streams};

use super::common::{
    DecoderParts, FamilyDefaults, MAX_WIDTH, chosen, switched_off, switched_on, width,
};
use super::entries::{count_or, entry_in, epsilon_or, positive_or, size_or};
use super::per_layer::{by_words, first_layers};
use super::ranked::only;
use super::{Ends, Family, TensorRule, expert, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::{self, INFINITE, MAX_HEAD_DIM, Rope};
use crate::spec::{
    CompressedSpec, Ffn, Mixer, MlpSpec, ModelSpec, MoeSpec, PoolIndexer, PoolSpec, RankedRouter,
    Renormalise, Router, RouterScores, SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["deepseek_v4"],
    prefix: "",
    ends: Ends {
        embedding: "embed.weight",
        norm: "norm.weight",
        head: "head.weight",
        others: &[
            (Role::HeadStreams, "hc_head_fn"),
            (Role::HeadStreamsBase, "hc_head_base"),
            (Role::HeadStreamsScale, "hc_head_scale"),
        ],
    },
    layer: &[ATTENTION, EXPERTS],
    spec,
};

const ATTENTION: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "attn_norm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "ffn_norm.weight"),
    small(PieceKind::Attention, Role::MixerStreams, "hc_attn_fn"),
    small(PieceKind::Attention, Role::MixerStreamsBase, "hc_attn_base"),
    small(PieceKind::Attention, Role::MixerStreamsScale, "hc_attn_scale"),
    matrix(PieceKind::Attention, Role::QueryDown, "attn.wq_a.weight"),
    small(PieceKind::Attention, Role::QueryDownNorm, "attn.q_norm.weight"),
    matrix(PieceKind::Attention, Role::QueryUp, "attn.wq_b.weight"),
    matrix(PieceKind::Attention, Role::KvDown, "attn.wkv.weight"),
    small(PieceKind::Attention, Role::KvDownNorm, "attn.kv_norm.weight"),
    small(PieceKind::Attention, Role::Sinks, "attn.attn_sink"),
    matrix(PieceKind::Attention, Role::OutputDown, "attn.wo_a.weight"),
    matrix(PieceKind::Attention, Role::Output, "attn.wo_b.weight"),
    matrix(PieceKind::Attention, Role::Pool, "attn.compressor.wkv.weight"),
    matrix(PieceKind::Attention, Role::PoolGate, "attn.compressor.wgate.weight"),
    small(PieceKind::Attention, Role::PoolBias, "attn.compressor.ape"),
    small(PieceKind::Attention, Role::PoolNorm, "attn.compressor.norm.weight"),
    matrix(PieceKind::Attention, Role::IndexQuery, "attn.indexer.wq_b.weight"),
    small(PieceKind::Attention, Role::IndexWeights, "attn.indexer.weights_proj.weight"),
    matrix(PieceKind::Attention, Role::IndexPool, "attn.indexer.compressor.wkv.weight"),
    matrix(PieceKind::Attention, Role::IndexPoolGate, "attn.indexer.compressor.wgate.weight"),
    small(PieceKind::Attention, Role::IndexPoolBias, "attn.indexer.compressor.ape"),
    small(PieceKind::Attention, Role::IndexPoolNorm, "attn.indexer.compressor.norm.weight"),
];

const EXPERTS: &[TensorRule] = &[
    small(PieceKind::Router, Role::FfnStreams, "hc_ffn_fn"),
    small(PieceKind::Router, Role::FfnStreamsBase, "hc_ffn_base"),
    small(PieceKind::Router, Role::FfnStreamsScale, "hc_ffn_scale"),
    small(PieceKind::Router, Role::Router, "ffn.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "ffn.gate.bias"),
    small(PieceKind::Router, Role::ExpertTable, "ffn.gate.tid2eid"),
    expert(Role::Gate, "ffn.experts.#.w1.weight"),
    expert(Role::Up, "ffn.experts.#.w3.weight"),
    expert(Role::Down, "ffn.experts.#.w2.weight"),
    matrix(PieceKind::SharedExpert, Role::Gate, "ffn.shared_experts.w1.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "ffn.shared_experts.w3.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "ffn.shared_experts.w2.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(1),
    head_dim: Some(512),
    rotated: Some(64.0 / 512.0),
    context: 1_048_576,
};

/// Maximum number of normalisations of the rows and columns of the stream mix.
const MAX_ITERATIONS: u64 = 1000;

/// The entries that a layer attends to, besides the last positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttendedEntries {
    /// No entries.
    Window,
    /// Entries that an indexer selects.
    Sparse,
    /// All entries, each of which pools many positions.
    Heavy,
}

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut decoder = DecoderParts::read(config, &DEFAULTS)?;
    for key in ["attention_bias", "mlp_bias"] {
        switched_off(config, key)?;
    }
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != 1
    {
        return Err(config.unsupported(entry, "1"));
    }
    decoder.streams = Some(streams(config)?);
    let (head_dim, ropes) = ropes(config, decoder.context)?;
    let eps = decoder.norm.eps();
    let attention = CompressedSpec {
        heads: decoder.heads,
        head_dim,
        rotated: 2 * ropes[0].inv_freq.len(),
        query_rank: size_or(config.get("q_lora_rank"), 1024, MAX_WIDTH)?,
        window: size_or(config.get("sliding_window"), 128, 1 << 32)?,
        groups: size_or(config.get("o_groups"), 8, MAX_COUNT)?,
        group_rank: size_or(config.get("o_lora_rank"), 1024, MAX_WIDTH)?,
        eps,
        scale: (1.0 / (head_dim as f64).sqrt()) as f32,
        rope: 0,
        pools: None,
    };
    let CompressedSpec { heads, groups, .. } = attention;
    if heads.saturating_mul(head_dim) as u64 > MAX_WIDTH {
        let reason = format!("which with {head_dim} elements each no model has");
        return Err(config.need("num_attention_heads")?.invalid(reason));
    }
    if !heads.is_multiple_of(groups) || attention.group_width() as u64 > MAX_WIDTH {
        let reason = format!("into which {heads} heads cannot be divided");
        return Err(entry_of(config, "o_groups")?.invalid(reason));
    }
    let pools = pools(config, &attention)?;
    let kinds = kinds(config, decoder.layers)?;
    let experts = experts(config)?;
    let tables = tables(config, decoder.layers)?;
    decoder.model(ropes, |l| {
        let (rope, pools) = match kinds[l] {
            AttendedEntries::Window => (0, None),
            AttendedEntries::Sparse => (1, Some(pools[0])),
            AttendedEntries::Heavy => (1, Some(pools[1])),
        };
        let mixer = Mixer::Compressed(CompressedSpec { rope, pools, ..attention });
        let router = RankedRouter { correction: !tables[l], ..experts.1 };
        let router = if tables[l] { Router::Table(router) } else { Router::Ranked(router) };
        (mixer, Ffn::Moe(MoeSpec { router, ..experts.0 }))
    })
}

/// An entry, or its value in all published models if it is absent.
fn entry_of<'a>(
    config: &FamilyConfig<'a>,
    key: &'static str,
) -> Result<ConfigEntry<'a>, ConfigError> {
    match config.get(key) {
        Some(entry) => Ok(entry),
        None => config.need("num_attention_heads"),
    }
}

pub(super) fn streams(config: &FamilyConfig) -> Result<Streams, ConfigError> {
    let count = size_or(config.get("hc_mult"), 4, MAX_STREAMS as u64)?;
    let entry = config.get("hc_sinkhorn_iters");
    let iterations = size_or(entry, 20, MAX_ITERATIONS)?;
    let eps = epsilon_or(config.get("hc_eps"), 1e-6)? as f32;
    Ok(Streams { count, writing: StreamWriting::Mixed { iterations }, eps })
}

/// The head size, and the rotary embeddings of layers without entries and with entries.
fn ropes(config: &FamilyConfig, context: usize) -> Result<(usize, Vec<Rope>), ConfigError> {
    let head_dim = size_or(config.get("head_dim"), 512, MAX_HEAD_DIM)?;
    let share = match config.get("qk_rope_head_dim") {
        Some(rotated) => rotated.size(MAX_HEAD_DIM)? as f64 / head_dim as f64,
        None => 64.0 / 512.0,
    };
    let theta = positive_or(config.get("compress_rope_theta"), 160_000.0)?;
    let given = rope::given(config)?.map(ConfigEntry::object).transpose()?;
    let nested = given.is_some_and(|given| given.values().any(|value| value.as_map().is_some()));
    let mut ropes = if nested {
        let base = (DEFAULTS.theta, Some(share));
        let main = Rope::of_kind(config, "main", head_dim, base, context)?;
        vec![main, Rope::of_kind(config, "compress", head_dim, (theta, Some(share)), context)?]
    } else {
        let both = Rope::of(config, head_dim, (DEFAULTS.theta, Some(share)), context)?;
        // Sines and cosines are not scaled, unless a factor is given.
        let has_factor = given.is_some_and(|given| given.contains_key("attention_factor"));
        let factor = if has_factor { both.factor } else { 1.0 };
        let entries = Rope { factor, ..both.with_theta(theta) };
        if let Some(entry) = config.get("compress_rope_theta")
            && !entries.is_finite(context)
        {
            return Err(entry.invalid(INFINITE));
        }
        vec![Rope::plain(both.theta, both.dim), entries]
    };
    let turned = ropes[0].dim;
    if turned % 2 == 1 {
        let entry = entry_of(config, "qk_rope_head_dim")?;
        return Err(entry.invalid(format!("and {turned} elements of a head are not pairs")));
    }
    if turned != ropes[1].dim {
        let entry = entry_of(config, "rope_parameters")?;
        return Err(config.unsupported(entry, "the same number of rotated elements in all layers"));
    }
    for rope in &mut ropes {
        (rope.offset, rope.pairs) = (head_dim - turned, RopePairs::Interleaved);
    }
    Ok((head_dim, ropes))
}

/// The entries of sparse layers and of heavy layers.
fn pools(config: &FamilyConfig, attention: &CompressedSpec) -> Result<[PoolSpec; 2], ConfigError> {
    let heads = size_or(config.get("index_n_heads"), 64, MAX_COUNT)?;
    let dim = size_or(config.get("index_head_dim"), 128, MAX_HEAD_DIM)?;
    let most = size_or(config.get("index_topk"), 512, 1 << 20)?;
    if dim < attention.rotated {
        let rotated = attention.rotated;
        let reason = format!("which is less than the {rotated} elements that are rotated");
        return Err(entry_of(config, "index_head_dim")?.invalid(reason));
    }
    if (heads * dim) as u64 > MAX_WIDTH {
        let reason = format!("which with {dim} elements each no model has");
        return Err(entry_of(config, "index_n_heads")?.invalid(reason));
    }
    let rates = config.get("compress_rates").map(ConfigEntry::object).transpose()?;
    let sparse = entry_in(rates, "compressed_sparse_attention");
    let sparse = config.get("compress_rate_csa").or(sparse);
    let sparse = ratio(sparse, 4, attention.head_dim)?;
    let heavy = entry_in(rates, "heavily_compressed_attention");
    let heavy = config.get("compress_rate_hca").or(heavy);
    let heavy = ratio(heavy, 128, attention.head_dim)?;
    let indexer = Some(PoolIndexer { heads, dim, most });
    Ok([PoolSpec { ratio: sparse, indexer }, PoolSpec { ratio: heavy, indexer: None }])
}

/// The number of positions that an entry pools.
fn ratio(
    given: Option<ConfigEntry<'_>>,
    default: usize,
    head_dim: usize,
) -> Result<usize, ConfigError> {
    let Some(entry) = given else { return Ok(default) };
    match entry.size(MAX_COUNT)? {
        ratio if (ratio * head_dim) as u64 > MAX_WIDTH => {
            Err(entry.invalid("positions for an entry, which no model has"))
        }
        ratio => Ok(ratio),
    }
}

fn kinds(config: &FamilyConfig, layers: usize) -> Result<Vec<AttendedEntries>, ConfigError> {
    if let Some(entry) = config.get("layer_types") {
        let supported =
            "sliding_attention, compressed_sparse_attention and heavily_compressed_attention";
        let kinds = [
            ("sliding_attention", AttendedEntries::Window),
            ("compressed_sparse_attention", AttendedEntries::Sparse),
            ("heavily_compressed_attention", AttendedEntries::Heavy),
        ];
        return by_words(config, entry, first_layers(entry, layers)?, &kinds, supported);
    }
    let Some(entry) = config.get("compress_ratios") else {
        let mut kinds = vec![AttendedEntries::Heavy; layers];
        for sparse in kinds.iter_mut().skip(3).step_by(2) {
            *sparse = AttendedEntries::Sparse;
        }
        return Ok(kinds);
    };
    let mut kinds = Vec::with_capacity(layers);
    for ratio in first_layers(entry, layers)? {
        kinds.push(match ratio.as_u64() {
            Some(0) => AttendedEntries::Window,
            Some(4) => AttendedEntries::Sparse,
            Some(128) => AttendedEntries::Heavy,
            _ => return Err(config.unsupported(entry, "0, 4 and 128")),
        });
    }
    Ok(kinds)
}

/// The experts of all layers, and the rule by which they are weighted.
fn experts(config: &FamilyConfig) -> Result<(MoeSpec, RankedRouter), ConfigError> {
    only(config, "scoring_func", "sqrtsoftplus")?;
    only(config, "topk_method", "noaux_tc")?;
    switched_on(config, "norm_topk_prob")?;
    if let Some(entry) = config.get("n_shared_experts")
        && entry.count(MAX_COUNT)? != 1
    {
        return Err(config.unsupported(entry, "1"));
    }
    let limit = positive_or(config.get("swiglu_limit"), 10.0)?;
    let activation = Activation::SiluClamped(limit as f32);
    let expert = MlpSpec { activation, ..MlpSpec::silu(width(config, "moe_intermediate_size")?) };
    let scale = positive_or(config.get("routed_scaling_factor"), 1.5)? as f32;
    let scores = RouterScores::RootSoftplus;
    let correction = true;
    let groups = None;
    let renormalise = Renormalise::Sum { plus: 1e-20 };
    let rule = RankedRouter { scores, correction, groups, renormalise, scale };
    let shared = Some(SharedSpec::added(expert));
    let router = Router::Ranked(rule);
    Ok((MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }, rule))
}

/// True for each layer whose experts are selected by a table.
fn tables(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let Some(entry) = config.get("mlp_layer_types") else {
        let count = count_or(config.get("num_hash_layers"), 3)?;
        return Ok((0..layers as u64).map(|l| l < count).collect());
    };
    let kinds = [("hash_moe", true), ("moe", false)];
    by_words(config, entry, first_layers(entry, layers)?, &kinds, "hash_moe and moe")
}
