//! One run in a process of its own, as memory is counted for the whole process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use sws_cache::policy::PolicyKind;
use sws_draft::{Draft, NoDraft};
use sws_engine::{
    Ablations, MemoryUse, Metrics, Options, Plan, PlanOptions, Planner, ProcessMemory,
    SpeculativeWeightStreamer, StandInUse,
};
use sws_format::{Clock, ShardReader};
use sws_model::{CausalLm, ForwardPass, Inventory};
use sws_store::{NVMeWeightStore, ReaderKind, StoreOptions};
use sws_testing::cgroup::Group;
use sws_testing::readers::Slow;
use sws_testing::{child, sampled};
use sws_text::Sampler;

use super::Without;
use crate::resident::open;

const CONTEXT: usize = 1024;
const MIB: u64 = 1 << 20;

/// A run to be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) model: PathBuf,
    pub(super) ram: u64,
    /// Limit in bytes per second; `None` for the full speed of the disk.
    pub(super) disk: Option<u64>,
    pub(super) without: Vec<Without>,
    /// True if stand-ins are kept in memory.
    pub(super) stand_ins: bool,
    pub(super) prompt: Vec<u32>,
    pub(super) tokens: usize,
}

/// Results of a run, without its prompt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) tokens_per_second: f64,
    pub(super) bytes_per_token: f64,
    pub(super) stall_share: f64,
    pub(super) hit_rate: Option<f64>,
    /// Share of the experts a demand-only run would miss that were resident or in flight.
    pub(super) recall_on_misses: f64,
    /// Share of the bytes read for forecasts that were of no use.
    pub(super) waste: f64,
    /// Share of windows in which the governor had speculation on.
    pub(super) on: f64,
    pub(super) text: Vec<u32>,
}

impl Task {
    /// Runs the task in a process of its own, in a control group if one can be created.
    pub(super) fn run(&self) -> Result<Run> {
        let group = Group::new("bench", self.ram).ok();
        let output = child::run("speculation-child", self, group.as_ref())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} ({}): {self:?}", said.trim(), output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn leaves_out(&self, what: Without) -> bool {
        self.without.contains(&what)
    }

    fn work(self) -> Result<Run> {
        let (manifest, spec) = open(&self.model)?;
        let manifest = Arc::new(manifest);
        let mut options = StoreOptions { cache: None, ..StoreOptions::default() };
        let reader = ReaderKind::Direct.open(&manifest, &self.model, options.depth)?;
        let reader: Arc<dyn ShardReader> = match self.disk {
            Some(speed) => Arc::new(Slow::new(reader, Clock::real(), speed, Duration::ZERO)),
            None => reader,
        };
        options.reader = Some(reader);
        let store = Arc::new(NVMeWeightStore::open(manifest, &self.model, options)?);
        rayon::broadcast(|_| ());
        let process = ProcessMemory::measure(&self.model, store.manifest());
        let inventory = Inventory::new(&spec, store.manifest())?;
        let mut draft: Box<dyn Draft> = match self.leaves_out(Without::Prefetch) {
            true => Box::new(NoDraft),
            false => Box::new(sws_testing::draft(&spec, Planner::most_draft(self.ram) as usize)?),
        };
        let plan_options = PlanOptions {
            context: Some(CONTEXT),
            stand_ins: match self.stand_ins {
                true => StandInUse::Auto,
                false => StandInUse::Off,
            },
            draft: draft.bytes() as u64,
            ..PlanOptions::default()
        };
        let planner = Planner::new(&spec, &inventory, store.manifest(), process, plan_options)?;
        let plan = planner.plan(self.ram)?;
        if plan.ledger.get(MemoryUse::Draft) == 0 {
            draft = Box::new(NoDraft);
        }
        let options = Options {
            draft,
            policy: match self.leaves_out(Without::Eviction) {
                true => PolicyKind::Lru,
                false => PolicyKind::default(),
            },
            ablations: Ablations {
                arrival_order: !self.leaves_out(Without::ArrivalOrder),
                promotion: !self.leaves_out(Without::Promotion),
                ..Ablations::default()
            },
            ..Options::default()
        };
        let mut lm =
            SpeculativeWeightStreamer::with_plan(ForwardPass::new(spec), store, plan, options)?;
        let mut sampler = Sampler::new(sampled(), lm.vocab());
        sampler.prompt(&self.prompt)?;
        let mut logits = lm.prefill(&self.prompt)?.to_vec();
        let before = lm.counters();
        let mut text = Vec::with_capacity(self.tokens);
        for _ in 0..self.tokens {
            let token = sampler.sample(&mut logits, lm.len())?;
            text.push(token);
            logits.copy_from_slice(lm.decode(token)?);
        }
        Ok(Run::of(&Metrics::between(&before, &lm.counters()), text))
    }
}

impl Run {
    fn of(metrics: &Metrics, text: Vec<u32>) -> Run {
        let speculation = &metrics.speculation;
        let missed: u64 = metrics.experts.layers.iter().map(|layer| layer.misses).sum();
        let useful = speculation.useful as f64;
        let windows = speculation.windows_on + speculation.windows_off;
        Run {
            tokens_per_second: metrics.tokens_per_second,
            bytes_per_token: metrics.disk.bytes as f64 / metrics.tokens as f64,
            stall_share: share(metrics.stalls.seconds, metrics.seconds),
            hit_rate: metrics.experts.hit_rate,
            recall_on_misses: share(useful, useful + missed as f64),
            waste: share(
                speculation.bytes.saturating_sub(speculation.useful_bytes) as f64,
                speculation.bytes as f64,
            ),
            on: share(speculation.windows_on as f64, windows as f64),
            text,
        }
    }
}

fn share(part: f64, of: f64) -> f64 {
    if of > 0.0 { part / of } else { 0.0 }
}

fn slots(plan: &Plan) -> u64 {
    plan.ledger.get(MemoryUse::Slots)
}

/// The smallest budget with slots for this share of a model's experts, and without room for
/// anything optional such as a draft.
pub(super) fn budget(model: &std::path::Path, share: f64) -> Result<u64> {
    let (manifest, spec) = open(model)?;
    let inventory = Inventory::new(&spec, &manifest)?;
    rayon::broadcast(|_| ());
    let process = ProcessMemory::measure(model, &manifest);
    let options = PlanOptions { context: Some(CONTEXT), ..PlanOptions::default() };
    let planner = Planner::new(&spec, &inventory, &manifest, process, options)?;
    let most = planner.minimum() + 4 * planner.weights();
    let enough = (share * slots(&planner.plan(most)?) as f64) as u64;
    let least = planner.smallest_with(most, MIB, |plan| slots(plan) >= enough)?;
    // Margin for a process that takes a little more.
    Ok((least + (planner.smallest() - planner.minimum())).next_multiple_of(MIB))
}

/// Entry point of a child.
pub(super) fn main() -> Result<()> {
    child::serve(Task::work)
}
