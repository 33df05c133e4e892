//! Gate 5: many texts that come, begin as others did, fail and go.
//!
//! In a control group that kills, eight at a time from a disk whose reads fail now and then: each has
//! the bits that it has alone, within the budget. In virtual time, texts share passes or take turns as
//! the scheduler decides, against always the one and always the other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sws::{Batch, Event, Model, Needs, Options, RamBudget, Sequences, Streaming, Threads};
use sws_engine::{
    Metrics, Options as EngineOptions, PlanOptions, Planner, ProcessMemory,
    SpeculativeWeightStreamer,
};
use sws_model::Inventory;
use sws_store::SimulatedDisk;
use sws_testing::cgroup::Group;
use sws_testing::tales;
use sws_testing::virtual_time::{self, CHUNK, COSTS};

use crate::Setting;
use crate::child::{Done, Drafting, Ended, Ram, Task, Work, finished};
use crate::crowd::{Crowd, Text, Told};
use crate::gate4::beginnings;
use crate::mib;
use crate::report::Report;
use crate::stage::{EXTREMES, MIDDLE};

const SAME: &str = "every text has the tokens, probabilities and hashes that it has alone";
const CONTROL: &str = "control: a token, probability or hash with another bit is found";
const ENDED: &str = "every text ends, and reads that fail end some of them only";
const REUSED: &str = "texts that begin as others did are not computed again from their start";
const ALIVE: &str = "not killed in a control group with the budget as its limit";
const WITHIN: &str = "peak memory within the budget";
const TIME: &str = "texts as scheduled take no longer than in the better of both ways (1.03)";
const APART: &str = "control: the dearer of both ways is longer than that (1.03)";
const BYTES: &str = "texts as scheduled read no more than in the faster of both ways (1.03)";

/// Reads of a thousand that fail. A piece that was read too early is read again when it is needed, so a
/// text ends where two reads fail: of 70,000 reads about 0.02² × 70,000 = 28 fail so. In three runs that
/// ended 15, 19 and 19 of 120 texts; ten of a thousand ended 1 to 6, and would have ended none now and then.
const FAULTS: u32 = 20;
/// Disk speed in MB/s at which, at 85 % cached, five times as much time is waiting as computing.
const SLOW: u64 = 10;

/// Shares of the experts that have slots, and disks in MB/s.
const CASES: [(f64, u64); 4] = [(0.25, MIDDLE), (0.5, MIDDLE), (0.85, SLOW), (1.0, EXTREMES[0])];
/// Texts that are continued together in virtual time, and their tokens.
const TEXTS: usize = 4;
const TOKENS: usize = 800;
/// Tokens of all texts after which the ways have been tried, and are measured.
const TRIED: usize = 1700;
/// Tokens of a turn where texts always take turns.
const TURN: usize = 128;

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(5, "many texts");
    crowd(&mut report, setting)?;
    for (share, disk) in CASES {
        let percent = 100.0 * share;
        let case = format!("virtual time, {TEXTS} texts, {percent:.0} % cached, {disk} MB/s");
        if setting.wants(&case) {
            scheduled(&mut report, &case, share, disk)?;
        }
    }
    Ok(report)
}

fn crowd(report: &mut Report, setting: &Setting) -> Result<()> {
    let crowd = Crowd { texts: if setting.full { 2000 } else { 120 }, per_mille: FAULTS };
    let case = format!("{} texts, eight at a time", crowd.texts);
    if !setting.wants(&case) {
        return Ok(());
    }
    let task = Task {
        model: tales(),
        ram: Ram::Min,
        policy: "expected".to_owned(),
        reader: "direct".to_owned(),
        context: 256,
        work: Work::Crowd(crowd),
        draft: Drafting::No,
        only_plan: false,
    };
    let budget = finished(task.clone().planned().run(None))?.budget;
    let group = Group::new("gate", budget).ok();
    if group.is_none() {
        let why = "as no control group of version 1 can be made here";
        report.note(format!("skipped: the limit of `{case}`, {why}"));
    }
    let ended = Task { ram: Ram::Bytes(budget), ..task }.run(group.as_ref());
    if group.is_some() {
        let killed = matches!(ended, Err(Ended::Killed(_)));
        report.check(ALIVE, !killed, || format!("{case}: {ended:?}"));
        if killed {
            return Ok(());
        }
    }
    let done = finished(ended)?;
    report.check(WITHIN, done.peak_rss <= done.budget, || {
        format!("{case}: {} of {}", mib(done.peak_rss), mib(done.budget))
    });
    let told: Vec<Told> = done
        .certificates
        .iter()
        .map(|json| serde_json::from_str(json))
        .collect::<Result<_, _>>()?;
    let failed = told.iter().filter(|told| told.failed.is_some()).count();
    let all = told.len() == crowd.texts && failed > 0 && failed < crowd.texts;
    report.check(ENDED, all, || format!("{case}: {} ended, {failed} failed", told.len()));
    let forked = told.iter().filter(|told| told.text.forked);
    let [all, known] =
        forked.fold([0, 0], |[all, known], told| [all + 1, known + usize::from(told.known > 4)]);
    report.check(REUSED, 2 * known > all, || format!("{case}: {known} of {all}"));
    let alone = compare(report, &case, &told)?;
    report.row(
        &case,
        format!("{alone}/{}", told.len() - failed),
        &done,
        group.and_then(|g| g.peak().ok()),
    );
    report.note(format!("{case}: {} reads failed, and {failed} texts with them", done.faults));
    Ok(())
}

/// Computes each text alone, with everything in memory. Returns the number of those that agree.
fn compare(report: &mut Report, case: &str, told: &[Told]) -> Result<usize> {
    let model = Model::open(tales())?;
    let streaming = Streaming { warm_start: false, ..Streaming::default() };
    let options = Options { resident: true, context: Some(256), streaming, ..Options::default() };
    let mut loaded = model.with(options).needs(Needs { texts: 2, ..Needs::default() }).load()?;
    let mut agreed = 0;
    for told in told.iter().filter(|told| told.failed.is_none()) {
        // With a witness nothing of the text before is used again.
        let text = Text { certified: true, leaves_after: None, ..told.text.clone() };
        let alone = crate::crowd::alone(&mut loaded, &text)?;
        let same = told.is_as(&alone);
        agreed += usize::from(same);
        report.check(SAME, same, || format!("{case}: {told:?}"));
        for altered in told.altered() {
            report.check(CONTROL, !altered.is_as(&alone), || format!("{case}: {altered:?}"));
        }
    }
    Ok(agreed)
}

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

/// Compares the ways to share the engine.
fn scheduled(report: &mut Report, case: &str, share: f64, disk: u64) -> Result<()> {
    let ways = [Way::Together, Way::InTurns, Way::Decided];
    let measured = std::thread::scope(|scope| {
        let runs = ways.map(|way| scope.spawn(move || measure(way, share, disk)));
        runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let [together, in_turns, decided] = measured;
    let (together, in_turns, decided) = (together?, in_turns?, decided?);
    for (way, measured) in ways.into_iter().zip([&together, &in_turns, &decided]) {
        report.row(&format!("{case}, {way:?}"), "-".to_owned(), &measured.done, None);
        let (ms, kb) = (measured.nanos / 1e6, measured.bytes / 1e3);
        report.note(format!("{case}, {way:?}: {ms:.3} ms and {kb:.1} kB a token"));
        let same = measured.texts == together.texts;
        report.check(SAME, same, || format!("{case}, {way:?}"));
    }
    let (better, dearer) = match together.nanos < in_turns.nanos {
        true => (&together, &in_turns),
        false => (&in_turns, &together),
    };
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

fn measure(way: Way, share: f64, disk: u64) -> Result<Measured> {
    let mut lm = streamer(share, disk)?;
    let (gauge, waiter) = (lm.gauge(), lm.waiter());
    let model = Model::open(tales())?;
    // The experts of this model are too small for two threads.
    let mut sequences = Sequences::new(Box::new(lm), &Threads::start(1)?, waiter);
    let mut batch = sequences.batch(TEXTS)?;
    if way == Way::Decided {
        batch = batch.with_turns(Duration::from_secs(10));
    }
    let mut waiting = Vec::new();
    for (number, prompt) in beginnings()?.into_iter().take(TEXTS).enumerate() {
        let text = Text { prompt, ..Text::new(number, TOKENS) };
        waiting.push((number, text.continuation(&model)?));
    }
    let mut tokens = vec![Vec::new(); TEXTS];
    let mut began = None;
    if way == Way::InTurns {
        in_turns(&mut batch, waiting, &mut tokens, |all| {
            if all >= TRIED && began.is_none() {
                began = Some((gauge.read(), all));
            }
        })?;
    } else {
        for (number, text) in waiting {
            batch.add(number, text)?;
        }
        while !batch.is_empty() {
            step(&mut batch, &mut tokens)?;
            let all = tokens.iter().map(Vec::len).sum();
            if all >= TRIED && began.is_none() {
                began = Some((gauge.read(), all));
            }
        }
    }
    let (before, already) = began.context("too few tokens")?;
    let after = gauge.read();
    let new = (TEXTS * TOKENS - already) as f64;
    let metrics = Metrics::between(&before, &after);
    Ok(Measured {
        nanos: (after.passes - before.passes).as_nanos() as f64 / new,
        bytes: (after.device_bytes - before.device_bytes) as f64 / new,
        texts: tokens,
        done: Done { metrics: serde_json::to_value(metrics)?, ..Done::default() },
    })
}

fn step(batch: &mut Batch<'_>, tokens: &mut [Vec<u32>]) -> Result<()> {
    let mut failed = None;
    batch.step(&mut |number, event| match event {
        Event::Piece(piece, _) => tokens[number].extend(piece.token),
        Event::Again(pieces) => {
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
    waiting: Vec<(usize, sws::Continuation)>,
    tokens: &mut [Vec<u32>],
    mut each: impl FnMut(usize),
) -> Result<()> {
    while tokens.iter().any(|text| text.len() < TOKENS) {
        for (number, text) in &waiting {
            let goal = (tokens[*number].len() + TURN).min(TOKENS);
            if tokens[*number].len() == TOKENS {
                continue;
            }
            let text = sws::Continuation { cancel: sws::Cancel::new(), ..text.clone() };
            let cancel = text.cancel.clone();
            let prompt = text.tokens.len();
            let known = batch.add(*number, text)?;
            let is_there = known == prompt || tokens[*number].is_empty();
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
    let simulated = SimulatedDisk { bytes_per_second: disk * 1_000_000, latency };
    let (store, spec) = virtual_time::simulated(&tales(), simulated, CHUNK)?;
    let inventory = Inventory::new(&spec, store.manifest())?;
    let plan = PlanOptions { context: Some(1024), batch: TEXTS, ..PlanOptions::default() };
    let process = ProcessMemory::default();
    let planner = Planner::new(&spec, &inventory, store.manifest(), process, plan)?;
    let most = planner.minimum() + (256 << 20);
    let enough = (share * planner.plan(most)?.most_experts() as f64) as usize;
    let ram = planner.smallest_with(most, 4096, |plan| plan.most_experts() >= enough)?;
    let plan = planner.plan(ram)?;
    ensure!(!plan.slots.is_empty(), "no slots for {share} of the experts");
    let options = EngineOptions { costs: COSTS, ..EngineOptions::default() };
    Ok(SpeculativeWeightStreamer::with_plan(sws_model::Model::new(spec), store, plan, options)?)
}

impl Crowd {
    /// The budget, or its least, as the options of the library have it.
    pub(crate) fn budget(ram: Ram) -> RamBudget {
        match ram {
            Ram::Bytes(bytes) => RamBudget::Bytes(bytes),
            _ => RamBudget::Min,
        }
    }
}
