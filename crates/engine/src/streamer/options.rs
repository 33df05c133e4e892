//! Options of a run, and the errors of starting one.

use std::path::PathBuf;

use sws_draft::{Draft, NoDraft};
use sws_model::{ForwardError, KvPrecision, WeightsError};
use sws_text::{SampleError, Sampling};

use super::meter::ComputeCosts;
use crate::budget::{PlanError, ProcessMemory, RamBudget};
use crate::error::StreamError;
use crate::experts::{Ablations, Exactness, NoBound};
use crate::stand_ins::StandInUse;
use sws_cache::correction::Corrections;
use sws_cache::policy::PolicyKind;

/// Options of a run: one field for each thing that its caller decides.
#[derive(Debug)]
pub struct Options {
    /// Memory budget of the whole process.
    pub ram_budget: RamBudget,
    /// Memory of the process without the model; `None` to [measure](ProcessMemory::measure) it.
    pub process: Option<ProcessMemory>,
    /// True to prefetch: the next layer of a prompt, and the experts that `draft` forecasts.
    pub speculation: bool,
    /// Draft that forecasts experts. A draft for which the budget has no room is refused.
    pub draft: Box<dyn Draft>,
    /// Lowest probability at which a forecast is considered for a prefetch.
    pub confidence_threshold: f32,
    /// Eviction policy of the cache.
    pub policy: PolicyKind,
    /// Corrections of the policy's forecasts. Learned corrections are kept in the file of
    /// `warm_start`.
    pub corrections: Corrections,
    /// Length of the context in positions; `None` for a length that suits the budget.
    pub context: Option<usize>,
    /// Number of sequences that can exist at the same time.
    pub sequences: usize,
    /// Maximum number of draft tokens that are verified together; 0 if none are.
    pub verify_len: usize,
    /// Precision of the KV cache.
    pub kv: KvPrecision,
    /// Stand-ins that stay in memory.
    pub stand_ins: StandInUse,
    /// Required exactness. Inexact results depend on which experts are in memory, and so on time.
    pub exactness: Exactness,
    /// Mechanisms that are switched off, to measure their worth.
    pub ablations: Ablations,
    /// Choice of tokens.
    pub sampling: Sampling,
    /// Computing times, if the store's time is virtual.
    pub costs: ComputeCosts,
    /// File that keeps the learned use of experts from one run to the next. It is read at the start
    /// if it exists and belongs to this model, and written when the streamer is dropped. It affects
    /// which experts are kept and prefetched, and so the time until the first tokens, but no bit of
    /// them.
    pub warm_start: Option<PathBuf>,
}

impl Default for Options {
    /// All available memory, no draft, greedy sampling.
    fn default() -> Options {
        Options {
            ram_budget: RamBudget::Auto,
            process: None,
            speculation: true,
            draft: Box::new(NoDraft),
            confidence_threshold: 0.05,
            policy: PolicyKind::default(),
            corrections: Corrections::None,
            context: None,
            sequences: 1,
            verify_len: 0,
            kv: KvPrecision::F32,
            stand_ins: StandInUse::Off,
            exactness: Exactness::Exact,
            ablations: Ablations::default(),
            sampling: Sampling::default(),
            costs: ComputeCosts::default(),
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
    /// The budget has no room for the draft.
    #[error(
        "the budget has no room for slots of experts beside a draft of {bytes} bytes; make the draft within the share that a plan reserves for it, or run without one"
    )]
    Draft {
        /// Bytes of the draft.
        bytes: u64,
    },
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
