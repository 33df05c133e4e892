//! What a run cost.

use std::time::Duration;

use serde::Serialize;

/// One run, as `--json` tells it.
#[derive(Debug, Serialize)]
pub(crate) struct Metrics {
    /// The directory of the model.
    pub(crate) model: String,
    /// What computed it, as `--backend` names it.
    pub(crate) backend: &'static str,
    /// With which instructions.
    pub(crate) tier: String,
    pub(crate) threads: usize,
    pub(crate) reader: &'static str,
    /// The precision in which keys and values are kept.
    pub(crate) kv: &'static str,
    /// What made the result differ from that of the published weights; nothing, if empty.
    pub(crate) lossy: Vec<String>,
    /// Memory for weights.
    pub(crate) weight_bytes: u64,
    /// The budget of the process; none if all weights are in memory.
    pub(crate) ram_bytes: Option<u64>,
    /// What made room; none if nothing had to.
    pub(crate) policy: Option<&'static str>,
    pub(crate) load_seconds: f64,
    /// From the prompt to the first new token, loading not counted; none if there was none.
    pub(crate) first_token_seconds: Option<f64>,
    pub(crate) prompt: Pace,
    /// Of tokens computed after the prompt: one less than the new ones, as the prompt yields the
    /// first.
    pub(crate) generation: Pace,
    /// What it took, of the prompt and of the tokens after it; none from a backend that does not
    /// measure it.
    pub(crate) cost: Option<Cost>,
    /// The most memory the process had, if the system tells.
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// What the parts of a run cost.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) prompt: sws_engine::Metrics,
    pub(crate) generation: sws_engine::Metrics,
}

/// How fast tokens went through the model.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Pace {
    pub(crate) tokens: usize,
    pub(crate) seconds: f64,
    pub(crate) tokens_per_second: f64,
}

impl Pace {
    pub(crate) fn of(tokens: usize, time: Duration) -> Pace {
        let seconds = time.as_secs_f64();
        let tokens_per_second = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        Pace { tokens, seconds, tokens_per_second }
    }
}
