//! dots3-note, from the keys of a GGUF file.

use super::architectures::{Architecture, DEEPSEEK2, WINDOW};
use super::latent::INDEXERS;
use super::layers::{add_kinds, insert};
use super::{GgufKeys, GgufMap, damaged, int, undamaged, unsupported};
use crate::config::ConfigError;

/// The weights of the norms of latents in files are those of the hub times the factors of latents.
/// Shared experts are as wide as the others, as in the published model.
pub(super) const DOTS3: Architecture = Architecture {
    name: "dots3note",
    model_types: [None, Some("dots3_note_text")],
    needed: &[&[
        "attention.head_count",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.key_length_mla_swa",
        "attention.kv_lora_rank_swa",
        "attention.q_lora_rank",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.value_length_mla_swa",
        "expert_feed_forward_length",
        "expert_shared_count",
        "rope.freq_base_swa",
    ]],
    lists: &["attention.head_count"],
    own: &[
        INDEXERS,
        WINDOW,
        &[
            ("attention.key_length_mla_swa", "swa_head_dim"),
            ("attention.key_length_swa", ""),
            ("attention.kv_lora_rank_swa", "swa_kv_lora_rank"),
            ("attention.q_lora_rank", "swa_q_lora_rank"),
            ("attention.sliding_window_pattern", ""),
            ("attention.value_length_mla_swa", "swa_v_head_dim"),
            ("attention.value_length_swa", ""),
            ("expert_feed_forward_length", "moe_shared_expert_intermediate_size"),
            ("rope.freq_base_swa", "swa_rope_theta"),
        ],
    ],
    more: Some(dots3),
    ..DEEPSEEK2
};

fn dots3(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    let windows = keys.windowed(layers, 4, false)?;
    let types = keys.name("attention.indexer.types");
    if let Some(given) = keys.given.get(&types) {
        let own = keys.flags(&types, given)?;
        if own.len() < windows.len() || own.iter().zip(&windows).any(|(own, it)| own == it) {
            return Err(unsupported(format!("`{types}` other than layers without a window")));
        }
    }
    let [full, local] = keys.by_kind("attention.head_count", &windows)?;
    let rotated = keys.needed("rope.dimension_count")?;
    let key = keys.needed("attention.key_length_mla_swa")?;
    let name = keys.name("attention.key_length_mla_swa");
    let plain = undamaged(key.checked_sub(rotated), &name, &int(key))?;
    // The head that files describe beside those of the model is as long as a latent.
    let rank = keys.needed("attention.kv_lora_rank_swa")?;
    let lengths = [
        ("attention.key_length_swa", rank.saturating_add(rotated)),
        ("attention.value_length_swa", rank),
    ];
    for (key, length) in lengths {
        if let Some(other) = keys.whole(key)?
            && other != length
        {
            return Err(damaged(&keys.name(key), &int(other)));
        }
    }
    add_kinds(entries, &windows, ["indexed_attention", "sliding_attention"]);
    insert(entries, [("swa_qk_nope_head_dim", int(plain)), ("swa_qk_rope_head_dim", int(rotated))]);
    let of_kinds = [("num_attention_heads", full.or(local)), ("swa_num_attention_heads", local)];
    for (entry, heads) in of_kinds {
        if let Some(heads) = heads {
            entries.insert(entry.to_owned(), int(heads));
        }
    }
    Ok(())
}
