//! Qwen4-Exp: several residual streams with gates for their elements, n-gram tables in some layers,
//! delta nets in most layers, and attention to selected blocks in the others.

use sws_format::PieceKind;
use sws_kernels::functional::{Activation, MAX_STREAMS, StreamWriting, Streams};

use super::common::{Common, FamilyDefaults, MAX_WIDTH, moe};
use super::entries::size_or;
use super::ngrams::ngrams;
use super::per_layer::{by_words, each_layer, every_nth};
use super::qwen_moe::{MOE, SHARED};
use super::qwen_next::{self, DELTA, SEPARATE, STACKED};
use super::{ATTENTION, ENDS, EXPERTS, Ends, Family, RuleTarget, TensorRule, matrix, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{
    AttentionExtras, AttentionGate, AttentionSpec, BlocksSpec, DeltaSpec, Ffn, GateUp, Mixer,
    ModelSpec, QkNorm, StreamReads,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen4_exp_text"],
    prefix: "model.",
    ends: Ends {
        norm: "hyper_connection_mixer.hc_norm.weight",
        others: &[
            (Role::HeadStreamsDown, "hyper_connection_mixer.input_mix_weight_down.weight"),
            (Role::HeadStreamsUp, "hyper_connection_mixer.input_mix_weight_up.weight"),
        ],
        ..ENDS
    },
    layer: &[NGRAMS, STREAMS, ATTENTION, INDEXER, DELTA, SEPARATE, MOE, SHARED, EXPERTS, STACKED],
    spec,
};

const NGRAMS: &[TensorRule] = &[
    numbers(Role::NgramMultipliers, "ple.ple_embedding.layer_multipliers"),
    numbers(Role::NgramSizes, "ple.ple_embedding.ngram_heads_vocab_sizes"),
    numbers(Role::NgramOffsets, "ple.ple_embedding.ngram_heads_offsets"),
    TensorRule {
        name: "ple.ple_embedding.ngram_embedding.shard_#.weight",
        target: RuleTarget::Part,
        role: Role::Table,
        matrix: false,
    },
    matrix(PieceKind::Attention, Role::NgramKey, "ple.key_proj.weight"),
    matrix(PieceKind::Attention, Role::NgramValue, "ple.value_proj.weight"),
    small(PieceKind::Attention, Role::NgramKeyNorm, "ple.norm_key.weight"),
    small(PieceKind::Attention, Role::NgramQueryNorm, "ple.norm_query.weight"),
    small(PieceKind::Attention, Role::NgramConvNorm, "ple.norm_conv.weight"),
    small(PieceKind::Attention, Role::NgramConv, "ple.conv1d.weight"),
];

/// Integers are stored in the first part of their table.
const fn numbers(role: Role, name: &'static str) -> TensorRule {
    small(PieceKind::Table(0), role, name)
}

const STREAMS: &[TensorRule] = &[
    of_mixer(Role::MixerStreamsNorm, "attn_hyper_connection.hc_norm.weight"),
    of_mixer(Role::MixerStreamsDown, "attn_hyper_connection.input_mix_weight_down.weight"),
    of_mixer(Role::MixerStreams, "attn_hyper_connection.block_inject_weight.weight"),
    of_mixer(Role::MixerStreamsUp, "attn_hyper_connection.input_mix_weight_up.weight"),
    of_ffn(Role::FfnStreamsNorm, "mlp_hyper_connection.hc_norm.weight"),
    of_ffn(Role::FfnStreamsDown, "mlp_hyper_connection.input_mix_weight_down.weight"),
    of_ffn(Role::FfnStreams, "mlp_hyper_connection.block_inject_weight.weight"),
    of_ffn(Role::FfnStreamsUp, "mlp_hyper_connection.input_mix_weight_up.weight"),
];

const fn of_mixer(role: Role, name: &'static str) -> TensorRule {
    small(PieceKind::Attention, role, name)
}

const fn of_ffn(role: Role, name: &'static str) -> TensorRule {
    small(PieceKind::Router, role, name)
}

const INDEXER: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::IndexMixed, "self_attn.indexer.index_qk_proj.weight"),
    // Names in GGUF files, as the ends of names in transformers.
    matrix(PieceKind::Attention, Role::IndexQuery, "self_attn.indexer.index_q_proj.weight"),
    matrix(PieceKind::Attention, Role::IndexKey, "self_attn.indexer.index_k_proj.weight"),
    small(PieceKind::Attention, Role::BlockQueryNorm, "self_attn.indexer.q_layernorm.weight"),
    small(PieceKind::Attention, Role::BlockKeyNorm, "self_attn.indexer.k_layernorm.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: Some(2),
    head_dim: Some(256),
    rotated: Some(0.25),
    context: 32_768,
};

/// Limits far above any known model.
const MAX_BLOCK: u64 = 4096;
const MAX_BUDGET: u64 = 1 << 20;

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = qwen_next::read(config, &DEFAULTS)?;
    let count = size_or(config.get("hc_count"), 4, MAX_STREAMS as u64)?;
    if let Some(entry) = config.get("hc_count")
        && count < 2
    {
        return Err(config.unsupported(entry, "at least 2 residual streams"));
    }
    let rank = size_or(config.get("hc_lowrank"), 320, MAX_WIDTH)?;
    common.decoder.streams = Some(Streams { count, writing: StreamWriting::Alone, eps: 0.0 });
    let full = full(config, common.layers)?;
    let attention = attention(config, &common, full.contains(&true))?;
    let delta = delta(config, common.decoder.norm.eps())?;
    let ngrams = ngrams(config, &common, &full, count)?;
    let renormalise = config.flag("norm_topk_prob", true)?;
    let shared = qwen_next::shared(config)?;
    let mut ffn = moe(config, "moe_intermediate_size", renormalise, Some(shared))?;
    if let Ffn::Moe(moe) = &mut ffn {
        // Checkpoints with one tensor per expert store gates and ups separately: see
        // `ModelSpec::for_weights`.
        moe.expert.gate_up = GateUp::Halves;
    }
    let mut spec = common.model(|l| match full[l] {
        true => (Mixer::Attention(attention.clone()), ffn),
        false => (Mixer::Delta(delta), ffn),
    })?;
    spec.stream_reads = StreamReads::Gates(rank);
    for (layer, ngrams) in spec.layers.iter_mut().zip(ngrams) {
        layer.ngrams = ngrams;
    }
    Ok(spec)
}

/// True for each layer with attention. It always selects blocks, whatever the configuration calls
/// it.
fn full(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    const KINDS: &str = "full_attention, indexed_attention and linear_attention";
    if let Some(entry) = config.get("layer_types") {
        let kinds =
            [("full_attention", true), ("indexed_attention", true), ("linear_attention", false)];
        return by_words(config, entry, each_layer(entry, layers)?, &kinds, KINDS);
    }
    let every = size_or(config.get("full_attention_interval"), 4, MAX_COUNT)?;
    Ok(every_nth(every, layers))
}

fn attention(
    config: &FamilyConfig,
    common: &Common<'_>,
    selects: bool,
) -> Result<AttentionSpec, ConfigError> {
    if let Some(entry) = config.get("attn_output_gate")
        && !entry.flag()?
    {
        return Err(config.unsupported(entry, "true"));
    }
    let bias = config.flag("attention_bias", false)?;
    let rotated = 2 * common.ropes[0].inv_freq.len();
    let blocks = if selects { Some(blocks(config, rotated)?) } else { None };
    Ok(AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        gate: Some(AttentionGate::WithQueries),
        extras: AttentionExtras { blocks, ..common.attention.extras },
        ..common.attention.clone()
    })
}

fn blocks(config: &FamilyConfig, rotated: usize) -> Result<BlocksSpec, ConfigError> {
    let heads = config.size("indexer_n_heads", MAX_COUNT)?;
    let of_keys = config.need("indexer_kv_heads")?;
    if of_keys.size(MAX_COUNT)? != 1 {
        return Err(config.unsupported(of_keys, "1"));
    }
    let dim = config.size("indexer_head_dim", MAX_HEAD_DIM)?;
    let budget = config.need("indexer_budget")?;
    let size = config.size("indexer_compress_ratio", MAX_BLOCK)?;
    let positions = budget.size(MAX_BUDGET)?;
    if !positions.is_multiple_of(size) {
        return Err(budget.invalid(format!("which is not a multiple of the {size} of a block")));
    }
    let most = positions / size;
    // Files of llama.cpp have a matrix for queries, and one for keys.
    let mixed = !config.is_gguf();
    let spec = BlocksSpec { heads, dim, size, most, last: 0, pooled: true, mixed };
    if dim < rotated || spec.width() as u64 > MAX_WIDTH {
        let reason = match dim < rotated {
            true => format!("which is less than the {rotated} elements that are rotated"),
            false => format!("which with {heads} heads no model has"),
        };
        return Err(config.need("indexer_head_dim")?.invalid(reason));
    }
    Ok(spec)
}

fn delta(config: &FamilyConfig, eps: f32) -> Result<DeltaSpec, ConfigError> {
    let gate = match config.get("output_gate_type") {
        None => Activation::Silu,
        Some(entry) => match entry.word()? {
            "silu" | "swish" => Activation::Silu,
            "sigmoid" => Activation::Sigmoid,
            _ => return Err(config.unsupported(entry, "silu and sigmoid")),
        },
    };
    Ok(DeltaSpec { gate, ..qwen_next::delta(config, eps, qwen_next::separate(config))? })
}
