//! Names of one entry in different spellings of configurations.
//!
//! Families read the first of them that is given.

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

/// The spelling in [`EXPERTS`] that configurations of this model type have.
pub(crate) fn experts_of(model_type: &str) -> &'static str {
    match model_type {
        "gpt_oss" | "granitemoe" | "granitemoehybrid" | "llama4_text" | "minimax_m2"
        | "minimax_m3_vl_text" | "mixtral" | "muse_spark_text" | "phimoe" => "num_local_experts",
        "axk1"
        | "axk2"
        | "deepseek_v2"
        | "deepseek_v3"
        | "deepseek_v32"
        | "deepseek_v4"
        | "dots1"
        | "dots3_note_text"
        | "glm4_moe"
        | "glm4_moe_lite"
        | "glm5_next_text"
        | "glm_moe_dsa"
        | "hy_v4"
        | "inkling2_loop_text"
        | "inkling2_text"
        | "inkling_text"
        | "kimi_k2"
        | "longcat_flash"
        | "mimo_v2_flash"
        | "mistral4"
        | "mistral_large4_text"
        | "nemotron_h"
        | "solar_open" => "n_routed_experts",
        "ernie4_5_moe" | "step3p5" => "moe_num_experts",
        _ => "num_experts",
    }
}

/// The spelling in [`TOP_K`] that configurations of this model type have.
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

/// True if the weights of experts are divided by their sum.
pub(crate) const RENORMALISE: [&str; 2] = ["moe_renormalize", "norm_topk_prob"];

/// Taps of the convolutions of Ling and of Inkling.
pub(crate) const TAPS_OF_LING: [&str; 2] = ["linear_conv_kernel_dim", "short_conv_kernel_size"];
pub(crate) const TAPS_OF_INKLING: [&str; 2] = ["conv_kernel_size", "sconv_kernel_size"];

/// The width of experts of Inkling 2, their factor, and its context.
pub(crate) const WIDTH_OF_INKLING2: [&str; 2] = ["moe_intermediate_size", "intermediate_size"];
pub(crate) const FACTOR_OF_INKLING2: [&str; 2] = ["route_scale", "routed_scaling_factor"];
pub(crate) const CONTEXT_OF_INKLING2: [&str; 2] = ["max_position_embeddings", "model_max_length"];

/// The layers of Inkling 2 that a pass visits several times, and how often.
pub(crate) const LOOP_OF_INKLING2: [[&str; 2]; 4] = [
    ["loop_config.core_start", "loop_layer_index_start"],
    ["loop_config.core_end", "loop_layer_index_end"],
    ["loop_config.num_passes", "loop_num_passes"],
    ["loop_config.gate_rank", "loop_gate_rank"],
];

/// The window of Inkling, and the divisor of its logits.
pub(crate) const WINDOW_OF_INKLING: [&str; 2] = ["sliding_window_size", "sliding_window"];
pub(crate) const DIVISOR_OF_LOGITS: [&str; 2] =
    ["logits_mup_width_multiplier", "embedding_multiplier"];

/// Layers of Gemma 3 from one without a window to the next.
pub(crate) const PATTERN: [&str; 2] = ["sliding_window_pattern", "_sliding_window_pattern"];

/// Widths of LongCat.
pub(crate) const DENSE_OF_LONGCAT: [&str; 2] = ["ffn_hidden_size", "intermediate_size"];
pub(crate) const EXPERT_OF_LONGCAT: [&str; 2] = ["expert_ffn_hidden_size", "moe_intermediate_size"];

/// The number added to the mean of squares in norms of MiMo.
pub(crate) const EPS_OF_MIMO: [&str; 2] = ["rms_norm_eps", "layernorm_epsilon"];
