//! The cost of a run, as `sws run --json` tells it.

use std::time::Duration;

use serde::Serialize;

/// One generation and the model that it ran on.
#[derive(Clone, Debug, Serialize)]
pub struct RunMetrics {
    /// The directory of the model.
    pub model: String,
    /// The name of the backend that computed it.
    pub backend: &'static str,
    /// The tiers of the kernels.
    pub tier: String,
    /// Threads that computed.
    pub threads: usize,
    /// The reader of its files.
    pub reader: &'static str,
    /// The precision in which keys and values are kept.
    pub kv: &'static str,
    /// Reasons why the result differs from that of the published weights; none if it does not.
    pub lossy: Vec<String>,
    /// Memory for weights.
    pub weight_bytes: u64,
    /// The budget of the process; none if all weights are in memory.
    pub ram_bytes: Option<u64>,
    /// The policy that made room; none if nothing had to.
    pub policy: Option<&'static str>,
    /// The time that loading took.
    pub load_seconds: f64,
    /// From the prompt to the first new token, loading not counted; none if there was none.
    pub first_token_seconds: Option<f64>,
    /// The prompt's tokens.
    pub prompt: Pace,
    /// Of tokens computed after the prompt: one less than the new ones, as the prompt yields the
    /// first.
    pub generation: Pace,
    /// The work that it took, of the prompt and of the tokens after it; none from a backend that does not
    /// measure it.
    pub cost: Option<Cost>,
    /// The most memory the process had, if the system tells.
    pub peak_rss_bytes: Option<u64>,
}

/// The cost of the parts of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Of the prompt.
    pub prompt: sws_engine::Metrics,
    /// Of the tokens after it.
    pub generation: sws_engine::Metrics,
}

/// The speed at which tokens went through the model.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Pace {
    /// Tokens that were computed.
    pub tokens: usize,
    /// The time that took.
    pub seconds: f64,
    /// Tokens in a second; 0 if there was no time.
    pub tokens_per_second: f64,
}

impl Pace {
    pub(crate) fn of(tokens: usize, time: Duration) -> Pace {
        let seconds = time.as_secs_f64();
        let tokens_per_second = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        Pace { tokens, seconds, tokens_per_second }
    }
}
