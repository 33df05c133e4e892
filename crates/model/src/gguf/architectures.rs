//! Differences between the architectures of GGUF files.

use super::latent::{self, INDEXERS};
use super::{
    GgufKeys, GgufMap, deepseek4, delta, dots3, elements, gemma4, ling, llama4, minimax, muse,
    qwen4, state_space, windows,
};
use crate::config::ConfigError;

/// Adds the entries that need more than a copy, given the number of layers.
pub(super) type AddMore = fn(&GgufKeys<'_>, &mut GgufMap, u64) -> Result<(), ConfigError>;

/// The properties of an architecture.
pub(super) struct Architecture {
    pub(super) name: &'static str,
    /// Model types in transformers: without experts, and with them.
    pub(super) model_types: [Option<&'static str>; 2],
    /// True if rotated pairs are adjacent rows.
    pub(super) paired: bool,
    /// True if queries and keys may be normed.
    pub(super) qk_norm: bool,
    /// True if the output of attention never has a bias, though queries, keys and values may.
    pub(super) plain_output: bool,
    /// True if the weights of the chosen experts are divided by their sum.
    pub(super) renormalise: bool,
    /// The number of the function that turns the router's logits into weights.
    pub(super) gating: f64,
    /// True if experts have groups, a correction and a scale, and layers without experts may come
    /// first.
    pub(super) ranked: bool,
    /// True if keys and values are products of a latent.
    pub(super) latent: bool,
    /// True if yarn rounds the bounds of its frequency blend to integers.
    pub(super) rounded_yarn: bool,
    /// True if layers with something else in place of attention have 0 key heads.
    pub(super) recurrent: bool,
    /// The number of layers of the largest model, if that model has factors of its own.
    pub(super) largest: Option<u64>,
    /// True if attention has no biases.
    pub(super) no_bias: bool,
    /// True if the width of the shared expert follows from other keys.
    pub(super) shared: bool,
    /// Key of the number added to the mean of squares in norms.
    pub(super) eps: &'static str,
    /// Further keys without a usable default, in lists that architectures share.
    pub(super) needed: &'static [&'static [&'static str]],
    /// Keys that may have a list with other values for some layers.
    pub(super) lists: &'static [&'static str],
    /// Keys that only this architecture may have, and the corresponding entries of configurations,
    /// if the value needs no conversion.
    pub(super) own: &'static [&'static [(&'static str, &'static str)]],
    pub(super) more: Option<AddMore>,
}

pub(super) const WINDOW: &[(&str, &str)] = &[("attention.sliding_window", "sliding_window")];
pub(super) const PARTIAL: &[(&str, &str)] = &[("rope.dimension_count", "")];

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    model_types: [Some("llama"), Some("mixtral")],
    paired: true,
    qk_norm: false,
    plain_output: false,
    renormalise: true,
    gating: 1.0,
    ranked: false,
    latent: false,
    recurrent: false,
    largest: None,
    no_bias: false,
    shared: false,
    rounded_yarn: true,
    eps: "attention.layer_norm_rms_epsilon",
    needed: &[],
    lists: &[],
    own: &[WINDOW],
    more: None,
};

const QWEN2: Architecture = Architecture {
    name: "qwen2",
    model_types: [Some("qwen2"), None],
    paired: false,
    plain_output: true,
    renormalise: false,
    own: &[],
    ..LLAMA
};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    model_types: [Some("qwen3"), None],
    qk_norm: true,
    plain_output: false,
    ..QWEN2
};

/// DeepSeek V2 to V3.1, Kimi K2 and GLM 4.7 Flash.
pub(super) const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    model_types: [None, Some("deepseek_v3")],
    qk_norm: false,
    plain_output: true,
    gating: 2.0,
    ranked: true,
    latent: true,
    ..QWEN2
};

/// Norm weights in files are those of the hub plus one.
const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    model_types: [Some("gemma2"), None],
    no_bias: true,
    largest: Some(46),
    own: &[&[
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("attention.sliding_window", "sliding_window"),
    ]],
    ..QWEN2
};

const QWEN3NEXT: Architecture = Architecture {
    name: "qwen3next",
    model_types: [None, Some("qwen3_next")],
    renormalise: true,
    no_bias: true,
    own: &[delta::KEYS],
    more: Some(|keys, entries, layers| keys.add_delta(entries, layers)),
    ..QWEN3
};

pub(super) static ARCHITECTURES: [Architecture; 47] = [
    LLAMA,
    QWEN2,
    Architecture {
        name: "qwen2moe",
        model_types: [None, Some("qwen2_moe")],
        own: &[&[("expert_shared_feed_forward_length", "shared_expert_intermediate_size")]],
        ..QWEN2
    },
    QWEN3,
    Architecture {
        name: "qwen3moe",
        model_types: [None, Some("qwen3_moe")],
        renormalise: true,
        ..QWEN3
    },
    Architecture {
        name: "olmoe",
        model_types: [None, Some("olmoe")],
        own: &[&[("attention.clamp_kqv", "clip_qkv")]],
        ..QWEN3
    },
    Architecture {
        name: "gpt-oss",
        model_types: [None, Some("gpt_oss")],
        qk_norm: false,
        gating: 3.0,
        rounded_yarn: false,
        own: &[WINDOW],
        ..QWEN3
    },
    Architecture {
        name: "glm4moe",
        model_types: [None, Some("glm4_moe")],
        plain_output: true,
        renormalise: true,
        gating: 2.0,
        ranked: true,
        own: &[PARTIAL],
        ..QWEN3
    },
    DEEPSEEK2,
    Architecture {
        name: "deepseek32",
        model_types: [None, Some("deepseek_v32")],
        own: &[INDEXERS],
        ..DEEPSEEK2
    },
    Architecture {
        name: "glm-dsa",
        model_types: [None, Some("glm_moe_dsa")],
        own: &[INDEXERS],
        ..DEEPSEEK2
    },
    Architecture {
        name: "dots1",
        model_types: [None, Some("dots1")],
        gating: 2.0,
        ranked: true,
        own: &[],
        ..QWEN3
    },
    Architecture {
        name: "minimax-m2",
        model_types: [None, Some("minimax_m2")],
        gating: 2.0,
        no_bias: true,
        own: &[PARTIAL],
        ..QWEN3
    },
    Architecture {
        name: "ernie4_5-moe",
        model_types: [None, Some("ernie4_5_moe")],
        no_bias: true,
        own: &[&[
            ("interleave_moe_layer_step", "moe_layer_interval"),
            ("leading_dense_block_count", "moe_layer_start_index"),
            ("expert_shared_count", "moe_num_shared_experts"),
            // This is not the width of these experts: the converter divides by the number of key
            // heads.
            ("expert_shared_feed_forward_length", ""),
        ]],
        ..QWEN2
    },
    Architecture {
        name: "hunyuan-moe",
        model_types: [None, Some("hunyuan_v1_moe")],
        own: &[&[
            ("expert_shared_count", "num_shared_expert"),
            ("expert_shared_feed_forward_length", ""),
        ]],
        ..QWEN3
    },
    Architecture {
        name: "lfm2moe",
        model_types: [None, Some("lfm2_moe")],
        renormalise: true,
        gating: 2.0,
        recurrent: true,
        no_bias: true,
        own: &[&[
            ("shortconv.l_cache", "conv_L_cache"),
            ("leading_dense_block_count", "num_dense_layers"),
        ]],
        more: Some(|keys, entries, _| keys.add_convolutions(entries)),
        ..QWEN3
    },
    GEMMA2,
    Architecture {
        name: "gemma3",
        model_types: [Some("gemma3_text"), None],
        qk_norm: true,
        largest: Some(62),
        own: &[&[
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("attention.sliding_window", "sliding_window"),
            ("rope.freq_base_swa", "rope_local_base_freq"),
        ]],
        ..GEMMA2
    },
    Architecture {
        name: "gemma4",
        model_types: [Some("gemma4_text"), Some("gemma4_text")],
        qk_norm: true,
        renormalise: true,
        largest: None,
        lists: &gemma4::LISTS,
        own: &[gemma4::KEYS],
        more: Some(|keys, entries, _| keys.add_gemma4(entries)),
        ..GEMMA2
    },
    QWEN3NEXT,
    Architecture { name: "qwen35moe", model_types: [None, Some("qwen3_5_moe_text")], ..QWEN3NEXT },
    Architecture { name: "qwen35", model_types: [Some("qwen3_5_text"), None], ..QWEN3NEXT },
    Architecture { name: "smollm3", model_types: [Some("smollm3"), None], own: &[], ..LLAMA },
    Architecture {
        name: "granitemoe",
        model_types: [None, Some("granitemoe")],
        own: &[&[
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ]],
        ..LLAMA
    },
    deepseek4::ARCHITECTURE,
    qwen4::ARCHITECTURE,
    llama4::ARCHITECTURE,
    state_space::GRANITE,
    state_space::NEMOTRON,
    minimax::M3,
    elements::KIMI,
    elements::GLM,
    elements::LING,
    ling::FIRST,
    ling::SECOND,
    windows::AFMOE,
    windows::LAGUNA,
    windows::MELLUM,
    muse::GLIMMER,
    latent::MISTRAL,
    latent::HUNYUAN,
    dots3::DOTS3,
    windows::COHERE,
    windows::EXAONE,
    windows::STEP,
    windows::MIMO,
    ling::HUNYUAN,
];
