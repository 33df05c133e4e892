//! Runs a model within a memory budget by streaming its weights from disk.
//!
//! With [`Exactness::Exact`], the default, results are those of the fully loaded model, bit for
//! bit, whatever the budget, the eviction policy or the draft.
//!
//! The principal types, in the order in which they hand off:
//!
//! - [`Planner`] divides a [`RamBudget`]. Its [`Plan`] names the pieces that stay in memory, the slots
//!   for experts, and the length of the ring for everything else. The [`Ledger`] of the plan has a
//!   reservation for every use of memory.
//! - [`SpeculativeWeightStreamer`] follows a plan: it reads resident pieces from a
//!   [`NVMeWeightStore`](sws_store::NVMeWeightStore), runs the forward pass, and reports
//!   [`Metrics`].
//! - [`StreamingSource`] is the pass's source of weights. It combines the next two.
//! - [`Infrastructure`] provides all weights but routed experts, from memory or through the ring.
//! - [`DynamicAssembler`] provides routed experts: from the slots of a
//!   [`PredictiveCache`](sws_cache::PredictiveCache), by demand reads, and by prefetches that
//!   follow the forecasts of a draft.
//! - [`Waiter`] is the one place that blocks on reads. It counts stalls and arrived bytes.
//! - [`Certificate`] records an answer, so that it can be computed again and compared bit for bit.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use sws_engine::{Options, SpeculativeWeightStreamer};
//! use sws_model::{ForwardPass, ModelSpec};
//! use sws_format::Manifest;
//! use sws_store::{NVMeWeightStore, StoreOptions};
//!
//! let dir = Path::new("shards/tales-moe");
//! let manifest = Arc::new(Manifest::load(dir)?);
//! let config = manifest.read_small(dir, "config.json", None)?.ok_or("no config.json")?;
//! let spec = ModelSpec::parse(&config)?;
//! let store = NVMeWeightStore::open(manifest, dir, StoreOptions::default())?;
//! let options = Options { ram_budget: "64MiB".parse()?, ..Options::default() };
//! let mut streamer = SpeculativeWeightStreamer::new(ForwardPass::new(spec), Arc::new(store), options)?;
//! let tokens = streamer.generate(&[1, 2, 3], 16)?;
//! let metrics = streamer.aggregate_metrics();
//! assert!(metrics.tokens >= tokens.len() as u64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
mod certificate;
mod error;
mod experts;
mod infrastructure;
mod reads;
mod recording;
mod resident_load;
mod speculation;
mod stand_ins;
mod streamer;
mod wait;
pub mod watch;

pub use budget::{
    DEFAULT_CONTEXT, HitBasis, HitCurve, KV_SHARE, LONG_KV_SHARE, Ledger, MemoryUse, PerToken,
    Plan, PlanError, PlanOptions, Planner, ProcessMemory, PromptReads, RamBudget, SlotClass,
    TierHits, TokenCosts, UnknownBudget, leave_out_of_plans, routes_of,
};
pub use certificate::{
    Certificate, CertificateError, CertificateOutcome, CertifiedStep, Difference, Witness,
};
pub use error::StreamError;
pub use experts::{
    Ablations, AssemblerConfig, DynamicAssembler, Exactness, ExpectedReads, ExpertTier, Miss,
    NoBound, Presence, RealPath, TierCounts, TierTensor, TierUsage, Verdict, Verifier, detect_miss,
};
pub use infrastructure::{Infrastructure, InfrastructurePlan, RouterSet};
pub use reads::LoadedSlot;
pub use resident_load::ResidentLoad;
pub use speculation::{Speculation, earlier_routes};
pub use stand_ins::{ErrorBound, RunAheadCounts, StandInUse, StandIns};
pub use streamer::{
    Clocks, ComputeCosts, Counters, Disk, DriveMetrics, ExpertMetrics, Gauge, LayerMetrics,
    Lending, MAX_VERIFY_LEN, Metrics, Options, SpeculativeCounts, SpeculativeWeightStreamer,
    StallMetrics, StandInMetrics, StreamerError, StreamingSource, TimeSplit, memory, peak_memory,
};
pub use wait::{Stalls, WaitError, Waiter, WeightKind};
pub use watch::RunWatch;
