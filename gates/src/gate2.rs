//! Gate 2: speculation that pays.
//!
//! Compares the default policy with and without a prefetching draft, in virtual time: over several
//! budgets, and over disks from one that never stalls computing to one that always does. The drafts
//! are our own, which has learned nothing of the model, and an artificial one of a given recall. At
//! full size also in wall time, on a real disk.

use anyhow::Result;
use sws_benchmarks::resident::open;
use sws_cache::policy::PolicyKind;
use sws_draft::{Draft, NoDraft};
use sws_engine::Metrics;
use sws_model::CausalLm;
use sws_testing::noisy::{Answer, Noisy, hash};
use sws_testing::{sampled, tales};
use sws_text::Sampler;

use crate::pairs;
use crate::report::Report;
use crate::setting::Setting;
use crate::stage::{EXTREMES, MIDDLE, Run, Stage};
use crate::task::{DRAFT_BYTES, Drafting, Task};

const SAME: &str = "every logit is the same";
const TEXT: &str = "both contenders give the same text";
const STALL: &str = "computing waits less at 25 and 50 %";
const EARLY: &str =
    "at 25 and 50 %, at least 5 % of the missed bytes are resident or in flight when needed";
const NEVER: &str = "the time is at most 1.02 of that without, at any budget";
const OFF: &str = "speculation is off on a disk that never stalls computing, or always does";
const ON: &str = "between the two it is switched on";

const BUDGETS: [f64; 6] = [0.10, 0.25, 0.35, 0.50, 0.75, 1.0];
/// Recall of a draft made from the next layer's router on this layer's state, and its lookahead in
/// layers.
const RECALL: f32 = 0.75;
const DEPTH: usize = 4;
/// Layers, experts and top-k of the model.
const SHAPE: [usize; 3] = [8, 32, 4];
/// Most windows with speculation on at the extremes: the first, and retries that are each twice as
/// long after the last.
const ATTEMPTS: u64 = 5;

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(2, "speculation that pays");
    let tokens = if setting.full { 512 } else { 160 };
    let answer = answer(tokens)?;
    for share in BUDGETS {
        for disk in [EXTREMES[0], 10 * MIDDLE, MIDDLE, MIDDLE / 4, EXTREMES[1]] {
            // The extremes behave alike at any budget: one is enough.
            if EXTREMES.contains(&disk) && share != 0.50 {
                continue;
            }
            let case = format!("{:.0} % cached, {disk} MB/s", 100.0 * share);
            if !setting.wants(&case) {
                continue;
            }
            let without = stream(&answer, share, disk, Box::new(NoDraft))?;
            for draft in Drafts::ALL {
                let with = stream(&answer, share, disk, draft.make(&answer)?)?;
                let case = format!("{case}, {}", draft.name());
                hold(&mut report, &case, (share, disk), &without, &with);
                report.row(&case, with.fidelity(), &with.done()?, None);
            }
            report.row(&format!("{case}, none"), without.fidelity(), &without.done()?, None);
        }
    }
    if setting.full {
        wall(&mut report, setting)?;
    }
    Ok(report)
}

/// The large model with our untrained draft against none, on a quiet machine.
fn wall(report: &mut Report, setting: &Setting) -> Result<()> {
    for share in BUDGETS {
        let case = format!("wall, {:.0} %, with our draft over without", 100.0 * share);
        if !setting.wants(&case) {
            continue;
        }
        let ram = pairs::budget(setting, "shards", share)?;
        let task = |draft: Drafting| -> Result<Task> {
            Ok(pairs::task(setting, "shards", ram, PolicyKind::default())?.with(draft))
        };
        let tasks = [task(Drafting::Learning)?, task(Drafting::No)?];
        let (turns, ended) = pairs::duels(tasks)?;
        for [a, b] in &turns {
            report.check(TEXT, a.tokens == b.tokens, || format!("{case}: {a:?} and {b:?}"));
        }
        report.ratio(NEVER, &case, pairs::ratios(&turns), 1.02);
        if [0.25, 0.50].contains(&share) {
            let stalls = pairs::ratios_of(&turns, |turn| turn.stalled);
            report.below(STALL, &format!("{case}, stalls"), stalls, 1.0);
            let early: u64 = turns.iter().map(|[with, _]| with.early).sum();
            let missed: u64 = turns.iter().map(|[_, without]| without.bytes).sum();
            let early = early as f64 / missed as f64;
            report.check(EARLY, early >= 0.05, || format!("{case}: {early:.3}"));
            report
                .note(format!("{case}: {early:.3} of the bytes missed without a draft were early"));
        }
        for (name, done) in ["with", "without"].into_iter().zip(&ended) {
            report.row(&format!("{case}, {name}"), "-".to_owned(), done, None);
        }
    }
    Ok(())
}

/// Criteria for a run with a draft against the same run without.
fn hold(report: &mut Report, case: &str, (share, disk): (f64, u64), without: &Run, with: &Run) {
    report.check(SAME, without.same && with.same, || case.to_owned());
    let ratio = with.metrics.seconds / without.metrics.seconds;
    report.check(NEVER, ratio <= 1.02, || format!("{case}: {ratio:.3}"));
    let speculation = &with.metrics.speculation;
    let on = speculation.windows_on;
    let off = speculation.windows_off;
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

/// Drafts under test.
#[derive(Clone, Copy)]
enum Drafts {
    /// Our draft, untrained.
    Own,
    /// An artificial draft of recall [`RECALL`], calibrated.
    Noisy,
}

impl Drafts {
    const ALL: [Drafts; 2] = [Drafts::Own, Drafts::Noisy];

    fn name(self) -> &'static str {
        match self {
            Drafts::Own => "our draft",
            Drafts::Noisy => "artificial draft",
        }
    }

    fn make(self, answer: &Answer) -> Result<Box<dyn Draft>> {
        Ok(match self {
            Drafts::Noisy => Box::new(Noisy::new(SHAPE, answer.routes.clone(), RECALL, DEPTH)),
            Drafts::Own => {
                let spec = open(&tales())?.1;
                Box::new(sws_testing::draft(&spec, DRAFT_BYTES)?)
            }
        })
    }
}

/// Samples an answer as users do, with everything in memory.
fn answer(tokens: usize) -> Result<Answer> {
    let mut lm = stage(1.0, EXTREMES[0]).streamer(Box::new(NoDraft))?;
    let mut sampler = Sampler::new(sampled(), lm.vocab());
    let mut answer = Answer::default();
    let mut token = 5;
    for _ in 0..tokens {
        let mut logits = lm.observed(&[token], &mut answer)?.to_vec();
        answer.tokens.push(token);
        answer.logits.push(hash(&logits));
        token = sampler.sample(&mut logits, lm.len())?;
    }
    Ok(answer)
}

fn stream(answer: &Answer, share: f64, disk: u64, draft: Box<dyn Draft>) -> Result<Run> {
    let mut lm = stage(share, disk).streamer(draft)?;
    let before = lm.counters();
    let mut same = true;
    for (&token, &expected) in answer.tokens.iter().zip(&answer.logits) {
        same &= hash(lm.decode(token)?) == expected;
    }
    let after = lm.counters();
    let metrics = Metrics::between(&before, &after);
    Ok(Run { metrics, same })
}

fn stage(share: f64, disk: u64) -> Stage {
    Stage { share, disk, policy: PolicyKind::default() }
}
