//! Texts that share an engine, in virtual time: passes that they share or turns, as the scheduler
//! decides, against always the one and always the other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sws::{Batch, BatchRequest, Event, LoadedSequences, Model, Threads};
use sws_engine::{
    Metrics, Options as EngineOptions, Plan, PlanOptions, Planner, ProcessMemory,
    SpeculativeWeightStreamer,
};
use sws_model::Inventory;
use sws_store::SimulatedDisk;
use sws_testing::tales;
use sws_testing::virtual_time::{self, CHUNK, COSTS};

use crate::crowd::Text;
use crate::gate4::beginnings;
use crate::report::Report;
use crate::setting::Setting;
use crate::stage::{EXTREMES, MIDDLE};
use crate::task::Done;

pub(crate) const SAME: &str =
    "every text has the tokens, probabilities and hashes that it has alone";
const TIME: &str = "texts as scheduled take no longer than in the better of both ways (1.03)";
const APART: &str = "control: the dearer of both ways is longer than that (1.03)";
const BYTES: &str = "texts as scheduled read no more than in the faster of both ways (1.03)";
const BETTER: &str = "shared passes are faster for stories, turns for texts of a word each";

/// Disk speed in MB/s at which, at 85 % cached, five times as much time is waiting as computing.
const SLOW: u64 = 10;
/// Texts that are continued together in virtual time, and their tokens.
const TEXTS: usize = 4;
const TOKENS: usize = 800;
/// Tokens of all texts after which the ways have been tried, and are measured.
const TRIED: usize = 1700;
/// Tokens of a turn where texts always take turns.
const TURN: usize = 128;
/// A bias that nothing outweighs.
const ALWAYS: f32 = 1e6;

/// What the texts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Stories, which choose much the same experts.
    Stories,
    /// Each repeats a word of its own, and chooses few experts, that others do not.
    Words,
}

/// Shares of the experts that have slots, and disks in MB/s.
const CASES: [(Kind, f64, u64); 6] = [
    (Kind::Stories, 0.25, MIDDLE),
    (Kind::Stories, 0.5, MIDDLE),
    (Kind::Stories, 0.85, SLOW),
    (Kind::Stories, 1.0, EXTREMES[0]),
    (Kind::Words, 0.2, SLOW),
    (Kind::Words, 0.3, SLOW),
];

/// A way to share an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Together,
    InTurns,
    Decided,
}

/// Nanoseconds and bytes of a token, after the ways have been tried.
#[derive(Clone, Debug)]
struct Measured {
    nanos: f64,
    bytes: f64,
    texts: Vec<Vec<u32>>,
    done: Done,
}

pub(crate) fn run(report: &mut Report, setting: &Setting) -> Result<()> {
    for (kind, share, disk) in CASES {
        let percent = 100.0 * share;
        let what = format!("{kind:?}").to_lowercase();
        let case = format!("virtual time, {TEXTS} {what}, {percent:.0} % cached, {disk} MB/s");
        if setting.wants(&case) {
            scheduled(report, &case, kind, share, disk)?;
        }
    }
    Ok(())
}

/// Compares the ways to share the engine.
fn scheduled(report: &mut Report, case: &str, kind: Kind, share: f64, disk: u64) -> Result<()> {
    let ways = [Way::Together, Way::InTurns, Way::Decided];
    let measured = std::thread::scope(|scope| {
        let runs = ways.map(|way| scope.spawn(move || measure(way, kind, share, disk)));
        runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let [together, in_turns, decided] = measured;
    let together = together?;
    let in_turns = in_turns?;
    let decided = decided?;
    for (way, measured) in ways.into_iter().zip([&together, &in_turns, &decided]) {
        report.row(&format!("{case}, {way:?}"), "-".to_owned(), &measured.done, None);
        let ms = measured.nanos / 1e6;
        let kb = measured.bytes / 1e3;
        report.note(format!("{case}, {way:?}: {ms:.3} ms and {kb:.1} kB a token"));
        let same = measured.texts == together.texts;
        report.check(SAME, same, || format!("{case}, {way:?}"));
    }
    let (better, dearer) = match together.nanos < in_turns.nanos {
        true => (&together, &in_turns),
        false => (&in_turns, &together),
    };
    let expected = (kind == Kind::Stories) == std::ptr::eq(better, &together);
    report.check(BETTER, expected, || case.to_owned());
    report.check(APART, dearer.nanos > 1.03 * better.nanos, || {
        format!("{case}: {:.3} times", dearer.nanos / better.nanos)
    });
    report.check(TIME, decided.nanos <= 1.03 * better.nanos, || {
        format!("{case}: {:.3} times", decided.nanos / better.nanos)
    });
    report.check(BYTES, decided.bytes <= 1.03 * better.bytes + 1.0, || {
        format!("{case}: {:.0} and {:.0}", decided.bytes, better.bytes)
    });
    Ok(())
}

/// Some texts, by their numbers from 0.
fn texts_of(kind: Kind) -> Result<Vec<(usize, BatchRequest)>> {
    let model = Model::open(tales())?;
    let mut texts = Vec::new();
    for (number, prompt) in prompts(kind)?.into_iter().enumerate() {
        let word = prompt[0];
        let text = Text { prompt, ..Text::new(number, TOKENS) };
        let mut text = text.continuation(&model)?;
        if kind == Kind::Words {
            text.bias.push((word, ALWAYS));
        }
        texts.push((number, text));
    }
    Ok(texts)
}

fn prompts(kind: Kind) -> Result<Vec<Vec<u32>>> {
    Ok(match kind {
        Kind::Stories => beginnings()?.into_iter().take(TEXTS).collect(),
        Kind::Words => (1..=TEXTS as u32).map(|text| vec![700 * text]).collect(),
    })
}

fn measure(way: Way, kind: Kind, share: f64, disk: u64) -> Result<Measured> {
    let lm = streamer(share, disk)?;
    let gauge = lm.gauge();
    // The experts of this model are too small for two threads.
    let mut sequences = LoadedSequences::new(lm, &Threads::start(1)?);
    let mut batch = sequences.batch(TEXTS)?;
    if way == Way::Decided {
        batch = batch.with_turns(Duration::from_secs(10));
    }
    let mut began = None;
    let texts = continued(way, &mut batch, texts_of(kind)?, |all| {
        if all >= TRIED && began.is_none() {
            began = Some((gauge.read(), all));
        }
    })?;
    let (before, already) = began.context("too few tokens")?;
    let after = gauge.read();
    let new = (TEXTS * TOKENS - already) as f64;
    let metrics = Metrics::between(&before, &after);
    Ok(Measured {
        nanos: (after.passes - before.passes).as_nanos() as f64 / new,
        bytes: (after.device_bytes - before.device_bytes) as f64 / new,
        texts,
        done: Done { metrics: serde_json::to_value(metrics)?, ..Done::default() },
    })
}

/// Continues texts to their ends, and returns their tokens. `each` gets the number of tokens of all.
fn continued(
    way: Way,
    batch: &mut Batch<'_>,
    waiting: Vec<(usize, BatchRequest)>,
    mut each: impl FnMut(usize),
) -> Result<Vec<Vec<u32>>> {
    let mut tokens = vec![Vec::new(); TEXTS];
    if way == Way::InTurns {
        in_turns(batch, waiting, &mut tokens, each)?;
        return Ok(tokens);
    }
    for (number, text) in waiting {
        batch.add(number, text)?;
    }
    while !batch.is_empty() {
        step(batch, &mut tokens)?;
        each(tokens.iter().map(Vec::len).sum());
    }
    Ok(tokens)
}

fn step(batch: &mut Batch<'_>, tokens: &mut [Vec<u32>]) -> Result<()> {
    let mut failed = None;
    batch.step(&mut |number, event| match event {
        Event::Piece(piece, _) => tokens[number].extend(piece.token),
        Event::Resumed(pieces) => {
            tokens[number] = pieces.iter().filter_map(|piece| piece.token).collect();
        }
        Event::Ended(made) => failed = failed.take().or(made.err()),
        _ => {}
    });
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Continues texts one at a time: each goes away after a turn, and comes back where it was.
fn in_turns(
    batch: &mut Batch<'_>,
    waiting: Vec<(usize, BatchRequest)>,
    tokens: &mut [Vec<u32>],
    mut each: impl FnMut(usize),
) -> Result<()> {
    while tokens.iter().any(|text| text.len() < TOKENS) {
        for (number, text) in &waiting {
            let goal = (tokens[*number].len() + TURN).min(TOKENS);
            if tokens[*number].len() == TOKENS {
                continue;
            }
            let text = BatchRequest { cancel: sws::Cancel::new(), ..text.clone() };
            let cancel = text.cancel.clone();
            let prompt = text.tokens.len();
            let known = batch.add(*number, text)?;
            let is_there = known == Some(prompt) || tokens[*number].is_empty();
            ensure!(is_there, "a text that comes back does not go on where it was");
            while !batch.is_empty() {
                step(batch, tokens)?;
                if tokens[*number].len() >= goal {
                    cancel.cancel();
                }
                each(tokens.iter().map(Vec::len).sum());
            }
        }
    }
    Ok(())
}

/// The model with slots for a share of its experts while tokens come one at a time, on a disk of so
/// many MB/s.
fn streamer(share: f64, disk: u64) -> Result<SpeculativeWeightStreamer> {
    let latency = Duration::from_micros(20);
    let simulated = SimulatedDisk { bytes_per_second: disk * 1_000_000, latency, devices: 1 };
    let (store, spec) = virtual_time::simulated(&tales(), simulated, CHUNK)?;
    let inventory = Inventory::new(&spec, store.manifest())?;
    let plan = PlanOptions { context: Some(1024), batch: TEXTS, ..PlanOptions::default() };
    let process = ProcessMemory::default();
    let planner = Planner::new(&spec, &inventory, store.manifest(), process, plan)?;
    let most = planner.minimum() + (256 << 20);
    let enough = (share * planner.plan(most)?.most_experts() as f64) as usize;
    let ram = planner.smallest_with(most, 4096, |plan| plan.most_experts() >= enough)?;
    // With memory of contexts lent, more experts would be cached than the case says.
    let plan = Plan { context_lent: Vec::new(), ..planner.plan(ram)? };
    ensure!(!plan.slots.is_empty(), "no slots for {share} of the experts");
    let options = EngineOptions { costs: COSTS, ..EngineOptions::default() };
    Ok(SpeculativeWeightStreamer::with_plan(
        sws_model::ForwardPass::new(spec),
        store,
        plan,
        options,
    )?)
}
