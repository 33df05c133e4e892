//! The names of pre-tokenizers in GGUF files.

use crate::tokenizer::published::{
    DEEPSEEK_CODER, DEEPSEEK_LLM, DEEPSEEK_V3, DIGIT, GPT_2_SHORT, KIMI_K2, LING, LLAMA_3, O200K,
    QWEN_2, QWEN_35, TEKKEN,
};

/// The steps before BPE for one name.
pub(super) struct Pre {
    pub(super) names: &'static [&'static str],
    /// The patterns that split a text into words, one after another; empty for the pattern of the
    /// byte-level step itself.
    pub(super) patterns: &'static [&'static str],
    /// True if the text is first brought into the normal form C.
    pub(super) normalized: bool,
    /// True if a word that is itself a token is never split, whatever the merges say.
    pub(super) whole_words: bool,
    /// True if texts begin with a start token, unless the file says otherwise.
    pub(super) begins: bool,
}

const fn pre(names: &'static [&'static str], patterns: &'static [&'static str]) -> Pre {
    Pre { names, patterns, normalized: false, whole_words: false, begins: false }
}

/// The known names. Text is normalised if the published tokenizer does so, even where llama.cpp
/// does not.
pub(super) static PRE: [Pre; 15] = [
    pre(&["gpt-2", "phi-2", "mpt", "exaone4", "a.x-4.0", "mellum", "gigachat"], &[]),
    Pre { normalized: true, ..pre(&["olmo"], &[]) },
    Pre {
        whole_words: true,
        begins: true,
        ..pre(&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2"], &[LLAMA_3])
    },
    pre(&["glm4", "chatglm-bpe", "dbrx", "smaug-bpe"], &[LLAMA_3]),
    Pre { normalized: true, ..pre(&["qwen2", "deepseek-r1-qwen"], &[QWEN_2]) },
    pre(&["hunyuan", "stablelm2", "grok-2", "megrez", "kormo"], &[QWEN_2]),
    Pre { normalized: true, ..pre(&["qwen35"], &[QWEN_35]) },
    pre(&["gpt-4o", "llama4", "minimax-m2"], &[O200K]),
    Pre { whole_words: true, begins: true, ..pre(&["tekken"], &[TEKKEN]) },
    pre(&["deepseek-llm"], &DEEPSEEK_LLM),
    pre(&["deepseek-coder"], &DEEPSEEK_CODER),
    pre(&["deepseek-v3", "hunyuan-dense"], &DEEPSEEK_V3),
    pre(&["kimi-k2"], &[KIMI_K2]),
    pre(&["bailingmoe", "bailingmoe2", "llada-moe"], &[LING]),
    pre(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"],
        &[DIGIT, GPT_2_SHORT],
    ),
];
