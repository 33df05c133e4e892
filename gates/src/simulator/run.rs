//! A scenario, run in virtual time, and what must be true of it at every step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sws::{Batch, LoadedSequences, Threads};
use sws_draft::{Draft, NoDraft};
use sws_engine::{
    Gauge, MemoryUse, Options, Plan, PlanOptions, Planner, ProcessMemory,
    SpeculativeWeightStreamer, TierUsage,
};
use sws_format::{Clock, ShardReader};
use sws_model::{ForwardPass, Inventory};
use sws_store::{Mirror, NVMeWeightStore, ReaderKind, StoreOptions};
use sws_testing::memory_tier::{MemoryTier, TierPace, TierTraits};
use sws_testing::random::Random;
use sws_testing::readers::{BitFlip, Flip};
use sws_testing::troubled::{TroubleCounts, Troubled};

use super::model::SimulatedModel;
use super::scenario::{CONTEXT, Drive, Scenario, SimulatedTier};
use crate::crowd::{Running, Told};

/// Steps after which a text that has not ended counts as lost.
const MOST_STEPS: u64 = 20_000;

/// What became of a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) texts: Vec<Told>,
    pub(super) steps: u64,
    pub(super) time: Duration,
    pub(super) bytes: u64,
    pub(super) troubles: TroubleCounts,
    /// Experts that were computed on a tier, and copied to it.
    pub(super) on_tier: [u64; 2],
    /// Bits that were always wrong.
    pub(super) rotten: usize,
    /// The sentence by which the model was refused.
    pub(super) refused: Option<String>,
}

impl Outcome {
    /// True if something happened that may refuse the model.
    pub(super) fn may_refuse(&self) -> bool {
        self.rotten > 0 || self.troubles.harmful() > 0
    }
}

/// Runs a scenario. An error says what was not as it must be.
pub(super) fn run(scenario: &Scenario, model: &SimulatedModel) -> Result<Outcome> {
    let clock = Clock::simulated();
    let mut random = Random::new(!scenario.seed);
    let drives: Vec<&Drive> = std::iter::once(&scenario.drive).chain(&scenario.copies).collect();
    let mut rotten = 0;
    let mut readers = Vec::new();
    for drive in &drives {
        let inner = ReaderKind::Mmap.open(&model.manifest, &model.dir, scenario.depth)?;
        let flips = if model.has_checksums { drive.rotten } else { 0 };
        rotten += flips;
        let flips = (0..flips).map(|_| model.place(&mut random)).collect::<Vec<Flip>>();
        let inner: Arc<dyn ShardReader> = Arc::new(BitFlip::lasting(inner, flips));
        let troubles = if model.has_checksums { drive.troubles } else { drive.troubles.honest() };
        readers.push(Arc::new(Troubled::new(inner, clock.clone(), troubles, random.bits())));
    }
    for (reader, drive) in readers.iter().zip(&drives) {
        if drive.troubles_at_start {
            reader.begin();
        }
    }
    let mut outcome = Outcome { rotten, ..Outcome::default() };
    match loaded(scenario, model, &clock, &readers) {
        Err(refused) => outcome.refused = Some(format!("{refused:#}")),
        Ok(lm) => {
            for reader in &readers {
                reader.begin();
            }
            texts(scenario, model, lm, &clock, &readers, &mut outcome)?;
        }
    }
    for reader in &readers {
        outcome.troubles.add(&reader.counts());
    }
    outcome.time = clock.now();
    Ok(outcome)
}

fn loaded(
    scenario: &Scenario,
    model: &SimulatedModel,
    clock: &Clock,
    readers: &[Arc<Troubled>],
) -> Result<SpeculativeWeightStreamer> {
    let (reader, others) = readers.split_first().context("no drive")?;
    let copies = others.iter().zip(&scenario.copies).map(|(reader, drive)| Mirror {
        dir: model.dir.clone(),
        reader: Arc::clone(reader) as Arc<dyn ShardReader>,
        files: vec![true; model.manifest.files.len()],
        simulated: Some(drive.disk),
    });
    let store = StoreOptions {
        reader: Some(Arc::clone(reader) as Arc<dyn ShardReader>),
        mirrors: copies.collect(),
        depth: scenario.depth,
        chunk: scenario.chunk,
        cache: None,
        clock: clock.clone(),
        simulated: Some(scenario.drive.disk),
        ..StoreOptions::default()
    };
    let store = Arc::new(NVMeWeightStore::open(Arc::clone(&model.manifest), &model.dir, store)?);
    let draft: Box<dyn Draft> = match sws_testing::draft(&model.spec, scenario.draft) {
        Ok(draft) if scenario.draft > 0 => Box::new(draft),
        // Not all layers have experts.
        _ => Box::new(NoDraft),
    };
    let inventory = Inventory::new(&model.spec, store.manifest())?;
    let asked = PlanOptions {
        context: Some(CONTEXT.min(model.spec.context)),
        batch: scenario.at_a_time,
        draft: draft.bytes() as u64,
        ..PlanOptions::default()
    };
    let process = ProcessMemory::default();
    let planner = Planner::new(&model.spec, &inventory, store.manifest(), process, asked)?;
    let most = planner.weights() + draft.bytes() as u64 + (1 << 20);
    let plan = planner.plan(planner.minimum() + (scenario.room * most as f64) as u64)?;
    let draft = if plan.ledger.get(MemoryUse::Draft) > 0 { draft } else { Box::new(NoDraft) };
    let options = Options {
        draft,
        policy: scenario.policy,
        ablations: scenario.ablations,
        costs: scenario.costs,
        ..Options::default()
    };
    let pass = ForwardPass::new(model.spec.clone());
    let mut lm = SpeculativeWeightStreamer::with_plan(pass, store, plan, options)?;
    if let Some(SimulatedTier { slots, compute, copy, fails_at, is_fickle }) = scenario.tier {
        let pace = Some(TierPace { clock: clock.clone(), compute, copy });
        let fickle = is_fickle.then(|| Random::new(scenario.seed));
        let traits = TierTraits { slots, fails_at, pace, fickle };
        // Without slots experts cannot move there.
        lm.set_tier(Box::new(MemoryTier::new(traits)));
    }
    Ok(lm)
}

/// The texts, and those of them that run.
struct Texts<'s> {
    scenario: &'s Scenario,
    model: &'s SimulatedModel,
    /// Numbers of the texts that have not come, the next last.
    waiting: Vec<usize>,
    running: Vec<Running>,
    over: BTreeMap<usize, Told>,
    /// When each running text had its last token.
    heard: BTreeMap<usize, Duration>,
    longest_step: Duration,
    readers: &'s [Arc<Troubled>],
    /// Reads in trouble before each running text began.
    troubled: BTreeMap<usize, u64>,
    rotten: usize,
}

fn texts(
    scenario: &Scenario,
    model: &SimulatedModel,
    lm: SpeculativeWeightStreamer,
    clock: &Clock,
    readers: &[Arc<Troubled>],
    outcome: &mut Outcome,
) -> Result<()> {
    let gauge = lm.gauge();
    let plan = lm.plan().context("a run without a plan")?.clone();
    let mut sequences = LoadedSequences::new(lm, &Threads::start(1)?);
    let mut batch = sequences.batch(scenario.at_a_time)?;
    if let Some(gap) = scenario.gap {
        batch = batch.with_turns(gap);
    }
    let mut waiting: Vec<usize> = (0..scenario.texts.len()).collect();
    waiting.sort_by_key(|&number| std::cmp::Reverse((scenario.texts[number].comes_at, number)));
    let mut texts = Texts {
        scenario,
        model,
        waiting,
        running: Vec::new(),
        over: BTreeMap::new(),
        heard: BTreeMap::new(),
        longest_step: Duration::ZERO,
        readers,
        troubled: BTreeMap::new(),
        rotten: outcome.rotten,
    };
    while !texts.waiting.is_empty() || !batch.is_empty() {
        texts.begin(&mut batch, outcome.steps)?;
        texts.step(&mut batch, clock)?;
        within(&mut batch, &gauge, &plan)?;
        outcome.steps += 1;
        ensure!(outcome.steps < MOST_STEPS, "after {MOST_STEPS} steps a text has not ended");
    }
    ensure!(texts.over.len() == scenario.texts.len(), "a text is lost");
    outcome.texts = texts.over.into_values().collect();
    let counters = gauge.read();
    outcome.on_tier = counters.tier.map_or([0; 2], |tier| [tier.hits, tier.copies]);
    outcome.bytes = counters.device_bytes;
    Ok(())
}

/// Checks that memory is within its plan.
fn within(batch: &mut Batch<'_>, gauge: &Gauge, plan: &Plan) -> Result<()> {
    let [held, room] = batch.memory();
    // An upper bound: a page that several texts share counts for each that is about to write to it.
    ensure!(held <= room || batch.len() > 1, "{held} bytes of keys and values in {room}");
    let kv = plan.ledger.get(MemoryUse::KvCache);
    ensure!(room <= kv, "room for {room} bytes of keys and values, {kv} planned");
    let slots = plan.ledger.get(MemoryUse::Slots) + plan.lent_bytes() as u64;
    let counters = gauge.read();
    let cached = counters.peak_cache_bytes;
    ensure!(cached <= slots, "{cached} bytes in slots of {slots}");
    if let Some(TierUsage { held, slots, .. }) = counters.tier.map(|tier| tier.usage) {
        ensure!(held <= slots, "{held} experts on a tier of {slots}");
    }
    Ok(())
}

impl Texts<'_> {
    /// Begins the texts whose time has come, as far as there is room.
    fn begin(&mut self, batch: &mut Batch<'_>, step: u64) -> Result<()> {
        while let Some(&number) = self.waiting.last()
            && self.scenario.texts[number].comes_at <= step
            && batch.has_room(false)
        {
            self.waiting.pop();
            let planned = &self.scenario.texts[number];
            let mut text = planned.text.clone();
            let begun = planned.continues.and_then(|earlier| self.over.get(&earlier));
            if let Some(begun) = begun.filter(|told| told.failed.is_none()) {
                let answer = &begun.tokens[..begun.tokens.len() / 2];
                let prompt = [&begun.text.prompt[..], answer].concat();
                let context = CONTEXT.min(self.model.spec.context);
                if !answer.is_empty() && prompt.len() + text.new < context {
                    text.prompt = prompt;
                    text.forked = true;
                }
            }
            self.troubled.insert(text.number, self.troubles());
            self.running.push(Running::begin(batch, &self.model.model, text)?);
        }
        Ok(())
    }

    /// Reads in trouble so far.
    fn troubles(&self) -> u64 {
        self.readers.iter().map(|reader| reader.counts().harmful()).sum()
    }

    /// Checks that a text which failed had a reason: a read in trouble while it ran, or a bit that was
    /// always wrong.
    fn check_reason(&self, told: &Told) -> Result<()> {
        let Some(failed) = &told.failed else { return Ok(()) };
        let number = told.text.number;
        let before = self.troubled.get(&number).copied().unwrap_or(u64::MAX);
        ensure!(
            self.rotten > 0 || self.troubles() > before,
            "text {number} failed without trouble: {failed}"
        );
        Ok(())
    }

    /// Makes a step, and checks the time between two tokens of a text.
    fn step(&mut self, batch: &mut Batch<'_>, clock: &Clock) -> Result<()> {
        let began = clock.now();
        let texts = batch.len() as u32;
        let mut wrong = None;
        let mut gaps = Vec::new();
        let mut ended = Vec::new();
        let Texts { model, running, over, heard, .. } = self;
        batch.step(&mut |number, event| {
            let at = running.iter().position(|running| running.told().text.number == number);
            let Some(at) = at else {
                wrong = Some(format!("text {number} is over and has an event"));
                return;
            };
            let before = running[at].told().tokens.len();
            let is_over = running[at].happened(&model.model, event);
            if running[at].told().tokens.len() > before {
                let last = heard.insert(number, clock.now());
                gaps.extend(last.map(|last| clock.now() - last));
            }
            if is_over {
                over.insert(number, running.remove(at).into_told());
                heard.remove(&number);
                ended.push(number);
            }
        });
        wrong.map_or(Ok(()), |wrong| Err(anyhow::anyhow!(wrong)))?;
        for number in ended {
            self.check_reason(&self.over[&number])?;
        }
        let step = clock.now() - began;
        let earlier = self.longest_step;
        self.longest_step = earlier.max(step);
        if let Some(gap) = self.scenario.gap
            && let Some(longest) = gaps.into_iter().max()
        {
            // Each turn ends after a whole step, and others may have come meanwhile. This step counts once.
            let others = texts.max(self.scenario.at_a_time as u32);
            let most = gap + others * earlier + step;
            ensure!(longest <= most, "{longest:?} between two tokens of a text, {most:?} at most");
        }
        Ok(())
    }
}
