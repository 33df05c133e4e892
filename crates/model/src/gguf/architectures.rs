//! How the architectures of GGUF files differ.

/// How the models of an architecture differ.
pub(super) struct Architecture {
    pub(super) name: &'static str,
    /// Model types in transformers: without experts, and with them.
    pub(super) model_types: [Option<&'static str>; 2],
    /// True if pairs that a rotary embedding turns are adjacent rows.
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
    /// True if yarn rounds the bounds between which it blends frequencies to whole ones.
    pub(super) rounded_yarn: bool,
    /// Keys that only this architecture may have.
    pub(super) own: &'static [&'static str],
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    model_types: [Some("llama"), Some("mixtral")],
    paired: true,
    qk_norm: false,
    plain_output: false,
    renormalise: true,
    gating: 1.0,
    ranked: false,
    rounded_yarn: true,
    own: &["attention.sliding_window"],
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

const QWEN3: Architecture = Architecture {
    name: "qwen3",
    model_types: [Some("qwen3"), None],
    qk_norm: true,
    plain_output: false,
    ..QWEN2
};

pub(super) static ARCHITECTURES: [Architecture; 8] = [
    LLAMA,
    QWEN2,
    Architecture {
        name: "qwen2moe",
        model_types: [None, Some("qwen2_moe")],
        own: &["expert_shared_feed_forward_length"],
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
        own: &["attention.clamp_kqv"],
        ..QWEN3
    },
    Architecture {
        name: "gpt-oss",
        model_types: [None, Some("gpt_oss")],
        qk_norm: false,
        gating: 3.0,
        rounded_yarn: false,
        own: &["attention.sliding_window"],
        ..QWEN3
    },
    Architecture {
        name: "glm4moe",
        model_types: [None, Some("glm4_moe")],
        plain_output: true,
        renormalise: true,
        gating: 2.0,
        ranked: true,
        own: &["rope.dimension_count"],
        ..QWEN3
    },
];
