//! Qwen3.8-Flash-Next, from the keys of a GGUF file. The numbers that determine the rows of n-grams
//! are keys, not tensors.

use std::collections::BTreeMap;

use sws_format::Value;

use super::architectures::{Architecture, QWEN3};
use super::layers::{insert, word};
use super::{GgufKeys, GgufMap, damaged, delta, different, int, undamaged, unsupported};
use crate::config::{ConfigError, NGRAM_NUMBERS};

/// Norm weights in files are those of the hub plus one.
pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen4exp",
    model_types: [None, Some("qwen4_exp_text")],
    renormalise: true,
    no_bias: true,
    needed: &[&[
        "attention.compress_ratios",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.key_length",
        "attention.recurrent_layers",
        "expert_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "expert_used_count",
        "hyper_connection.count",
        "hyper_connection.low_rank",
        "rope.dimension_count",
    ]],
    lists: &["attention.compress_ratios"],
    own: &[
        delta::KEYS,
        &[
            ("attention.compress_ratios", ""),
            ("attention.indexer.head_count", "indexer_n_heads"),
            ("attention.indexer.key_length", "indexer_head_dim"),
            ("attention.indexer.top_k", "indexer_budget"),
            ("embedding_length_per_layer_input", ""),
            ("hyper_connection.count", "hc_count"),
            ("hyper_connection.low_rank", "hc_lowrank"),
            ("ple.conv_kernel", "ple_conv_kernel_size"),
            ("ple.eos_token_id", "eos_token_id"),
            ("ple.head_offsets", ""),
            ("ple.head_vocab_sizes", ""),
            ("ple.heads_per_ngram", "heads_per_ngram"),
            // The token that stands for pictures.
            ("ple.image_token_id", ""),
            ("ple.layer_multipliers", ""),
            ("ple.layers", ""),
            ("ple.ngram_size", "ngram_size"),
        ],
    ],
    more: Some(add),
    ..QWEN3
};

/// Keys of n-grams without a usable default.
const NGRAMS: [&str; 5] = [
    "embedding_length_per_layer_input",
    "ple.conv_kernel",
    "ple.eos_token_id",
    "ple.heads_per_ngram",
    "ple.ngram_size",
];

/// Numbers of n-grams, and their names in [`NGRAM_NUMBERS`].
const NUMBERS: [(&str, &str); 3] = [
    ("ple.layer_multipliers", "multipliers"),
    ("ple.head_vocab_sizes", "sizes"),
    ("ple.head_offsets", "offsets"),
];

fn add(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.add_delta(entries, layers)?;
    let name = keys.name("attention.compress_ratios");
    let ratios = keys.wholes_of_layers("attention.compress_ratios", layers)?.unwrap_or_default();
    let mut own = None;
    for ratio in ratios {
        if ratio > 0 && *own.get_or_insert(ratio) != ratio {
            return Err(different(&name));
        }
    }
    if let Some(ratio) = own {
        entries.insert("indexer_compress_ratio".to_owned(), int(ratio));
    }
    insert(entries, [("indexer_kv_heads", int(1)), ("output_gate_type", word("sigmoid"))]);
    keys.add_ngrams(entries)
}

impl GgufKeys<'_> {
    /// Adds the n-grams of the one layer that has a table, if there is one.
    fn add_ngrams(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let key = "ple.layers";
        let name = self.name(key);
        let Some(given) = self.given.get(&name) else { return Ok(()) };
        let layer = match undamaged(given.as_list(), &name, given)? {
            [] => return Ok(()),
            [layer] => undamaged(layer.as_u64(), &name, given)?,
            _ => return Err(unsupported(format!("`{name}` with several layers"))),
        };
        let mut sizes = [0; 5];
        for (size, key) in sizes.iter_mut().zip(NGRAMS) {
            *size = self.needed(key)?;
        }
        let [dim, .., heads, longest] = sizes;
        let width = longest.saturating_sub(1).saturating_mul(heads).saturating_mul(dim);
        let mut numbers = BTreeMap::new();
        for (key, entry) in NUMBERS {
            let name = self.name(key);
            let given = self.present(self.given.get(&name), key)?;
            let Value::List(_) = given else { return Err(damaged(&name, given)) };
            numbers.insert(entry.to_owned(), given.clone());
        }
        insert(
            entries,
            [
                // Numbers of layers begin with 1.
                ("ple_layer_ids", Value::List(vec![int(layer.saturating_add(1))])),
                ("ple_embed_dim", int(width)),
                ("split_ngram_parts", int(1)),
                (NGRAM_NUMBERS, Value::Map(numbers)),
            ],
        );
        Ok(())
    }
}
