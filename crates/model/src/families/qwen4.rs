//! Qwen4-Exp: several residual streams with gates for their elements, n-gram tables in some layers,
//! delta nets in most layers, and attention to selected blocks in the others.

use sws_format::{PieceKind, Value};
use sws_kernels::functional::{Activation, MAX_STREAMS, MAX_TAPS, StreamWriting, Streams};

use super::common::{Common, FamilyDefaults, MAX_STATE, MAX_WIDTH, moe};
use super::qwen_moe::{MOE, SHARED};
use super::qwen_next::{self, DELTA, SEPARATE, STACKED};
use super::{ATTENTION, ENDS, EXPERTS, Ends, Family, RuleTarget, TensorRule, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT, NGRAM_NUMBERS};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{
    AttentionExtras, AttentionGate, AttentionSpec, BlocksSpec, DeltaSpec, Ffn, GateUp, Mixer,
    ModelSpec, NgramNumbers, NgramSpec, QkNorm, StreamReads,
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
const MAX_NGRAM: u64 = 8;
/// Maximum number of rows that a token chooses in all tables. Each row needs a prime of its own.
const MAX_PRIMES: usize = 1024;
const MAX_ROWS: u64 = 1 << 32;
const MAX_PARTS: u64 = 65_536;

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = qwen_next::read(config, &DEFAULTS)?;
    let count = config.get("hc_count").map_or(Ok(4), |entry| entry.size(MAX_STREAMS as u64))?;
    if let Some(entry) = config.get("hc_count").filter(|_| count < 2) {
        return Err(config.unsupported(entry, "at least 2 residual streams"));
    }
    let rank = config.get("hc_lowrank").map_or(Ok(320), |entry| entry.size(MAX_WIDTH))?;
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
        let types = entry.list()?;
        if types.len() != layers {
            let reason = format!("of {} entries for {layers} layers", types.len());
            return Err(entry.invalid(reason));
        }
        let of = |kind: &Value| match kind.as_str() {
            Some("full_attention" | "indexed_attention") => Ok(true),
            Some("linear_attention") => Ok(false),
            _ => Err(config.unsupported(entry, KINDS)),
        };
        return types.iter().map(of).collect();
    }
    let every = config.get("full_attention_interval").map_or(Ok(4), |e| e.size(MAX_COUNT))?;
    Ok((1..=layers).map(|l| l.is_multiple_of(every)).collect())
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

/// The n-gram table of each layer that has one.
fn ngrams(
    config: &FamilyConfig,
    common: &Common<'_>,
    full: &[bool],
    streams: usize,
) -> Result<Vec<Option<NgramSpec>>, ConfigError> {
    let layers = common.layers;
    let mut tables = vec![None; layers];
    let Some(entry) = config.get("ple_layer_ids") else { return Ok(tables) };
    let mut own = vec![false; layers];
    for number in entry.list()? {
        let layer = number.as_u64().and_then(|n| usize::try_from(n).ok()?.checked_sub(1));
        let layer = layer.filter(|&l| l < layers).ok_or_else(|| {
            entry.invalid(format!("which must list numbers of layers, from 1 to {layers}"))
        })?;
        if full[layer] {
            return Err(config.unsupported(entry, "layers with delta nets"));
        }
        own[layer] = true;
    }
    if !own.contains(&true) {
        return Ok(tables);
    }
    let count = |key, default, limit| {
        config.get(key).map_or(Ok(default), |e: ConfigEntry<'_>| e.size(limit))
    };
    let size = count("ngram_size", 3, MAX_NGRAM)?;
    let heads = count("heads_per_ngram", 8, MAX_COUNT)?;
    let hidden = common.decoder.hidden;
    let width = count("ple_embed_dim", hidden, MAX_WIDTH)?;
    let rows = size.saturating_sub(1) * heads;
    if rows == 0 {
        return Err(config.need("ngram_size")?.invalid("which must be at least 2"));
    }
    if !width.is_multiple_of(rows) {
        let entry = config.any(&["ple_embed_dim", "heads_per_ngram", "hidden_size"]);
        let entry = entry.ok_or(ConfigError::MissingKey("ple_embed_dim"))?;
        return Err(entry.invalid(format!("and {width} elements do not divide among {rows} rows")));
    }
    let taps = count("ple_conv_kernel_size", 4, MAX_COUNT)?;
    if let Some(entry) = config.get("ple_conv_kernel_size").filter(|_| taps > MAX_TAPS) {
        return Err(config.unsupported(entry, "up to 8"));
    }
    let end = end(config)?;
    if let Some(entry) = config.get(NGRAM_NUMBERS) {
        let numbers = numbers_of(entry, (size, rows))?;
        let ends = numbers.sizes.iter().zip(&numbers.offsets).map(|(size, offset)| size + offset);
        // The table may have further rows, which no token selects.
        let parts = vec![ends.max().unwrap_or(0) as usize];
        let numbers = Some(numbers);
        let spec = NgramSpec { size, heads, dim: width / rows, taps, end, parts, numbers };
        if spec.past(streams * hidden) > MAX_STATE {
            return Err(config
                .need("hidden_size")?
                .invalid("which with these n-grams no model has"));
        }
        for (table, _) in tables.iter_mut().zip(own).filter(|(_, own)| *own) {
            *table = Some(spec.clone());
        }
        return Ok(tables);
    }
    let layers_with = own.iter().filter(|own| **own).count();
    if rows.saturating_mul(layers_with) > MAX_PRIMES {
        let entry = config.any(&["heads_per_ngram", "ple_layer_ids"]);
        let entry = entry.ok_or(ConfigError::MissingKey("heads_per_ngram"))?;
        return Err(entry.invalid("with which a token chooses more rows than in any model"));
    }
    let base = count("ngram_vocab_size_base", 20_000_000, MAX_ROWS)? as u64;
    let divisor = count("make_ngram_vocab_size_divisible_by", 128, MAX_ROWS)? as u64;
    let parts = parts(config)? as u64;
    let mut prime = base - 1;
    for table in tables.iter_mut().zip(own).filter_map(|(table, own)| own.then_some(table)) {
        let mut all = 0;
        for _ in 0..rows {
            prime = next_prime(prime);
            all += prime;
        }
        let all = all.next_multiple_of(divisor);
        let each = all.div_ceil(parts);
        let of = |part: u64| all.saturating_sub(part * each).min(each) as usize;
        let parts = (0..parts).map(of).take_while(|rows| *rows > 0).collect();
        let spec = NgramSpec { size, heads, dim: width / rows, taps, end, parts, numbers: None };
        if spec.past(streams * hidden) > MAX_STATE {
            return Err(config
                .need("hidden_size")?
                .invalid("which with these n-grams no model has"));
        }
        *table = Some(spec);
    }
    Ok(tables)
}

/// The numbers of n-grams in a GGUF file. All sizes and offsets are those of rows.
fn numbers_of(
    entry: ConfigEntry<'_>,
    (size, rows): (usize, usize),
) -> Result<NgramNumbers, ConfigError> {
    let map = entry.object()?;
    let list = |key: &'static str, count: usize, most: u64| {
        let value = map.get(key).ok_or(ConfigError::MissingKey(key))?;
        let entry = ConfigEntry { key, value };
        let given = entry.list()?;
        if given.len() < count {
            let reason = format!("of {} entries, where {count} are needed", given.len());
            return Err(entry.invalid(reason));
        }
        let fits = |value: &Value| value.as_u64().filter(|number| *number <= most);
        let all: Option<Vec<i64>> =
            given[..count].iter().map(|value| Some(fits(value)? as i64)).collect();
        all.ok_or_else(|| entry.invalid(format!("which must list numbers up to {most}")))
    };
    let sizes = list("sizes", rows, MAX_ROWS)?;
    if sizes.contains(&0) {
        let entry = ConfigEntry { key: "sizes", value: &map["sizes"] };
        return Err(entry.invalid("where a head without rows is listed"));
    }
    let multipliers = list("multipliers", size, i64::MAX as u64)?;
    Ok(NgramNumbers { multipliers, sizes, offsets: list("offsets", rows, MAX_ROWS)? })
}

/// The token that ends a text; the first one if there are several.
fn end(config: &FamilyConfig) -> Result<u32, ConfigError> {
    let entry = config.need("eos_token_id")?;
    let first = match entry.value.as_list() {
        Some(list) => {
            ConfigEntry { value: list.first().ok_or(ConfigError::MissingKey(entry.key))?, ..entry }
        }
        None => entry,
    };
    Ok(first.count(MAX_WIDTH)? as u32)
}

/// Number of parts of a table.
fn parts(config: &FamilyConfig) -> Result<u32, ConfigError> {
    config.get("split_ngram_parts").map_or(Ok(512), |e| Ok(e.size(MAX_PARTS)? as u32))
}

/// Number of parts of n-gram tables in a checkpoint; 0 for families without such tables.
pub(crate) fn parts_of_tables(config: &FamilyConfig) -> Result<u32, ConfigError> {
    if FAMILY.model_types.contains(&config.model_type()) { parts(config) } else { Ok(0) }
}

/// The layer with the one table of a GGUF file.
pub(crate) fn layer_with_table(config: &FamilyConfig) -> u32 {
    let own = FAMILY.model_types.contains(&config.model_type());
    let layers = config.get("ple_layer_ids").filter(|_| own).and_then(|it| it.value.as_list());
    let first = layers.and_then(|all| all.first()?.as_u64()?.checked_sub(1));
    first.and_then(|layer| u32::try_from(layer).ok()).unwrap_or(0)
}

fn next_prime(after: u64) -> u64 {
    let is_prime = |n: &u64| {
        let odd = (3..).step_by(2).take_while(|d| d * d <= *n);
        *n == 2 || *n > 2 && n % 2 == 1 && odd.into_iter().all(|d| !n.is_multiple_of(d))
    };
    (after + 1..).find(is_prime).expect("there are primes above any number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_follow_each_other() {
        let cases = [(0, 2), (2, 3), (3, 5), (13, 17), (24, 29), (19_999_999, 20_000_003)];
        for (after, expected) in cases {
            assert_eq!(next_prime(after), expected);
        }
    }
}
