//! Measurements in a process of their own: memory is counted for the whole process, and its
//! high-water mark is never lowered.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use sws::Activations;
use sws_benchmarks::resident::{load, open};
use sws_cache::policy::PolicyKind;
use sws_engine::{
    Certificate, CertificateOutcome, MemoryUse, Metrics, Options, Plan, PlanOptions, Planner,
    ProcessMemory, SpeculativeWeightStreamer, Witness, memory, peak_memory,
};
use sws_format::Manifest;
use sws_model::{CausalLm, ForwardPass, Inventory, KvPrecision, ModelSpec, Observer};
use sws_store::{NVMeWeightStore, ReaderKind, StoreOptions};
use sws_testing::child::{self, hear, tell};
use sws_text::{Sampler, Sampling};

use crate::task::{Ask, Done, Drafting, Endured, Ram, Task, Turn, Work};

const MIB: u64 = 1 << 20;
/// The model's own tokens in each turn of [`Work::Talk`].
const SAID: usize = 3;

/// Entry point of a child.
pub(crate) fn main() -> Result<()> {
    child::serve(Task::work)
}

impl Task {
    /// The same task, planned but not run. The child holds all that it would hold for the run.
    pub(crate) fn planned(mut self) -> Task {
        self.only_plan = true;
        self
    }

    /// The same task with a draft.
    pub(crate) fn with(mut self, draft: Drafting) -> Task {
        self.draft = draft;
        self
    }

    fn work(self) -> Result<Done> {
        if let Work::Crowd(crowd) = self.work {
            return crowd.run(&self);
        }
        if let Work::Switch(switch) = &self.work {
            return switch.run(&self);
        }
        if self.ram == Ram::Resident {
            let (spec, _, source) = load(&self.model)?;
            let (manifest, _) = open(&self.model)?;
            let model = ForwardPass::new(spec.clone());
            let kv = KvPrecision::F32;
            let mut lm = SpeculativeWeightStreamer::resident(model, source, self.context, kv);
            return self.serve(&spec, &manifest, &mut lm, Done::default());
        }
        let (manifest, spec) = open(&self.model)?;
        let inventory = Inventory::new(&spec, &manifest)?;
        let policy = self.policy.parse::<PolicyKind>()?;
        let reader = self.reader.parse()?;
        // The compute threads are part of the process.
        rayon::broadcast(|_| ());
        let process = ProcessMemory::measure(&self.model, &manifest);
        let draft = self.draft.make(&spec)?;
        let options = PlanOptions {
            context: Some(self.context),
            draft: draft.bytes() as u64,
            all_logits: matches!(self.work, Work::Score(_)),
            ..PlanOptions::default()
        };
        let planner = Planner::new(&spec, &inventory, &manifest, process, options)?;
        let (plan, experts) = self.plan(&planner, spec.max_top_k() > 0)?;
        let mut done = Done {
            budget: plan.ledger.budget(),
            floor: floor(&process),
            pinned: plan.pinned.len(),
            slots: plan.slots.iter().map(|class| class.bytes()).sum(),
            lent: plan.lent_bytes() as u64,
            arena: plan.arena_bytes() as u64,
            weights: planner.weights(),
            experts,
            ..Done::default()
        };
        drop((planner, inventory));
        if self.only_plan {
            done.peak_rss = peak_memory().unwrap_or(0);
            return Ok(done);
        }
        let store = self.store(manifest, reader)?;
        let model = ForwardPass::new(spec.clone());
        let options = Options { policy, draft, ..Options::default() };
        let mut lm =
            SpeculativeWeightStreamer::with_plan(model, Arc::clone(&store), plan, options)?;
        self.serve(&spec, store.manifest(), &mut lm, done)
    }

    /// The plan, and the bytes of all slots with plenty of memory.
    fn plan(&self, planner: &Planner, has_experts: bool) -> Result<(Plan, u64)> {
        let most = planner.minimum() + 4 * planner.weights();
        let experts = slot_bytes(&planner.plan(most)?);
        let ram = match self.ram {
            Ram::Bytes(bytes) => bytes,
            Ram::Share(share) => {
                let enough = |plan: &Plan| slot_bytes(plan) as f64 >= share * experts as f64;
                let least = planner.smallest_with(most, MIB, enough)?;
                // Margin for a process that takes a little more.
                (least + (planner.smallest() - planner.minimum())).next_multiple_of(MIB)
            }
            Ram::Least => planner.minimum(),
            Ram::Min | Ram::Resident => planner.smallest(),
        };
        let mut plan = planner.plan(ram)?;
        if self.ram == Ram::Least {
            plan.pinned.clear();
            plan.slots.clear();
            plan.lent.clear();
            plan.experts_stream = has_experts;
            plan.ring = plan.arena_bytes();
        }
        Ok((plan, experts))
    }

    fn store(&self, manifest: Manifest, reader: ReaderKind) -> Result<Arc<NVMeWeightStore>> {
        let manifest = Arc::new(manifest);
        // No checksums of earlier processes: each run stands for itself.
        let options = StoreOptions { cache: None, ..StoreOptions::default() };
        let reader = reader.open(&manifest, &self.model, options.depth)?;
        let options = StoreOptions { reader: Some(reader), ..options };
        Ok(Arc::new(NVMeWeightStore::open(manifest, &self.model, options)?))
    }

    fn serve(
        &self,
        spec: &ModelSpec,
        manifest: &Manifest,
        lm: &mut SpeculativeWeightStreamer,
        mut done: Done,
    ) -> Result<Done> {
        match &self.work {
            // These have models of their own.
            Work::Crowd(_) | Work::Switch(_) => {}
            Work::Talk(turns) => {
                for &tokens in turns {
                    let prompt: Vec<u32> = (0..tokens as u32).map(|n| n * 131 % 4096).collect();
                    if lm.len() + tokens + SAID > lm.limit() {
                        lm.clear();
                    }
                    lm.generate(&prompt, SAID)?;
                }
            }
            Work::Endure(times) => done.endured = endure(lm, *times)?,
            Work::Turns { prompt, sampling } => take_turns(lm, prompt, sampling)?,
            Work::Score(tokens) => {
                lm.score(tokens, &mut Bits(&mut done.logits))?;
            }
            Work::Certify { prompt, tokens, samplings } => {
                for sampling in samplings {
                    lm.clear();
                    let certificate = certify(lm, spec, manifest, prompt, *tokens, sampling)?;
                    done.certificates.push(certificate.to_json());
                }
            }
            Work::Replay(certificates) => {
                for json in certificates {
                    let certificate = Certificate::parse(json.as_bytes())?;
                    certificate.check(manifest, Activations::F32)?;
                    lm.clear();
                    done.steps += certificate.tokens().len();
                    match certificate.replay(spec, lm, &mut |_| true)? {
                        CertificateOutcome::Agrees { steps } => done.agreed += steps,
                        CertificateOutcome::Differs { step, what } => {
                            done.agreed += step;
                            done.differs = Some(format!("{what:?} of step {step}"));
                        }
                        CertificateOutcome::Stopped => bail!("a replay stopped by itself"),
                    }
                }
            }
        }
        let metrics: Metrics = lm.aggregate_metrics();
        done.metrics = serde_json::to_value(metrics)?;
        done.peak_rss = peak_memory().unwrap_or(0);
        Ok(done)
    }
}

fn endure(lm: &mut SpeculativeWeightStreamer, times: usize) -> Result<Endured> {
    let mut numbers = 0u32..;
    answer(lm, numbers.by_ref().take(times.div_ceil(5)))?;
    let early = rss()?;
    answer(lm, numbers.by_ref().take(times))?;
    let late = rss()?;
    let had = own_slots(lm);
    let budget = lm.plan().map_or(0, |plan| plan.ledger.budget());
    lm.lower_budget(budget - had / 2)?;
    answer(lm, numbers.take(5))?;
    Ok(Endured { early, late, lowered: rss()?, given_up: had - own_slots(lm) })
}

/// Gives a short answer for each number.
fn answer(lm: &mut SpeculativeWeightStreamer, numbers: impl Iterator<Item = u32>) -> Result<()> {
    for n in numbers {
        lm.clear();
        lm.generate(&[n * 7 % 4096, n * 131 % 4096, 9], 2)?;
    }
    Ok(())
}

fn rss() -> Result<u64> {
    memory().context("this system does not tell the memory of a process")
}

/// Bytes of the slots of a streamer.
fn own_slots(lm: &SpeculativeWeightStreamer) -> u64 {
    lm.plan().map_or(0, |plan| plan.slots.iter().map(|class| class.bytes()).sum())
}

/// Bytes of the slots of a plan, lent ones included.
fn slot_bytes(plan: &Plan) -> u64 {
    plan.ledger.get(MemoryUse::Slots) + plan.lent_bytes() as u64
}

/// Serves requests until an empty line.
fn take_turns(
    lm: &mut SpeculativeWeightStreamer,
    prompt: &[u32],
    sampling: &Sampling,
) -> Result<()> {
    let mut sampler = Sampler::new(sampling.clone(), lm.vocab());
    sampler.prompt(prompt)?;
    let mut logits = lm.prefill(prompt)?.to_vec();
    tell(&())?;
    loop {
        let line = hear()?;
        if line.trim().is_empty() {
            return Ok(());
        }
        let ask = serde_json::from_str(&line)?;
        let mut tokens = Vec::new();
        let mut before = lm.counters();
        match ask {
            Ask::Generate(count) => {
                for _ in 0..count {
                    let token = sampler.sample(&mut logits, lm.len())?;
                    tokens.push(token);
                    logits.copy_from_slice(lm.decode(token)?);
                }
            }
            Ask::Prompt(prompt) => {
                lm.clear();
                logits.copy_from_slice(lm.prefill(&prompt)?);
            }
            Ask::Topic { prompt, seed, tokens: count } => {
                lm.clear();
                sampler = Sampler::new(Sampling { seed, ..sampling.clone() }, lm.vocab());
                sampler.prompt(&prompt)?;
                logits.copy_from_slice(lm.prefill(&prompt)?);
                before = lm.counters();
                for _ in 0..count {
                    let token = sampler.sample(&mut logits, lm.len())?;
                    tokens.push(token);
                    logits.copy_from_slice(lm.decode(token)?);
                }
            }
        }
        let metrics = Metrics::between(&before, &lm.counters());
        let Metrics { seconds, disk, stalls, speculation, .. } = metrics;
        tell(&Turn {
            seconds,
            bytes: disk.bytes,
            busy: disk.busy,
            stalled: stalls.seconds,
            early: speculation.useful_bytes,
            tokens,
        })?;
    }
}

/// Bytes of the process without a model.
fn floor(process: &ProcessMemory) -> u64 {
    let ProcessMemory { program, stacks, heap, tokenizer, slack, files, kernel, peak: _ } =
        *process;
    program + stacks + heap + tokenizer + slack + files + kernel
}

fn certify(
    lm: &mut dyn CausalLm,
    spec: &ModelSpec,
    manifest: &Manifest,
    prompt: &[u32],
    tokens: usize,
    sampling: &Sampling,
) -> Result<Certificate> {
    let mut witness = Witness::new(spec, prompt);
    let mut sampler = Sampler::new(sampling.clone(), lm.vocab());
    sampler.prompt(prompt)?;
    let mut next = prompt.to_vec();
    let mut answer = Vec::with_capacity(tokens);
    while answer.len() < tokens {
        let mut logits = lm.observed(&next, &mut witness)?.to_vec();
        witness.logits(lm.len() - 1, &logits);
        let token = sampler.sample(&mut logits, lm.len())?;
        answer.push(token);
        next = vec![token];
    }
    let activations = Activations::F32;
    let kv = KvPrecision::F32;
    let sampling = sampling.clone();
    Ok(Certificate::new(manifest, activations, kv, sampling, prompt, &answer, witness))
}

/// Collects the bits of the logits.
struct Bits<'a>(&'a mut Vec<u32>);

impl Observer for Bits<'_> {
    fn logits(&mut self, _: usize, logits: &[f32]) {
        self.0.extend(logits.iter().map(|logit| logit.to_bits()));
    }
}
