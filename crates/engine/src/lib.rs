//! Runs a model within a memory budget.
//!
//! The engine alone knows about budgets. A plan says what of a model stays in memory and how much
//! room is left for what comes and goes; within it weights are streamed from a
//! [`NVMeWeightStore`](sws_store::NVMeWeightStore) as the forward pass asks for them. What is
//! computed is what the fully loaded model computes, bit for bit.

mod assembler;
mod budget;
mod certificate;
mod course;
mod error;
mod governor;
mod infra;
mod ledger;
mod lookup;
mod meter;
mod metrics;
mod pinned;
mod plan;
mod price;
mod process;
mod ring;
mod room;
mod routers;
mod source;
mod stand_ins;
mod streamer;
mod verifier;
mod wait;
mod warm_start;

pub use assembler::{Deciders, DynamicAssembler, Loaded, Mechanisms, RunAheadCounts};
pub use budget::{Budget, UnknownBudget};
pub use certificate::{Certificate, CertificateError, Difference, Outcome, Step, Witness};
pub use error::StreamError;
pub use governor::Speculation;
pub use infra::{Infrastructure, InfrastructurePlan};
pub use ledger::{Ledger, Process, Use};
pub use meter::Costs;
pub use metrics::{
    Clocks, Counters, Disk, ExpertMetrics, LayerMetrics, Metrics, Split, StallMetrics,
    StandInMetrics, memory, peak_memory,
};
pub use plan::{PerToken, Plan, PlanError, PlanOptions, Planner, SlotClass};
pub use routers::RouterSet;
pub use source::StreamingSource;
pub use stand_ins::{ErrorBound, StandInUse, StandIns};
pub use streamer::{Gauge, Options, SpeculativeWeightStreamer, StreamerError};
pub use verifier::{Exactness, Miss, Presence, RealPath, Verdict, Verifier, detect_miss};
pub use wait::{Kind, Stalls, WaitError, Waiter};
