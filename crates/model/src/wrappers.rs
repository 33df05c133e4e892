//! Model types around language models, and heads that are embeddings where nothing is said.

/// A model type of models that also process images or sound. Their configurations have that of the
/// language model in `text_config`, and the tensors of the language model have another prefix than
/// in a language model alone. All other tensors are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrapper {
    pub(crate) model_type: &'static str,
    /// Instead of the prefix of its family.
    pub(crate) prefix: &'static str,
    /// The prefix of the head.
    pub(crate) head: &'static str,
    /// The model type of the language model where its configuration has none.
    pub(crate) inner: Option<&'static str>,
}

/// A model whose published configuration has the entries of the language model beside the others.
pub(crate) const DOTS3: &str = "dots3_note";

pub(crate) const WRAPPERS: [Wrapper; 20] = [
    Wrapper {
        model_type: "gemma3",
        prefix: "language_model.model.",
        head: "language_model.",
        inner: None,
    },
    Wrapper { model_type: DOTS3, prefix: "model.", head: "", inner: Some("dots3_note_text") },
    Wrapper { model_type: "gemma4", prefix: "model.language_model.", head: "", inner: None },
    Wrapper { model_type: "glm5_next", prefix: "model.language_model.", head: "", inner: None },
    Wrapper {
        model_type: "inkling2",
        prefix: "model.llm.",
        head: "",
        inner: Some("inkling2_text"),
    },
    Wrapper {
        model_type: "inkling2_loop",
        prefix: "model.llm.",
        head: "",
        inner: Some("inkling2_loop_text"),
    },
    Wrapper {
        model_type: "inkling_mm_model",
        prefix: "model.llm.",
        head: "model.llm.",
        inner: Some("inkling_text"),
    },
    Wrapper {
        model_type: "kimi_k25",
        prefix: "language_model.model.",
        head: "language_model.",
        inner: None,
    },
    Wrapper {
        model_type: "kimi_k3",
        prefix: "language_model.model.",
        head: "language_model.",
        inner: Some("kimi_linear"),
    },
    Wrapper {
        model_type: "lfm3_vl",
        prefix: "model.language_model.",
        head: "",
        inner: Some("lfm3"),
    },
    Wrapper {
        model_type: "llama4",
        prefix: "language_model.model.",
        head: "language_model.",
        inner: None,
    },
    Wrapper {
        model_type: "minimax_m3_vl",
        prefix: "language_model.model.",
        head: "language_model.",
        inner: Some("minimax_m3_vl_text"),
    },
    Wrapper {
        model_type: "mistral3",
        prefix: "language_model.model.",
        head: "language_model.",
        inner: None,
    },
    Wrapper {
        model_type: "mistral_large4",
        prefix: "",
        head: "",
        inner: Some("mistral_large4_text"),
    },
    Wrapper {
        model_type: "muse_glimmer",
        prefix: "model.language_model.",
        head: "",
        inner: Some("muse_glimmer_text"),
    },
    Wrapper {
        model_type: "muse_spark",
        prefix: "model.language_model.",
        head: "",
        inner: Some("muse_spark_text"),
    },
    Wrapper { model_type: "qwen3_5", prefix: "model.language_model.", head: "", inner: None },
    Wrapper { model_type: "qwen3_5_moe", prefix: "model.language_model.", head: "", inner: None },
    Wrapper { model_type: "qwen4_exp", prefix: "model.language_model.", head: "", inner: None },
    Wrapper { model_type: "step3p7", prefix: "model.", head: "", inner: None },
];

/// The prefix that transformers keeps where it reads a model around a language model, and writes the
/// language model alone.
pub(crate) const WITHIN: &str = "model.language_model.";

/// Model types whose heads are their embeddings where nothing is said; of models around language
/// models, too.
pub(crate) const TIED: [&str; 11] = [
    "cohere2_moe",
    "ernie4_5_moe",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma4",
    "gemma4_text",
    "lfm2_moe",
    "lfm3",
    "lfm3_vl",
    "smollm3",
];

/// The model type of a wrapper, if this is one, and that of its language model where nothing is said.
pub(crate) fn wrapper(model_type: &str) -> Option<(&'static str, Option<&'static str>)> {
    let known = WRAPPERS.iter().find(|known| known.model_type == model_type)?;
    Some((known.model_type, known.inner))
}
