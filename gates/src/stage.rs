//! Stage for speculation in virtual time: the bundled model, on a disk of any speed.

use std::time::Duration;

use anyhow::{Result, ensure};
use sws_cache::policy::PolicyKind;
use sws_draft::Draft;
use sws_engine::{
    Metrics, Options, PlanOptions, Planner, ProcessMemory, SpeculativeWeightStreamer,
};
use sws_model::{ForwardPass, Inventory};
use sws_store::SimulatedDisk;
use sws_testing::tales;
use sws_testing::virtual_time::{self, CHUNK, COSTS};

use crate::task::Done;

/// Disk speed in MB/s at which, at 25 % cached, reading takes about as long as computing.
pub(crate) const MIDDLE: u64 = 200;
/// Disks in MB/s that never stall computing, and that always do.
pub(crate) const EXTREMES: [u64; 2] = [10_000_000, 1];

/// A share of the experts that has slots, a disk speed in MB/s, and a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    pub(crate) share: f64,
    pub(crate) disk: u64,
    pub(crate) policy: PolicyKind,
}

/// Metrics of a run. `same` is true if every logit was that of the resident model.
pub(crate) struct Run {
    pub(crate) metrics: Metrics,
    pub(crate) same: bool,
}

impl Run {
    pub(crate) fn fidelity(&self) -> String {
        if self.same { "same" } else { "differs" }.to_owned()
    }

    pub(crate) fn done(&self) -> Result<Done> {
        Ok(Done { metrics: serde_json::to_value(&self.metrics)?, ..Done::default() })
    }
}

impl Stage {
    /// The model with slots for that share, while tokens come one at a time.
    pub(crate) fn streamer(self, draft: Box<dyn Draft>) -> Result<SpeculativeWeightStreamer> {
        let Stage { share, disk, policy } = self;
        let latency = Duration::from_micros(20);
        let simulated = SimulatedDisk { bytes_per_second: disk * 1_000_000, latency, devices: 1 };
        let (store, spec) = virtual_time::simulated(&tales(), simulated, CHUNK)?;
        let manifest = store.manifest();
        let inventory = Inventory::new(&spec, manifest)?;
        let context = Some(512);
        let process = ProcessMemory::default();
        let plan_options = PlanOptions { context, ..PlanOptions::default() };
        let planner = Planner::new(&spec, &inventory, manifest, process, plan_options)?;
        let most = planner.minimum() + (256 << 20);
        let enough = (share * planner.plan(most)?.most_experts() as f64) as usize;
        let ram = planner.smallest_with(most, 4096, |plan| plan.most_experts() >= enough)?;
        let plan = planner.plan(ram)?;
        ensure!(!plan.slots.is_empty(), "no slots for {share} of the experts");
        let options = Options { draft, policy, costs: COSTS, ..Options::default() };
        Ok(SpeculativeWeightStreamer::with_plan(ForwardPass::new(spec), store, plan, options)?)
    }
}
