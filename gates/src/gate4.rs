//! Gate 4: a streamer that adapts.
//!
//! One streamer goes from topic to topic, and keeps what its cache and draft have learned. In
//! virtual time, against the same streamer without a draft, with one that does not learn, and with
//! an LRU cache.

use anyhow::Result;
use sws_benchmarks::paired::Ratios;
use sws_benchmarks::resident::{open, tokenizer};
use sws_cache::policy::PolicyKind;
use sws_draft::{Draft, NoDraft};
use sws_engine::Metrics;
use sws_model::CausalLm;
use sws_testing::noisy::hash;
use sws_testing::{sampled, tales};
use sws_text::{Sampler, Sampling};

use crate::pairs;
use crate::report::Report;
use crate::setting::Setting;
use crate::stage::{EXTREMES, MIDDLE, Run, Stage};
use crate::task::{Ask, Drafting, Task};

const SAME: &str = "every logit is that of a run with everything in memory";
const CHANGES: &str = "the topic changes at least 20 times";
const SETTLES: &str = "misses are rarer in the last quarter of a topic than in its first";
const FEWER: &str = "misses are rarer than with lru over the run";
const PHASE_1: &str = "not slower than without a draft";
const PHASE_2: &str = "not slower than with a draft that does not learn";
const TEXT: &str = "both contenders give the same text";
const FASTER: &str = "disk-bound, at 25 % cached, at least 1.2 times as fast as lru";

const BUDGETS: [f64; 5] = [0.10, 0.25, 0.50, 0.75, 1.0];
/// A disk that dominates the time at 25 % cached under any policy.
const SLOW: u64 = MIDDLE / 4;
/// With everything cached there is nothing to gain, and a loss of one thousandth is allowed.
const GRAIN: f64 = 0.999;

/// Openings of texts that have little in common, a paragraph each.
const TOPICS: &str = include_str!("topics.txt");

/// A text: an opening, and its continuation by the resident model.
struct Topic {
    tokens: Vec<u32>,
    /// Hashes of the logits after each token.
    logits: Vec<u64>,
}

/// Streamers that are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Lru,
    /// The default policy, and no draft.
    One,
    /// With an untrained draft that does not learn.
    Two,
    /// With a draft that learns.
    Four,
}

/// A run over all topics.
struct Long {
    run: Run,
    /// Miss rates of the first and the last quarter of each topic.
    quarters: Vec<[f64; 2]>,
}

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(4, "a streamer that adapts");
    let budgets = if setting.full { &BUDGETS[..] } else { &[0.25, 1.0] };
    let mut stages: Vec<(f64, u64)> = budgets.iter().map(|&share| (share, MIDDLE)).collect();
    stages.push((0.25, SLOW));
    stages.retain(|&(share, disk)| setting.wants(&case(share, disk)));
    if !stages.is_empty() {
        let beginnings = beginnings()?;
        let changes = beginnings.len() - 1;
        report.check(CHANGES, changes >= 20, || changes.to_string());
        let topics = topics(beginnings, if setting.full { 256 } else { 64 })?;
        for (share, disk) in stages {
            stream_all(&mut report, &case(share, disk), (share, disk), &topics)?;
        }
    }
    if setting.full {
        wall(&mut report, setting)?;
    }
    Ok(report)
}

fn stream_all(
    report: &mut Report,
    case: &str,
    (share, disk): (f64, u64),
    topics: &[Topic],
) -> Result<()> {
    // One thread each: the experts of this model are too small for two.
    let runs = std::thread::scope(|scope| {
        let run = |phase| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
            pool.install(|| stream(phase, share, disk, topics))
        };
        let runs = Phase::ALL.map(|phase| scope.spawn(move || run(phase)));
        runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let [lru, one, two, ours] = runs;
    let lru = lru?;
    let one = one?;
    let two = two?;
    let ours = ours?;
    for (phase, long) in Phase::ALL.into_iter().zip([&lru, &one, &two, &ours]) {
        let case = format!("{case}, {}", phase.name());
        report.check(SAME, long.run.same, || case.clone());
        report.row(&case, long.run.fidelity(), &long.run.done()?, None);
        let name = format!("{case}, misses late over early");
        match phase {
            Phase::Four if share < 1.0 => report.below(SETTLES, &name, long.settling(), 1.0),
            _ if share < 1.0 => report.tell_ratio(&name, long.settling()),
            _ => {}
        }
    }
    if share < 1.0 {
        let [ours, lru] = [&ours, &lru].map(|long| long.run.metrics.experts.miss_rate);
        report.check(FEWER, ours < lru, || format!("{case}: {ours:.4}, and {lru:.4} with lru"));
    }
    for (what, than) in [(PHASE_1, &one), (PHASE_2, &two)] {
        let at_least = if share < 1.0 { 1.0 } else { GRAIN };
        let times = ours.speed() / than.speed();
        report.check(what, times >= at_least, || format!("{case}: {times:.4}"));
    }
    if disk == SLOW {
        let times = ours.speed() / lru.speed();
        report.check(FASTER, times >= 1.2, || format!("{case}: {times:.3}"));
        report.note(format!("{case}: {times:.3} times as fast as lru"));
    }
    Ok(())
}

/// Pairs of turns, each on a topic of its own, on a quiet machine.
fn wall(report: &mut Report, setting: &Setting) -> Result<()> {
    let mut asks = Vec::new();
    for (prompt, seed) in beginnings()?.into_iter().zip(7..) {
        asks.push(Ask::Topic { prompt, seed, tokens: 16 });
    }
    let others = [
        (Phase::Lru, 0.25, FASTER, 1.0 / 1.2),
        (Phase::One, 0.10, PHASE_1, 1.0),
        (Phase::One, 0.25, PHASE_1, 1.0),
        (Phase::One, 0.50, PHASE_1, 1.0),
        (Phase::One, 0.75, PHASE_1, 1.0),
        (Phase::Two, 0.10, PHASE_2, 1.0),
        (Phase::Two, 0.25, PHASE_2, 1.0),
        (Phase::Two, 0.50, PHASE_2, 1.0),
        (Phase::Two, 0.75, PHASE_2, 1.0),
    ];
    for (other, share, what, bar) in others {
        let case = format!("wall, {:.0} %, adapting over {}", 100.0 * share, other.name());
        if !setting.wants(&case) {
            continue;
        }
        let budget = pairs::budget(setting, "shards", share)?;
        let task = |phase: Phase| -> Result<Task> {
            Ok(pairs::task(setting, "shards", budget, phase.policy())?.with(phase.drafting()))
        };
        let (turns, ended) = pairs::duel(&[task(Phase::Four)?, task(other)?], &asks)?;
        for [a, b] in &turns {
            report.check(TEXT, a.tokens == b.tokens, || format!("{case}: {a:?} and {b:?}"));
        }
        report.ratio(what, &case, pairs::ratios(&turns), bar);
        for (phase, done) in [Phase::Four, other].into_iter().zip(&ended) {
            report.row(&format!("{case}, {}", phase.name()), "-".to_owned(), done, None);
        }
    }
    Ok(())
}

/// Openings of the topics, as tokens.
/// Their tokens.
pub(crate) fn beginnings() -> Result<Vec<Vec<u32>>> {
    let tokenizer = tokenizer(&tales())?;
    let mut beginnings = Vec::new();
    for text in TOPICS.split("\n\n") {
        beginnings.push(tokenizer.encode(text.trim_end(), true)?);
    }
    Ok(beginnings)
}

/// Texts by the resident model.
fn topics(beginnings: Vec<Vec<u32>>, tokens: usize) -> Result<Vec<Topic>> {
    let policy = PolicyKind::default();
    let mut lm = Stage { share: 1.0, disk: EXTREMES[0], policy }.streamer(Box::new(NoDraft))?;
    let mut topics = Vec::new();
    for (seed, prompt) in (7..).zip(beginnings) {
        let mut sampler = Sampler::new(Sampling { seed, ..sampled() }, lm.vocab());
        sampler.prompt(&prompt)?;
        lm.clear();
        let beginning = prompt.len();
        let mut topic = Topic { tokens: prompt, logits: Vec::new() };
        while topic.logits.len() < topic.tokens.len() {
            let at = topic.logits.len();
            let mut logits = lm.decode(topic.tokens[at])?.to_vec();
            topic.logits.push(hash(&logits));
            if (beginning..beginning + tokens).contains(&(at + 1)) {
                topic.tokens.push(sampler.sample(&mut logits, lm.len())?);
            }
        }
        topics.push(topic);
    }
    Ok(topics)
}

/// Streams every token of every topic one by one, openings included. In a chunk each expert would
/// be looked up once, however many tokens choose it, and a topic starts with its opening.
fn stream(phase: Phase, share: f64, disk: u64, topics: &[Topic]) -> Result<Long> {
    let mut lm = Stage { share, disk, policy: phase.policy() }.streamer(phase.draft()?)?;
    let began = lm.counters();
    let mut same = true;
    let mut quarters = Vec::new();
    for Topic { tokens, logits } in topics {
        lm.clear();
        let quarter = tokens.len() / 4;
        let ends = [quarter, tokens.len() - quarter, tokens.len()];
        let mut counters = vec![lm.counters()];
        for (at, (&token, &expected)) in tokens.iter().zip(logits).enumerate() {
            same &= hash(lm.decode(token)?) == expected;
            if ends.contains(&(at + 1)) {
                counters.push(lm.counters());
            }
        }
        let rate =
            |from: usize| Metrics::between(&counters[from], &counters[from + 1]).experts.miss_rate;
        quarters.push([rate(0), rate(2)]);
    }
    let metrics = Metrics::between(&began, &lm.counters());
    Ok(Long { run: Run { metrics, same }, quarters })
}

impl Long {
    /// Ratio of the misses in the last quarter of each topic to those in its first.
    fn settling(&self) -> Ratios {
        let mut first = Vec::new();
        let mut last = Vec::new();
        for quarters in &self.quarters {
            first.push(quarters[0]);
            last.push(quarters[1]);
        }
        Ratios::new(&last, &first)
    }

    fn speed(&self) -> f64 {
        self.run.metrics.tokens_per_second
    }
}

fn case(share: f64, disk: u64) -> String {
    format!("{:.0} % cached, {disk} MB/s", 100.0 * share)
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Lru, Phase::One, Phase::Two, Phase::Four];

    fn name(self) -> &'static str {
        match self {
            Phase::Lru => "lru",
            Phase::One => "no draft",
            Phase::Two => "frozen",
            Phase::Four => "adapting",
        }
    }

    fn policy(self) -> PolicyKind {
        if self == Phase::Lru { PolicyKind::Lru } else { PolicyKind::default() }
    }

    fn drafting(self) -> Drafting {
        match self {
            Phase::Lru | Phase::One => Drafting::No,
            Phase::Two => Drafting::Frozen,
            Phase::Four => Drafting::Learning,
        }
    }

    fn draft(self) -> Result<Box<dyn Draft>> {
        self.drafting().make(&open(&tales())?.1)
    }
}
