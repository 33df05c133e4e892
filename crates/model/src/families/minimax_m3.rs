//! MiniMax M3: attention to blocks of positions in most layers, experts beside a shared one, and
//! the activation of gpt-oss everywhere.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{
    Common, FamilyDefaults, MAX_WIDTH, chosen, full_layers, switched_off, switched_on, width,
};
use super::entries::{entry_in, positive_or, size_or};
use super::kimi_linear::SHARED;
use super::minimax::CORRECTION;
use super::per_layer::flags_of_layers;
use super::ranked::{RankedLayers, listed, only};
use super::{ATTENTION, ENDS, Family, MLP, NORMS, TensorRule, matrix, mixtral, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{
    AttentionExtras, AttentionSpec, BlocksSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, QkNorm,
    RankedRouter, Router, SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["minimax_m3_vl_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, INDEXER, MLP, mixtral::MOE, CORRECTION, SHARED],
    spec,
};

const INDEXER: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::IndexKey, "self_attn.index_k_proj.weight"),
    matrix(PieceKind::Attention, Role::IndexQuery, "self_attn.index_q_proj.weight"),
    small(PieceKind::Attention, Role::BlockQueryNorm, "self_attn.index_q_norm.weight"),
    small(PieceKind::Attention, Role::BlockKeyNorm, "self_attn.index_k_norm.weight"),
];

const HEAD_DIM: usize = 128;

/// Maximum number of selected blocks, and of positions in a block.
const MAX_BLOCKS: u64 = 1 << 12;

/// All norms add one to their weights, as is already done in GGUF files. Whole heads are rotated,
/// unless a share is given.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    for key in ["use_gemma_norm", "use_qk_norm", "use_routing_bias"] {
        switched_on(config, key)?;
    }
    switched_off(config, "attention_output_gate")?;
    only(config, "qk_norm_type", "per_head")?;
    only(config, "scoring_func", "sigmoid")?;
    if let Some(entry) = config.get("n_shared_experts")
        && entry.count(MAX_COUNT)? != 1
    {
        return Err(config.unsupported(entry, "1"));
    }
    // Transformers writes this entry beside the rotary entries, but never reads it.
    if let Some(entry) = config.get("rotary_dim")
        && config.get("partial_rotary_factor").is_none()
        && config.get("rope_parameters").is_none()
    {
        return Err(config.unsupported(entry, "a share of heads, `partial_rotary_factor`"));
    }
    let defaults = FamilyDefaults {
        eps: 1e-6,
        theta: 5e6,
        kv_heads: Some(4),
        head_dim: Some(HEAD_DIM),
        rotated: Some(1.0),
        context: 524_288,
    };
    let mut common = Common::read(config, &defaults)?;
    if !config.is_gguf() {
        common.decoder.norm = common.decoder.norm.one_plus();
    }
    let attention = AttentionSpec { qk_norm: QkNorm::PerHead, ..common.attention.clone() };
    let rotated = 2 * common.ropes[0].inv_freq.len();
    let (selects, blocks) = blocks(config, common.layers, attention.heads, rotated)?;
    let alpha = positive_or(config.get("swiglu_alpha"), 1.702)? as f32;
    let limit = positive_or(config.get("swiglu_limit"), 7.0)? as f32;
    let scale = positive_or(config.get("routed_scaling_factor"), 2.0)? as f32;
    let routed = routed_of(config, common.layers)?;
    let layers = RankedLayers::of(config, routed, "dense_intermediate_size", |config| {
        experts(config, scale)
    })?;
    let layers = layers.activated(Activation::Clamped { alpha, limit });
    common.model(|l| {
        let blocks = selects[l].then_some(blocks);
        let extras = AttentionExtras { blocks, ..attention.extras };
        (AttentionSpec { extras, ..attention.clone() }, layers.ffn(l))
    })
}

fn experts(config: &FamilyConfig, scale: f32) -> Result<Ffn, ConfigError> {
    let router = Router::Ranked(RankedRouter { scale, ..RankedRouter::sigmoid() });
    let shared = MlpSpec::silu(width(config, "shared_intermediate_size")?);
    let shared = Some(SharedSpec::added(shared));
    let chosen = chosen(config)?;
    let expert = MlpSpec::silu(width(config, "intermediate_size")?);
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen, expert, router) }))
}

/// True for each layer with experts; by default all layers.
fn routed_of(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    match (config.get("mlp_layer_types"), config.get("moe_layer_freq")) {
        (Some(entry), _) => listed(config, entry, layers),
        (None, Some(entry)) => flags_of_layers(entry, layers),
        (None, None) => Ok(vec![true; layers]),
    }
}

/// True for each layer that selects blocks, and the selection that all of them share. The hub's
/// spelling, an object of its own, has precedence over the entries that transformers writes.
fn blocks(
    config: &FamilyConfig,
    layers: usize,
    heads: usize,
    rotated: usize,
) -> Result<(Vec<bool>, BlocksSpec), ConfigError> {
    let sparse = config.get("sparse_attention_config").map(ConfigEntry::object).transpose()?;
    let of_heads = entry_in(sparse, "sparse_num_index_heads").or(config.get("index_n_heads"));
    let of_dim = entry_in(sparse, "sparse_index_dim").or(config.get("index_head_dim"));
    let of_size = entry_in(sparse, "sparse_block_size").or(config.get("index_block_size"));
    let of_most = entry_in(sparse, "sparse_topk_blocks").or(config.get("index_topk_blocks"));
    let of_last = entry_in(sparse, "sparse_local_block").or(config.get("index_local_blocks"));
    let spec = BlocksSpec {
        heads: size_or(of_heads, 4, MAX_COUNT)?,
        dim: size_or(of_dim, 128, MAX_HEAD_DIM)?,
        size: size_or(of_size, 128, MAX_BLOCKS)?,
        most: size_or(of_most, 16, MAX_BLOCKS)?,
        last: match of_last {
            Some(entry) => entry.count(MAX_BLOCKS)? as usize,
            None => 1,
        },
        pooled: false,
        mixed: false,
    };
    let BlocksSpec { heads: of_index, dim, most, last, .. } = spec;
    let supported = "full_attention, minimax_m3_sparse";
    let selects = match full_layers(config, layers, "minimax_m3_sparse", supported)? {
        Some(full) => full.into_iter().map(|full| !full).collect(),
        None => match entry_in(sparse, "sparse_attention_freq") {
            Some(entry) => flags_of_layers(entry, layers)?,
            // Without a list of its layers, the object has no effect.
            None if sparse.is_some() => {
                return Err(ConfigError::MissingKey("sparse_attention_freq"));
            }
            None => vec![false; layers],
        },
    };
    if !selects.contains(&true) {
        return Ok((selects, spec));
    }
    if let Some(entry) = entry_in(sparse, "use_sparse_attention")
        && !entry.flag()?
    {
        return Err(config.unsupported(entry, "true"));
    }
    if let Some(entry) = entry_in(sparse, "sparse_init_block")
        && entry.count(MAX_BLOCKS)? != 0
    {
        return Err(config.unsupported(entry, "0, no first blocks that are always seen"));
    }
    if let Some(entry) = entry_in(sparse, "sparse_score_type")
        && entry.word()? != "max"
    {
        return Err(config.unsupported(entry, "max"));
    }
    // An additional value of indexers, which must be disabled.
    if let Some(entry) = entry_in(sparse, "sparse_disable_index_value")
        && let without = flags_of_layers(entry, layers)?
        && selects.iter().zip(without).any(|(selects, without)| *selects && !without)
    {
        return Err(config.unsupported(entry, "1 for all layers that select blocks"));
    }
    if !heads.is_multiple_of(of_index) {
        let reason = format!("of which the {heads} query heads are not a multiple");
        let missing = ConfigError::MissingKey("sparse_num_index_heads");
        return Err(of_heads.ok_or(missing)?.invalid(reason));
    }
    if dim < rotated || spec.width() as u64 > MAX_WIDTH {
        let reason = match dim < rotated {
            true => format!("which is less than the {rotated} elements that are rotated"),
            false => format!("which with {of_index} heads no model has"),
        };
        let missing = ConfigError::MissingKey("sparse_index_dim");
        return Err(of_dim.ok_or(missing)?.invalid(reason));
    }
    if last > most {
        let reason = format!("and only {most} blocks are selected");
        let missing = ConfigError::MissingKey("sparse_local_block");
        return Err(of_last.ok_or(missing)?.invalid(reason));
    }
    Ok((selects, spec))
}
