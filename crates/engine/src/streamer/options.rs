//! How a model is to be run, and why it cannot be.

use std::path::PathBuf;

use sws_draft::{Draft, NoDraft};
use sws_model::text::{SampleError, Sampling};
use sws_model::{ForwardError, KvPrecision, WeightsError};

use super::meter::Costs;
use crate::budget::{Budget, PlanError, Process};
use crate::error::StreamError;
use crate::experts::{Ablations, Exactness};
use crate::stand_ins::StandInUse;
use sws_cache::policy::PolicyKind;

/// How to run.
#[derive(Debug)]
pub struct Options {
    /// Memory for the whole process.
    pub ram_budget: Budget,
    /// What the process takes without the model; none to [measure](Process::measure) it.
    pub process: Option<Process>,
    /// Whether pieces are read before a router has asked for them: the next layer of a prompt, and
    /// what `draft` forecasts.
    pub speculation: bool,
    /// Whether what `draft` forecasts is read only as long as that pays. Without, always.
    pub governed: bool,
    /// Forecasts what will be needed.
    pub draft: Box<dyn Draft>,
    /// From which probability on it is weighed whether to read what is forecast.
    pub confidence_threshold: f32,
    /// Which piece makes room.
    pub policy: PolicyKind,
    /// Positions of the sequence; none for what suits the budget.
    pub context: Option<usize>,
    /// Positions that are known to be needed where `context` does not say.
    pub at_least: usize,
    /// Bytes for encoding texts while the model is there: so many, and more for each position.
    pub encoding: [u64; 2],
    /// How keys and values are kept.
    pub kv: KvPrecision,
    /// Whether logits of every position are wanted, rather than of the last.
    pub all_logits: bool,
    /// Which stand-ins stay in memory.
    pub stand_ins: StandInUse,
    /// How exact what is computed with has to be. What is not exact depends on what is in memory, and
    /// with that on time.
    pub exactness: Exactness,
    /// Whether a pass runs ahead on stand-ins where it waits for experts.
    pub run_ahead: bool,
    /// What is left out, to measure what it is worth.
    pub ablations: Ablations,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How long computing takes, where the store's time is virtual.
    pub costs: Costs,
    /// A file in which what was learned of the use of experts is kept from one run to the next: read
    /// at the start if it is there and of this model, written when the streamer is dropped. It
    /// decides what is kept and read, and so the time until the first tokens; not a bit of them.
    pub warm_start: Option<PathBuf>,
}

impl Default for Options {
    /// As much memory as can be had, no draft, the likeliest token.
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

/// Why a model cannot be run within a budget.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamerError {
    /// The weights are not those of the model.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What stays in memory could not be read.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A pass failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
}
