//! Gate 2: speculation that pays.
//!
//! The default policy with a draft that reads ahead, beside the same without, in virtual time: over
//! budgets, and over disks from one that is never waited for to one that is always. The draft is our own as
//! it begins, which has learned nothing of the model, and one that is made to be right so often.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sws_benchmarks::resident::open;
use sws_draft::{Draft, DraftShape, DraftSize, MicroDraftModel, NoDraft};
use sws_engine::{
    Costs, Metrics, Options, PlanOptions, Planner, Process, SpeculativeWeightStreamer,
};
use sws_model::text::{Sampler, Sampling};
use sws_model::{CausalLm, Inventory, Model, Observer, Routed};
use sws_store::{Clock, NVMeWeightStore, SimulatedDisk, StoreOptions};

use crate::Setting;
use crate::child::Done;
use crate::models::root;
use crate::noisy::Noisy;
use crate::report::Report;

const SAME: &str = "every logit is the same";
const STALL: &str = "computing waits less at 25 and 50 %";
const EARLY: &str =
    "a twentieth of the bytes missed is there or on its way when the router asks, at 25 and 50 %";
const NEVER: &str = "the time is at most 1.02 of that without, at any budget";
const OFF: &str = "on a disk that is never waited for, or always, speculation is switched off";
const ON: &str = "between the two it is switched on";

/// A token computes for 5 ms.
const COSTS: Costs = Costs {
    infrastructure: Duration::from_micros(200),
    expert: Duration::from_micros(100),
    head: Duration::from_micros(200),
};
/// Of those that a disk brings in a second, in millions: at 25 % cached, reading takes about as long as
/// computing.
const MIDDLE: u64 = 200;
/// Disks that are never waited for, and always.
const EXTREMES: [u64; 2] = [10_000_000, 1];
const BUDGETS: [f64; 6] = [0.10, 0.25, 0.35, 0.50, 0.75, 1.0];
/// Recall of a draft of the next layer's router on this layer's state, and its layers.
const RECALL: f32 = 0.75;
const DEPTH: usize = 4;
/// Layers, experts and top-k of the model.
const SHAPE: [usize; 3] = [8, 32, 4];
const DRAFT_BYTES: usize = 1 << 20;
/// All windows but so many: the first and those of attempts, each time twice as long after the last.
const ATTEMPTS: u64 = 5;

/// What is continued, and what comes of it.
#[derive(Default)]
struct Answer {
    tokens: Vec<u32>,
    /// [tokens, layers, top-k]
    routes: Vec<u16>,
    logits: Vec<u64>,
}

impl Observer for Answer {
    fn routed(&mut self, _: usize, _: usize, routed: &Routed) {
        self.routes.extend(routed.choices.iter().map(|&expert| expert as u16));
    }
}

/// What a run takes.
struct Run {
    seconds: f64,
    metrics: Metrics,
    same: bool,
}

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(2, "speculation that pays");
    let tokens = if setting.full { 512 } else { 160 };
    let answer = answer(tokens)?;
    for share in BUDGETS {
        for disk in [EXTREMES[0], 10 * MIDDLE, MIDDLE, MIDDLE / 4, EXTREMES[1]] {
            // What is never or always waited for is so at any budget; one will do.
            if EXTREMES.contains(&disk) && share != 0.50 {
                continue;
            }
            let without = stream(&answer, share, disk, Box::new(NoDraft))?;
            let case = format!("{:.0} % cached, {disk} MB/s", 100.0 * share);
            for draft in Drafts::ALL {
                let with = stream(&answer, share, disk, draft.make(&answer)?)?;
                let case = format!("{case}, {}", draft.name());
                hold(&mut report, &case, (share, disk), &without, &with);
                report.row(&case, fidelity(&with), &done(&with)?, None);
            }
            report.row(&format!("{case}, none"), fidelity(&without), &done(&without)?, None);
        }
    }
    Ok(report)
}

/// What has to hold of a run with a draft, beside the same without.
fn hold(report: &mut Report, case: &str, (share, disk): (f64, u64), without: &Run, with: &Run) {
    report.check(SAME, without.same && with.same, || case.to_owned());
    let ratio = with.seconds / without.seconds;
    report.check(NEVER, ratio <= 1.02, || format!("{case}: {ratio:.3}"));
    let speculation = &with.metrics.speculation;
    let (on, off) = (speculation.windows_on, speculation.windows_off);
    let told = || {
        let inequality = speculation.inequality().unwrap_or_default();
        format!("{case}: on in {on} of {} windows, {inequality}", on + off)
    };
    if EXTREMES.contains(&disk) {
        report.check(OFF, on <= ATTEMPTS && off >= on, told);
    } else if disk == MIDDLE && [0.25, 0.50].contains(&share) {
        report.check(ON, on > off, told);
        let stalls = [without, with].map(|run| run.metrics.stalls.seconds);
        report.check(STALL, stalls[1] < stalls[0], || {
            format!("{case}: {:.4} s, and {:.4} s without", stalls[1], stalls[0])
        });
        let missed = without.metrics.bytes_per_token.get("experts").copied();
        let missed = missed.unwrap_or(0.0) * without.metrics.tokens as f64;
        let early = speculation.useful_bytes as f64 / missed.max(1.0);
        report.check(EARLY, early >= 0.05, || format!("{case}: {early:.3}"));
    }
}

fn fidelity(run: &Run) -> String {
    if run.same { "same" } else { "differs" }.to_owned()
}

fn done(run: &Run) -> Result<Done> {
    Ok(Done { metrics: serde_json::to_value(&run.metrics)?, ..Done::default() })
}

/// Who says what will be needed.
#[derive(Clone, Copy)]
enum Drafts {
    /// Ours, untrained.
    Own,
    /// Right so often, and calibrated.
    Noisy,
}

impl Drafts {
    const ALL: [Drafts; 2] = [Drafts::Own, Drafts::Noisy];

    fn name(self) -> &'static str {
        match self {
            Drafts::Own => "our draft",
            Drafts::Noisy => "made to be right",
        }
    }

    fn make(self, answer: &Answer) -> Result<Box<dyn Draft>> {
        Ok(match self {
            Drafts::Noisy => Box::new(Noisy::new(SHAPE, answer.routes.clone(), RECALL, DEPTH)),
            Drafts::Own => {
                let spec = open(&root().join("shards/tales-moe"))?.1;
                let [layers, experts, top_k] = SHAPE;
                let layers = (0..layers).collect();
                let shape = DraftShape { hidden: spec.hidden, layers, experts, top_k };
                let size = DraftSize::within(DRAFT_BYTES, &shape, 0, spec.vocab)
                    .context("a draft has no room")?;
                Box::new(MicroDraftModel::new(shape, size))
            }
        })
    }
}

/// Sampled as people do, with everything in memory.
fn answer(tokens: usize) -> Result<Answer> {
    let mut lm = streamer(1.0, EXTREMES[0], Box::new(NoDraft))?;
    let sampling =
        Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
    let mut sampler = Sampler::new(sampling, lm.vocab());
    let (mut answer, mut token) = (Answer::default(), 5);
    for _ in 0..tokens {
        let mut logits = lm.observed(&[token], &mut answer)?.to_vec();
        answer.tokens.push(token);
        answer.logits.push(hash(&logits));
        token = sampler.sample(&mut logits)?;
    }
    Ok(answer)
}

fn stream(answer: &Answer, share: f64, disk: u64, draft: Box<dyn Draft>) -> Result<Run> {
    let mut lm = streamer(share, disk, draft)?;
    let before = lm.counters();
    let mut same = true;
    for (&token, &expected) in answer.tokens.iter().zip(&answer.logits) {
        same &= hash(lm.decode(token)?) == expected;
    }
    let after = lm.counters();
    let metrics = Metrics::between(&before, &after);
    Ok(Run { seconds: metrics.seconds, metrics, same })
}

/// The model that comes with the project, with slots for a share of its experts.
fn streamer(share: f64, disk: u64, draft: Box<dyn Draft>) -> Result<SpeculativeWeightStreamer> {
    let dir = root().join("shards/tales-moe");
    let (manifest, spec) = open(&dir)?;
    let simulated =
        SimulatedDisk { bytes_per_second: disk * 1_000_000, latency: Duration::from_micros(20) };
    let options = StoreOptions {
        cache: None,
        clock: Clock::simulated(),
        simulated: Some(simulated),
        // So small that these experts are to it what large ones are to 1 MiB.
        chunk: 16 << 10,
        ..StoreOptions::default()
    };
    let inventory = Inventory::new(&spec, &manifest)?;
    let context = Some(512);
    let process = Process::default();
    let plan_options = PlanOptions { context, ..PlanOptions::default() };
    let planner = Planner::new(&spec, &inventory, &manifest, process, plan_options)?;
    let slots = |ram: u64| -> Result<usize> {
        Ok(planner.plan(ram)?.slots.iter().map(|class| class.count).sum())
    };
    let (mut low, mut high) = (planner.minimum(), planner.minimum() + (256 << 20));
    let enough = (share * slots(high)? as f64) as usize;
    while high - low > 4096 {
        let middle = low + (high - low) / 2;
        if slots(middle)? >= enough { high = middle } else { low = middle }
    }
    let plan = planner.plan(high)?;
    ensure!(!plan.slots.is_empty(), "no slots for {share} of the experts");
    let store = Arc::new(NVMeWeightStore::open(Arc::new(manifest), &dir, options)?);
    let options = Options { draft, costs: COSTS, ..Options::default() };
    Ok(SpeculativeWeightStreamer::with_plan(Model::new(spec), store, plan, options)?)
}

fn hash(logits: &[f32]) -> u64 {
    logits.iter().fold(0, |hash: u64, logit| {
        hash.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(logit.to_bits())
    })
}
