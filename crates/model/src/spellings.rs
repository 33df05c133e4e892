//! Names of one entry in the several spellings of configurations.
//!
//! Families read the first of them that is given. Two that are given together have to agree:
//! nobody could say which of them the weights were trained with.

use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig};

/// The number of experts of a layer.
pub(crate) const EXPERTS: [&str; 4] =
    ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];

/// The number of experts for a token.
pub(crate) const TOP_K: [&str; 6] = [
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_k",
    "moe_topk",
    "moe_top_k",
    "top_k_experts",
];

/// The name of [`EXPERTS`] that configurations of this model type have.
pub(crate) fn experts_of(model_type: &str) -> &'static str {
    match model_type {
        "gpt_oss" | "granitemoe" | "granitemoehybrid" | "llama4_text" | "minimax_m2"
        | "minimax_m3_vl_text" | "mixtral" | "phimoe" => "num_local_experts",
        "deepseek_v2" | "deepseek_v3" | "deepseek_v32" | "deepseek_v4" | "dots1" | "glm4_moe"
        | "glm4_moe_lite" | "glm5_next_text" | "glm_moe_dsa" | "hy_v4" | "inkling_text"
        | "kimi_k2" | "longcat_flash" | "mimo_v2_flash" | "mistral4" | "nemotron_h"
        | "solar_open" => "n_routed_experts",
        "ernie4_5_moe" | "step3p5" => "moe_num_experts",
        _ => "num_experts",
    }
}

/// The name of [`TOP_K`] that they have.
pub(crate) fn top_k_of(model_type: &str) -> &'static str {
    match model_type {
        "ernie4_5_moe" => "moe_k",
        "gemma4_text" => "top_k_experts",
        "hunyuan_v1_moe" | "longcat_flash" => "moe_topk",
        "kimi_linear" => "num_experts_per_token",
        "step3p5" => "moe_top_k",
        _ => "num_experts_per_tok",
    }
}

/// Groups of experts.
pub(crate) const GROUPS: [&str; 2] = ["n_group", "num_expert_group"];

/// Weights of experts that are divided by their sum.
pub(crate) const RENORMALISE: [&str; 2] = ["moe_renormalize", "norm_topk_prob"];

/// Taps of the convolutions of Ling and of Inkling.
pub(crate) const TAPS_OF_LING: [&str; 2] = ["linear_conv_kernel_dim", "short_conv_kernel_size"];
pub(crate) const TAPS_OF_INKLING: [&str; 2] = ["conv_kernel_size", "sconv_kernel_size"];

/// The window of Inkling, and the divisor of its logits.
pub(crate) const WINDOW_OF_INKLING: [&str; 2] = ["sliding_window_size", "sliding_window"];
pub(crate) const DIVISOR_OF_LOGITS: [&str; 2] =
    ["logits_mup_width_multiplier", "embedding_multiplier"];

/// Layers of Gemma 3 from one without a window to the next.
pub(crate) const PATTERN: [&str; 2] = ["sliding_window_pattern", "_sliding_window_pattern"];

/// Widths of LongCat.
pub(crate) const DENSE_OF_LONGCAT: [&str; 2] = ["ffn_hidden_size", "intermediate_size"];
pub(crate) const EXPERT_OF_LONGCAT: [&str; 2] = ["expert_ffn_hidden_size", "moe_intermediate_size"];

/// What is added to the squares of a norm in MiMo.
pub(crate) const EPS_OF_MIMO: [&str; 2] = ["rms_norm_eps", "layernorm_epsilon"];

/// Names of one entry, and the families in which they are; all, if none is named. A name
/// `object.entry` is that of an entry of an object.
const ALL: [(&[&str], &[&str]); 17] = [
    (&[], &EXPERTS),
    (&[], &TOP_K),
    (&[], &GROUPS),
    (&["bailing_hybrid"], &RENORMALISE),
    (&["bailing_hybrid"], &TAPS_OF_LING),
    (&["gemma3_text"], &PATTERN),
    (&["inkling_text"], &TAPS_OF_INKLING),
    (&["inkling_text"], &WINDOW_OF_INKLING),
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

const M3: &[&str] = &["minimax_m3_vl_text"];

/// Refuses a configuration that gives one entry two values, under two names.
pub(crate) fn check(config: &FamilyConfig<'_>) -> Result<(), ConfigError> {
    let apply = |families: &[&str]| families.is_empty() || families.contains(&config.model_type());
    for (_, names) in ALL.into_iter().filter(|(families, _)| apply(families)) {
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
