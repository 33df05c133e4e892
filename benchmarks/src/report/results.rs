//! Results as the commands write them, reduced to what figures show.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::paired::median;

/// `sws replay TRACE --json`.
#[derive(Deserialize)]
pub(super) struct Replay {
    pub(super) runs: Vec<Replayed>,
}

#[derive(Deserialize)]
pub(super) struct Replayed {
    /// Share of the experts that is cached, in percent.
    pub(super) budget: f64,
    pub(super) policy: String,
    pub(super) hit_rate: f64,
}

/// A row of `sws-bench stream --json` or of `benchmarks/peers/peers.py --json`.
#[derive(Deserialize)]
pub(super) struct Streamed {
    /// In percent; `None` with all weights in memory from the start.
    pub(super) share: Option<f64>,
    pub(super) what: String,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    seconds_per_token: f64,
    waiting: Option<f64>,
    other: Option<f64>,
}

impl Streamed {
    /// False if every run was killed.
    pub(super) fn has_run(&self) -> bool {
        !self.runs.is_empty()
    }

    pub(super) fn seconds_per_token(&self) -> f64 {
        median(self.runs.iter().map(|run| run.seconds_per_token))
    }

    /// Share of the time that is spent waiting for weights.
    pub(super) fn waiting(&self) -> f64 {
        median(self.runs.iter().map(|run| run.waiting.unwrap_or(0.0)))
    }

    /// Share of the time that is neither waiting nor computing.
    pub(super) fn other(&self) -> f64 {
        median(self.runs.iter().map(|run| run.other.unwrap_or(0.0)))
    }
}

/// A line of `sws-bench kernels --tokens 1 --json`.
#[derive(Deserialize)]
pub(super) struct Kernel {
    pub(super) encoding: String,
    pub(super) contender: String,
    pub(super) over_sum: Option<f64>,
}

/// A gate of `sws-gates --json`.
#[derive(Deserialize)]
pub(super) struct Gate {
    pub(super) ratios: Vec<Ratio>,
}

/// Time over time: below 1 the first contender is faster.
#[derive(Deserialize)]
pub(super) struct Ratio {
    pub(super) case: String,
    pub(super) median: f64,
    pub(super) interval: (f64, f64),
}

/// Reads a file of JSON.
pub(super) fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<T> {
    let path = dir.join(name);
    let json = std::fs::read(&path).with_context(|| format!("reading `{}`", path.display()))?;
    serde_json::from_slice(&json).with_context(|| format!("`{}`", path.display()))
}
