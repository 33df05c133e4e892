//! Metrics of a run, as printed by `sws run --json`.

use std::time::Duration;

use serde::Serialize;

/// Metrics of one generation and of the model that it ran on: the fields of their JSON.
#[derive(Clone, Debug, Serialize)]
pub struct RunMetrics {
    /// [Name](crate::Model::name) of the model.
    pub model: String,
    /// Name of the backend.
    pub backend: &'static str,
    /// Tiers of the kernels.
    pub tier: String,
    /// Kind of activations of products: `f32`, or `int8` if these are rounded.
    pub activations: &'static str,
    /// Number of compute threads.
    pub threads: usize,
    /// Reader of the model's files.
    pub reader: &'static str,
    /// Precision of the KV cache.
    pub kv: &'static str,
    /// Reasons why the result differs from that of the published weights. Empty if it does not.
    pub lossy: Vec<String>,
    /// Memory for weights, in bytes.
    pub weight_bytes: u64,
    /// Memory budget of the process. `None` if all weights are in memory.
    pub ram_bytes: Option<u64>,
    /// Policy that evicts experts. `None` if all weights are in memory.
    pub policy: Option<&'static str>,
    /// Time to load the model, its tokenizer included.
    pub load_seconds: f64,
    /// Time to read the tokenizer.
    pub tokenizer_seconds: f64,
    /// Time from the prompt to the first new token, without loading. `None` without a new token.
    pub first_token_seconds: Option<f64>,
    /// Pace of the prompt.
    pub prompt: Pace,
    /// Pace of the tokens computed after the prompt: one less than the new tokens, as the prompt
    /// yields the first.
    pub generation: Pace,
    /// Cost of the prompt and of the tokens after it. `None` from a backend that does not measure
    /// it.
    pub cost: Option<Cost>,
    /// Bytes read from disk. `None` from a backend that does not measure them.
    pub disk: Option<BytesRead>,
    /// Peak memory of the process, if the system reports it.
    pub peak_rss_bytes: Option<u64>,
}

/// Bytes read from disk, for one text and in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BytesRead {
    /// For the prompt and the tokens after it.
    pub text_bytes: u64,
    /// Since the model was opened, loading and earlier texts included.
    pub all_bytes: u64,
}

/// Cost of the two parts of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Cost of the prompt.
    pub prompt: sws_engine::Metrics,
    /// Cost of the tokens after it.
    pub generation: sws_engine::Metrics,
}

/// Speed at which tokens were computed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Pace {
    /// Number of tokens computed.
    pub tokens: usize,
    /// Time taken.
    pub seconds: f64,
    /// Tokens per second; 0 if no time was measured.
    pub tokens_per_second: f64,
}

impl Pace {
    pub(crate) fn of(tokens: usize, time: Duration) -> Pace {
        let seconds = time.as_secs_f64();
        let tokens_per_second = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        Pace { tokens, seconds, tokens_per_second }
    }
}
