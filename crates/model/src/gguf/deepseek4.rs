//! DeepSeek V4, from the keys of a GGUF file.

use sws_format::Value;

use super::architectures::{Architecture, QWEN3, WINDOW};
use super::layers::insert;
use super::{GgufKeys, GgufMap, damaged};
use crate::config::ConfigError;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek4",
    model_types: [None, Some("deepseek_v4")],
    qk_norm: false,
    no_bias: true,
    renormalise: true,
    gating: 4.0,
    needed: &[&[
        "attention.compress_ratios",
        "attention.compress_rope_freq_base",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.key_length",
        "attention.output_group_count",
        "attention.output_lora_rank",
        "attention.q_lora_rank",
        "attention.sliding_window",
        "expert_count",
        "expert_used_count",
        "expert_weights_scale",
        "hash_layer_count",
        "hyper_connection.count",
        "hyper_connection.epsilon",
        "hyper_connection.sinkhorn_iterations",
        "rope.dimension_count",
        "swiglu_clamp_exp",
    ]],
    lists: &["attention.compress_ratios", "swiglu_clamp_exp", "swiglu_clamp_shexp"],
    own: &[
        WINDOW,
        STREAMS,
        &[
            ("attention.compress_ratios", ""),
            ("attention.compress_rope_freq_base", "compress_rope_theta"),
            ("attention.indexer.head_count", "index_n_heads"),
            ("attention.indexer.key_length", "index_head_dim"),
            ("attention.indexer.top_k", "index_topk"),
            ("attention.output_group_count", "o_groups"),
            ("attention.output_lora_rank", "o_lora_rank"),
            ("attention.q_lora_rank", "q_lora_rank"),
            ("embedding_length_out", ""),
            ("expert_shared_count", "n_shared_experts"),
            ("expert_weights_scale", "routed_scaling_factor"),
            ("hash_layer_count", "num_hash_layers"),
            ("rope.dimension_count", "qk_rope_head_dim"),
            ("swiglu_clamp_exp", ""),
            ("swiglu_clamp_shexp", ""),
        ],
    ],
    more: Some(add),
    ..QWEN3
};

/// Keys of residual streams, and the corresponding entries of configurations.
pub(super) const STREAMS: &[(&str, &str)] = &[
    ("hyper_connection.count", "hc_mult"),
    ("hyper_connection.epsilon", "hc_eps"),
    ("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"),
];

fn add(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    // The share follows from the number of rotated elements.
    entries.remove("partial_rotary_factor");
    let name = keys.name("embedding_length_out");
    let width =
        keys.needed("embedding_length")?.saturating_mul(keys.needed("hyper_connection.count")?);
    if let Some(value) = keys.given.get(&name)
        && value.as_u64() != Some(width)
    {
        return Err(damaged(&name, value));
    }
    let name = keys.name("attention.compress_ratios");
    let Some(ratios @ Value::List(_)) = keys.given.get(&name) else {
        return Err(damaged(&name, &keys.given[&name]));
    };
    insert(entries, [("compress_ratios", ratios.clone()), ("swiglu_limit", keys.limit(layers)?)]);
    Ok(())
}
