//! Entries of a configuration that are given under several names.
//!
//! They have to agree: nobody could say with which of them the weights were trained.

use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig};
use crate::spellings::{
    CONTEXT_OF_INKLING2, DENSE_OF_LONGCAT, DIVISOR_OF_LOGITS, EPS_OF_MIMO, EXPERT_OF_LONGCAT,
    EXPERTS, FACTOR_OF_INKLING2, GROUPS, LOOP_OF_INKLING2, PATTERN, RENORMALISE, TAPS_OF_INKLING,
    TAPS_OF_LING, TOP_K, WIDTH_OF_INKLING2, WINDOW_OF_INKLING,
};

/// Names of one entry, and the families in which they are; all, if none is named. A name
/// `object.entry` is that of an entry of an object.
const ALL: [(&[&str], &[&str]); 24] = [
    (&[], &EXPERTS),
    (&[], &TOP_K),
    (&[], &GROUPS),
    (&["bailing_hybrid"], &RENORMALISE),
    (&["bailing_hybrid"], &TAPS_OF_LING),
    (&["gemma3_text"], &PATTERN),
    (INKLING, &TAPS_OF_INKLING),
    (INKLING, &WINDOW_OF_INKLING),
    (INKLING2, &CONTEXT_OF_INKLING2),
    (INKLING2, &FACTOR_OF_INKLING2),
    (INKLING2, &WIDTH_OF_INKLING2),
    (LOOP, &LOOP_OF_INKLING2[0]),
    (LOOP, &LOOP_OF_INKLING2[1]),
    (LOOP, &LOOP_OF_INKLING2[2]),
    (LOOP, &LOOP_OF_INKLING2[3]),
    (&["inkling_text"], &DIVISOR_OF_LOGITS),
    (&["longcat_flash"], &DENSE_OF_LONGCAT),
    (&["longcat_flash"], &EXPERT_OF_LONGCAT),
    (&["mimo_v2_flash"], &EPS_OF_MIMO),
    (M3, &["sparse_attention_config.sparse_num_index_heads", "index_n_heads"]),
    (M3, &["sparse_attention_config.sparse_index_dim", "index_head_dim"]),
    (M3, &["sparse_attention_config.sparse_block_size", "index_block_size"]),
    (M3, &["sparse_attention_config.sparse_topk_blocks", "index_topk_blocks"]),
    (M3, &["sparse_attention_config.sparse_local_block", "index_local_blocks"]),
];

const INKLING: &[&str] = &["inkling_text", "inkling2_text", "inkling2_loop_text"];
const INKLING2: &[&str] = &["inkling2_text", "inkling2_loop_text"];
const LOOP: &[&str] = &["inkling2_loop_text"];
const M3: &[&str] = &["minimax_m3_vl_text"];

/// Refuses a configuration that gives one entry two values, under two names.
pub(crate) fn check(config: &FamilyConfig<'_>) -> Result<(), ConfigError> {
    for (families, names) in ALL {
        if !families.is_empty() && !families.contains(&config.model_type()) {
            continue;
        }
        for level in config.levels() {
            let mut given = names.iter().filter_map(|name| entry(level, name));
            let Some(first) = given.next() else { continue };
            if let Some(other) = given.find(|other| !same(*other, first)) {
                return Err(other.beside(first));
            }
        }
    }
    Ok(())
}

fn entry<'a>(level: &'a ConfigMap, name: &'static str) -> Option<ConfigEntry<'a>> {
    let value = match name.split_once('.') {
        Some((object, key)) => level.get(object)?.as_map()?.get(key)?,
        None => level.get(name)?,
    };
    (!value.is_null()).then_some(ConfigEntry { key: name, value })
}

/// True for equal values; whole numbers may be written with a point.
fn same(one: ConfigEntry<'_>, other: ConfigEntry<'_>) -> bool {
    let numbers = one.value.as_f64().zip(other.value.as_f64());
    one.value == other.value || numbers.is_some_and(|(one, other)| one == other)
}
