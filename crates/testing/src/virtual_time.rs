//! An answer of the bundled model, computed again in virtual time, over disks of any speed and with
//! drafts of any skill.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use sws_draft::{Draft, NoDraft};
use sws_engine::{
    Ablations, ComputeCosts, Options, PlanOptions, Planner, ProcessMemory, RamBudget, Speculation,
    SpeculativeWeightStreamer,
};
use sws_format::Clock;
use sws_model::{CausalLm, ForwardPass, Inventory, ModelSpec};
use sws_store::{NVMeWeightStore, SimulatedDisk, StoreOptions};
use sws_text::Sampler;

use crate::noisy::{Answer, Noisy, Slow, hash};
use crate::{open, sampled, tales};

const SHAPE: [usize; 3] = [8, 32, 4];
/// The number of tokens of the answer.
pub const TOKENS: usize = 130;
/// A layer takes 0.6 ms, a token 5 ms.
pub const COSTS: ComputeCosts = ComputeCosts {
    infrastructure: Duration::from_micros(200),
    expert: Duration::from_micros(100),
    head: Duration::from_micros(200),
};

/// Bytes of a read of the bundled model: so few that an expert is to its reads what a large one is
/// to those of 1 MiB.
pub const CHUNK: usize = 16 << 10;

/// Opens a model on a simulated disk, which is read by so many bytes at a time.
pub fn simulated(
    dir: &Path,
    disk: SimulatedDisk,
    chunk: usize,
) -> Result<(Arc<NVMeWeightStore>, ModelSpec)> {
    simulated_by(Clock::simulated(), dir, disk, chunk)
}

fn simulated_by(
    clock: Clock,
    dir: &Path,
    disk: SimulatedDisk,
    chunk: usize,
) -> Result<(Arc<NVMeWeightStore>, ModelSpec)> {
    let (manifest, spec) = open(dir)?;
    let cache = None;
    let simulated = Some(disk);
    let options = StoreOptions { cache, clock, simulated, chunk, ..StoreOptions::default() };
    Ok((Arc::new(NVMeWeightStore::open(Arc::new(manifest), dir, options)?), spec))
}

/// The bundled model on a simulated disk.
pub fn streamer(disk: SimulatedDisk, options: Options) -> SpeculativeWeightStreamer {
    streamer_by(Clock::simulated(), disk, options)
}

fn streamer_by(clock: Clock, disk: SimulatedDisk, options: Options) -> SpeculativeWeightStreamer {
    let (store, spec) = simulated_by(clock, &tales(), disk, CHUNK).unwrap();
    SpeculativeWeightStreamer::new(ForwardPass::new(spec), store, options).unwrap()
}

/// Options under which this share of the experts have slots while tokens come one at a time.
pub fn options(share: f64, draft: Box<dyn Draft>, governed: bool) -> Options {
    let (manifest, spec) = open(&tales()).unwrap();
    let inventory = Inventory::new(&spec, &manifest).unwrap();
    let plan = PlanOptions { context: Some(256), ..PlanOptions::default() };
    let planner =
        Planner::new(&spec, &inventory, &manifest, ProcessMemory::default(), plan).unwrap();
    let enough = (share * 256.0) as usize;
    let least = planner.smallest_with(128 << 20, 1, |plan| plan.most_experts() >= enough).unwrap();
    let bytes = least.next_multiple_of(1 << 10);
    Options {
        ram_budget: RamBudget::Bytes(bytes),
        process: Some(ProcessMemory::default()),
        context: Some(256),
        costs: COSTS,
        draft,
        ablations: Ablations { governed, ..Ablations::default() },
        ..Options::default()
    }
}

/// The answer, sampled with usual settings, with a budget for all experts: there is nothing to
/// prefetch.
pub fn answer() -> &'static Answer {
    static ANSWER: OnceLock<Answer> = OnceLock::new();
    ANSWER.get_or_init(|| {
        let disk = SimulatedDisk {
            bytes_per_second: UNLIMITED * 1_000_000,
            latency: Duration::ZERO,
            devices: 1,
        };
        let mut lm = streamer(disk, options(4.0, Box::new(NoDraft), true));
        let mut sampler = Sampler::new(sampled(), lm.vocab());
        let mut answer = Answer::default();
        let mut token = 5;
        for _ in 0..TOKENS {
            let mut logits = lm.observed(&[token], &mut answer).unwrap().to_vec();
            answer.tokens.push(token);
            answer.logits.push(hash(&logits));
            token = sampler.sample(&mut logits, lm.len()).unwrap();
        }
        answer
    })
}

/// Runs the answer. Returns its time in nanoseconds and the account of speculation.
pub fn run(
    mb_per_second: u64,
    share: f64,
    draft: Option<f32>,
    governed: bool,
) -> (f64, Speculation) {
    let noisy = |recall| Noisy::new(SHAPE, answer().routes.clone(), recall, 4);
    run_with(mb_per_second, share, governed, |_| match draft {
        Some(recall) => Box::new(noisy(recall)),
        None => Box::new(NoDraft),
    })
}

/// The same with a draft of recall `draft` that takes `time` in each layer.
pub fn run_slow(mb_per_second: u64, share: f64, draft: f32, time: Duration) -> (f64, Speculation) {
    let noisy = Noisy::new(SHAPE, answer().routes.clone(), draft, 4);
    run_with(mb_per_second, share, true, |clock| Box::new(Slow::new(noisy, clock, time)))
}

fn run_with(
    mb_per_second: u64,
    share: f64,
    governed: bool,
    draft: impl FnOnce(Clock) -> Box<dyn Draft>,
) -> (f64, Speculation) {
    let answer = answer();
    let latency = if mb_per_second < UNLIMITED { 20 } else { 0 };
    let disk = SimulatedDisk {
        bytes_per_second: mb_per_second * 1_000_000,
        latency: Duration::from_micros(latency),
        devices: 1,
    };
    let clock = Clock::simulated();
    let options = options(share, draft(clock.clone()), governed);
    let mut lm = streamer_by(clock, disk, options);
    for (&token, &expected) in answer.tokens.iter().zip(&answer.logits) {
        assert_eq!(hash(lm.decode(token).unwrap()), expected);
    }
    let counters = lm.counters();
    (counters.passes.as_nanos() as f64, counters.speculation)
}

/// The speed in MB/s of a disk that is never waited for.
pub const UNLIMITED: u64 = 10_000_000;
