//! Llama 4, from the keys of a GGUF file. Most options have no key: they are those of the published
//! models.

use sws_format::Value;

use super::architectures::{Architecture, QWEN3};
use super::layers::{insert, rename, word};
use super::{GgufKeys, GgufMap, int, render, unsupported};
use crate::config::ConfigError;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama4",
    model_types: [None, Some("llama4_text")],
    qk_norm: false,
    no_bias: true,
    gating: 2.0,
    shared: true,
    needed: &[&[
        "expert_count",
        "expert_feed_forward_length",
        "feed_forward_length",
        "interleave_moe_layer_step",
    ]],
    own: &[&[
        ("attention.sliding_window", ""),
        ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ]],
    more: Some(add),
    ..QWEN3
};

/// Experts of the one published model whose queries and keys are not normed.
const MAVERICK: u64 = 128;

/// Positions of a block of keys, and of a step in the growth of queries.
const CHUNK: u64 = 8192;

fn add(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    rename(
        entries,
        &[
            ("intermediate_size", "intermediate_size_mlp"),
            ("moe_intermediate_size", "intermediate_size"),
        ],
    );
    let name = keys.name("attention.sliding_window");
    // A file without windows rotates all layers.
    let chunked = match keys.given.get(&name).map(Value::as_u64) {
        None | Some(Some(CHUNK)) => true,
        Some(Some(0)) => false,
        Some(_) => {
            return Err(unsupported(format!("`{name}` = {}", render(&keys.given[&name]))));
        }
    };
    let flag = |layer: u64| int(u64::from(!chunked || !(layer + 1).is_multiple_of(4)));
    insert(
        entries,
        [
            ("attention_chunk_size", if chunked { int(CHUNK) } else { Value::Null }),
            ("attn_scale", Value::Float(0.1)),
            ("floor_scale", int(CHUNK)),
            ("no_rope_layers", Value::List((0..layers).map(flag).collect())),
            ("use_qk_norm", Value::Bool(keys.whole("expert_count")? != Some(MAVERICK))),
        ],
    );
    if !chunked {
        let full = word("full_attention");
        let kinds = vec![full; layers as usize];
        entries.insert("layer_types".to_owned(), Value::List(kinds));
    }
    Ok(())
}
