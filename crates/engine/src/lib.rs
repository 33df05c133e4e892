//! Runs a model within a memory budget.
//!
//! The engine alone knows about budgets. A plan says what of a model stays in memory and how much
//! room is left for what comes and goes; within it weights are streamed from a
//! [`NVMeWeightStore`](sws_store::NVMeWeightStore) as the forward pass asks for them. What is
//! computed is what the fully loaded model computes, bit for bit.

mod budget;
mod certificate;
mod error;
mod experts;
mod infrastructure;
mod reads;
mod resident_load;
mod speculation;
mod stand_ins;
mod streamer;
mod wait;

pub use budget::{
    Budget, Ledger, PerToken, Plan, PlanError, PlanOptions, Planner, Process, SlotClass,
    UnknownBudget, Use,
};
pub use certificate::{Certificate, CertificateError, Difference, Outcome, Step, Witness};
pub use error::StreamError;
pub use experts::{
    Ablations, AssemblerConfig, DynamicAssembler, Exactness, Miss, Presence, RealPath, Verdict,
    Verifier, detect_miss,
};
pub use infrastructure::{Infrastructure, InfrastructurePlan, RouterSet};
pub use reads::Loaded;
pub use resident_load::ResidentLoad;
pub use speculation::Speculation;
pub use stand_ins::{ErrorBound, RunAheadCounts, StandInUse, StandIns};
pub use streamer::{
    Clocks, Costs, Counters, Disk, ExpertMetrics, Gauge, LayerMetrics, Metrics, Options,
    SpeculativeWeightStreamer, Split, StallMetrics, StandInMetrics, StreamerError, StreamingSource,
    memory, peak_memory,
};
pub use wait::{Kind, Stalls, WaitError, Waiter};
