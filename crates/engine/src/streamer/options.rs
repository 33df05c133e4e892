//! Options of a run, and the errors of starting one.

use std::path::PathBuf;

use sws_draft::{Draft, NoDraft};
use sws_model::text::{SampleError, Sampling};
use sws_model::{ForwardError, KvPrecision, WeightsError};

use super::meter::Costs;
use crate::budget::{Budget, PlanError, Process};
use crate::error::StreamError;
use crate::experts::{Ablations, Exactness, NoBound};
use crate::stand_ins::StandInUse;
use sws_cache::policy::PolicyKind;

/// Options of a run.
#[derive(Debug)]
pub struct Options {
    /// Memory budget of the whole process.
    pub ram_budget: Budget,
    /// Memory of the process without the model; `None` to [measure](Process::measure) it.
    pub process: Option<Process>,
    /// True to prefetch: the next layer of a prompt, and the experts that `draft` forecasts.
    pub speculation: bool,
    /// True to follow the forecasts of `draft` only while they pay; otherwise they are always
    /// followed.
    pub governed: bool,
    /// Draft that forecasts experts.
    pub draft: Box<dyn Draft>,
    /// Lowest probability at which a forecast is considered for a prefetch.
    pub confidence_threshold: f32,
    /// Eviction policy of the cache.
    pub policy: PolicyKind,
    /// Length of the context in positions; `None` for a length that suits the budget.
    pub context: Option<usize>,
    /// Minimum length of the context in positions if `context` is `None`.
    pub at_least: usize,
    /// Number of sequences that can exist at the same time.
    pub sequences: usize,
    /// Bytes for encoding text while the model is loaded: a fixed number, and a number per
    /// position.
    pub encoding: [u64; 2],
    /// Precision of cached keys and values.
    pub kv: KvPrecision,
    /// True if logits of all positions are needed, not only of the last one.
    pub all_logits: bool,
    /// Stand-ins that stay in memory.
    pub stand_ins: StandInUse,
    /// Required exactness. Inexact results depend on which experts are in memory, and so on time.
    pub exactness: Exactness,
    /// True to run ahead on stand-ins while a pass waits for experts.
    pub run_ahead: bool,
    /// Mechanisms that are switched off, to measure their worth.
    pub ablations: Ablations,
    /// Choice of tokens.
    pub sampling: Sampling,
    /// Computing times, if the store's time is virtual.
    pub costs: Costs,
    /// File that keeps the learned use of experts from one run to the next. It is read at the start
    /// if it exists and belongs to this model, and written when the streamer is dropped. It affects
    /// which experts are kept and prefetched, and so the time until the first tokens, but no bit of
    /// them.
    pub warm_start: Option<PathBuf>,
}

impl Default for Options {
    /// As much memory as available, no draft, greedy sampling.
    fn default() -> Options {
        Options {
            ram_budget: Budget::Auto,
            process: None,
            speculation: true,
            governed: true,
            draft: Box::new(NoDraft),
            confidence_threshold: 0.05,
            policy: PolicyKind::default(),
            context: None,
            at_least: 0,
            sequences: 1,
            encoding: [0; 2],
            kv: KvPrecision::F32,
            all_logits: false,
            stand_ins: StandInUse::Off,
            exactness: Exactness::Exact,
            run_ahead: true,
            ablations: Ablations::default(),
            sampling: Sampling::default(),
            costs: Costs::default(),
            warm_start: None,
        }
    }
}

/// Error of running a model within a budget.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamerError {
    /// The weights do not match the model.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// No plan fits the budget.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Weights that stay in memory could not be read.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Stand-ins may not count as requested.
    #[error(transparent)]
    Bound(#[from] NoBound),
    /// A pass failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
}
