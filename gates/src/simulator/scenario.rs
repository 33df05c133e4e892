//! What a seed says: a model, a budget, drives with troubles, and texts.

use std::time::Duration;

use sws_cache::policy::PolicyKind;
use sws_engine::{Ablations, ComputeCosts};
use sws_store::SimulatedDisk;
use sws_testing::random::Random;
use sws_testing::troubled::Troubles;

use crate::crowd::Text;

/// Positions of each text.
pub(super) const CONTEXT: usize = 160;
const LONGEST_PROMPT: u64 = 70;
const MOST_NEW: u64 = 24;

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    /// Number of the model among all.
    pub(super) model: usize,
    /// Share of the weights, beyond the smallest budget.
    pub(super) room: f64,
    pub(super) drive: Drive,
    /// Copies on other drives.
    pub(super) copies: Vec<Drive>,
    pub(super) depth: usize,
    pub(super) chunk: usize,
    pub(super) costs: ComputeCosts,
    pub(super) policy: PolicyKind,
    pub(super) ablations: Ablations,
    /// Bytes of a draft; 0 for none.
    pub(super) draft: usize,
    pub(super) at_a_time: usize,
    /// The longest time between two tokens of a text, if texts take turns.
    pub(super) gap: Option<Duration>,
    /// Of the texts, as far as they do not depend on each other's answers.
    pub(super) texts: Vec<PlannedText>,
    /// A tier of experts outside memory.
    pub(super) tier: Option<SimulatedTier>,
}

/// A tier whose experts are computed by the CPU, in virtual time of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedTier {
    pub(super) slots: usize,
    /// Time of an expert, beside that on the CPU.
    pub(super) compute: Duration,
    pub(super) copy: Duration,
    /// The call from which on it holds no expert any more.
    pub(super) fails_at: Option<u64>,
    /// True if it loses experts at random, and refuses others.
    pub(super) is_fickle: bool,
}

/// A drive, and what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    pub(super) disk: SimulatedDisk,
    pub(super) troubles: Troubles,
    /// True if the troubles are there while the model is loaded.
    pub(super) troubles_at_start: bool,
    /// Bits that are wrong whenever they are read.
    pub(super) rotten: usize,
}

/// A text before it is asked for.
#[derive(Clone, Debug)]
pub(super) struct PlannedText {
    pub(super) text: Text,
    /// The step before which it comes.
    pub(super) comes_at: u64,
    /// The text that it continues, if that one is over and has an answer.
    pub(super) continues: Option<usize>,
}

impl Scenario {
    /// The scenario of a seed. `vocab` has the number of tokens of each model.
    pub(super) fn new(seed: u64, vocab: &[usize]) -> Scenario {
        let mut random = Random::new(seed);
        let r = &mut random;
        // The bundled model, the first, is the only one that has learned something.
        let model = if r.chance(300) { 0 } else { r.below(vocab.len() as u64) as usize };
        let room = (r.below(1000) as f64 / 1000.0).powi(2);
        let drive = drive(r);
        let copies = (0..r.pick(&[0, 0, 0, 1, 2])).map(|_| self::drive(r)).collect();
        let costs = ComputeCosts {
            infrastructure: Duration::from_nanos(r.spread(1_000, 3_000_000)),
            expert: Duration::from_nanos(r.spread(1_000, 1_000_000)),
            head: Duration::from_nanos(r.spread(1_000, 1_000_000)),
        };
        let ablations = Ablations {
            arrival_order: r.chance(800),
            promotion: r.chance(800),
            governed: r.chance(800),
            run_ahead: r.chance(800),
        };
        let texts = 2 + r.below(9) as usize;
        let mut scenario = Scenario {
            seed,
            model,
            room,
            drive,
            copies,
            depth: r.spread(1, 17) as usize,
            chunk: r.spread(4 << 10, 2 << 20) as usize,
            costs,
            policy: r.pick(&PolicyKind::ALL),
            ablations,
            draft: r.pick(&[0, 0, 256 << 10]),
            at_a_time: 1 + r.below(5) as usize,
            gap: r.chance(700).then(|| Duration::from_micros(r.spread(100, 10_000_000))),
            texts: (0..texts).map(|number| text(r, number, vocab[model])).collect(),
            tier: None,
        };
        // Last, so that a seed says the rest as it does without.
        scenario.tier = r.chance(500).then(|| tier(r));
        scenario
    }
}

fn tier(r: &mut Random) -> SimulatedTier {
    SimulatedTier {
        slots: r.spread(1, 300) as usize,
        compute: Duration::from_nanos(r.spread(1, 1_000_000)),
        copy: Duration::from_nanos(r.spread(1, 1_000_000)),
        fails_at: r.chance(200).then(|| r.spread(1, 1000)),
        is_fickle: r.chance(500),
    }
}

fn drive(r: &mut Random) -> Drive {
    let disk = SimulatedDisk {
        bytes_per_second: r.spread(1_000_000, 8_000_000_000),
        latency: Duration::from_micros(r.spread(1, 20_000)),
        devices: r.pick(&[1, 1, 2, 4]),
    };
    // Half of the drives are well.
    let well = if often(r, 500) == 0 { 1000 } else { 600 };
    let troubles = Troubles {
        failing: often(r, well),
        stuck: often(r, well),
        late: often(r, well.min(700)),
        delay: Duration::from_secs(30),
        short: often(r, well),
        flipped: often(r, well),
        torn: often(r, well),
        misdirected: often(r, well),
    };
    let rotten = if r.chance(100) { 1 + r.below(3) as usize } else { 0 };
    Drive { disk, troubles, troubles_at_start: r.chance(150), rotten }
}

/// A number of reads of a thousand that have a trouble: none with a chance of `well` in a thousand.
fn often(r: &mut Random, well: u32) -> u32 {
    if r.chance(well) { 0 } else { r.spread(1, 60) as u32 }
}

fn text(r: &mut Random, number: usize, vocab: usize) -> PlannedText {
    let len = 1 + r.below(LONGEST_PROMPT);
    let prompt = (0..len).map(|_| r.below(vocab as u64) as u32).collect();
    let new = 1 + r.below(MOST_NEW) as usize;
    let certified = r.chance(200);
    let text = Text {
        number,
        prompt,
        new,
        certified,
        ranked: r.chance(300),
        forked: false,
        // A certificate of a part is another one than of the whole.
        leaves_after: (!certified && r.chance(150)).then(|| 1 + r.below(new as u64) as usize),
    };
    let continues = (number > 0 && r.chance(400)).then(|| r.below(number as u64) as usize);
    PlannedText { text, comes_at: r.below(60), continues }
}
