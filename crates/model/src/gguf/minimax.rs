//! MiniMax M3, from the keys of a GGUF file. Norm weights in files are those of the hub plus one,
//! and the limit of the activation is that of the published model.

use sws_format::Value;

use super::architectures::{Architecture, PARTIAL, QWEN3};
use super::layers::{add_kinds, insert, rename, word};
use super::{GgufKeys, GgufMap, int};
use crate::config::ConfigError;

pub(super) const M3: Architecture = Architecture {
    name: "minimax-m3",
    model_types: [None, Some("minimax_m3_vl_text")],
    no_bias: true,
    gating: 2.0,
    renormalise: true,
    shared: true,
    needed: &[&[
        "attention.indexer.block_size",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.local_blocks",
        "attention.indexer.top_k",
        "expert_feed_forward_length",
        "expert_gating_func",
        "expert_shared_count",
        "expert_weights_scale",
    ]],
    own: &[
        PARTIAL,
        &[
            ("attention.indexer.block_size", "index_block_size"),
            ("attention.indexer.head_count", "index_n_heads"),
            ("attention.indexer.key_length", "index_head_dim"),
            ("attention.indexer.local_blocks", "index_local_blocks"),
            ("attention.indexer.top_k", "index_topk_blocks"),
            ("expert_shared_count", "n_shared_experts"),
            ("expert_weights_scale", "routed_scaling_factor"),
            ("leading_dense_block_count", ""),
        ],
    ],
    more: Some(add),
    ..QWEN3
};

fn add(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.always_renormalises()?;
    rename(
        entries,
        &[
            ("intermediate_size", "dense_intermediate_size"),
            ("moe_intermediate_size", "intermediate_size"),
        ],
    );
    let width = keys.needed("expert_feed_forward_length")?;
    let shared = width.saturating_mul(keys.needed("expert_shared_count")?);
    // The dense layers come first, and see all positions.
    let dense = keys.whole("leading_dense_block_count")?.unwrap_or(0);
    let sparse: Vec<bool> = (0..layers).map(|layer| layer >= dense).collect();
    add_kinds(entries, &sparse, ["full_attention", "minimax_m3_sparse"]);
    let kind = |sparse: &bool| word(if *sparse { "sparse" } else { "dense" });
    insert(
        entries,
        [
            ("mlp_layer_types", Value::List(sparse.iter().map(kind).collect())),
            ("shared_intermediate_size", int(shared)),
        ],
    );
    Ok(())
}
