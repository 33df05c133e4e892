//! `sws replay`.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{anyhow, bail};
use rayon::prelude::*;
use serde::Serialize;
use sws_cache::correction::Correction;
use sws_cache::fit::{Fit, FitSequences};
use sws_cache::policy::PolicyKind;
use sws_cache::replay::{
    Replay, ReplayOutcome, ReplayPolicy, ReplayStates, ReplayTier, TierOutcome,
};
use sws_cache::{RouterStates, SavedTensors, Trace};
use sws_format::{Clock, Progress, open_regular};
use sws_watch::{Simulated, recorded};

use super::{count, print_report, size};
use crate::args;
use crate::atomic_file::AtomicFile;
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::table::{table, wrapped};
use crate::terminal::note;
use crate::watch::write_page;

/// Size limit of a trace: a hundred million choices or more.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum number of runs in one command.
const MAX_RUNS: usize = 1000;

pub(crate) fn run(args: &args::ReplayArgs) -> anyhow::Result<ExitCode> {
    let sees = args.policies.contains(&ReplayPolicy::Learning) || args.eviction.is_some();
    let files = files(&args.traces, sees)?;
    let states = if sees { states(&files)? } else { ReplayStates::default() };
    let trace = joined(&files)?;
    let batch = args.batch.into();
    let mut replay = match args.turns {
        None => Replay::new(&trace, batch),
        Some(turn) => Replay::in_turns(&trace, batch, turn as usize),
    };
    let mut policies = args.policies.clone();
    if args.eviction.is_some() || args.learn {
        if !policies.contains(&ReplayPolicy::Corrected) {
            policies.push(ReplayPolicy::Corrected);
        }
    } else if policies.contains(&ReplayPolicy::Corrected) {
        bail!(
            "the policy corrected needs a correction; name its file with --eviction, or use --learn"
        );
    }
    if let Some(path) = &args.eviction {
        replay = replay.corrected(Arc::new(recalled(path, &files, &states)?));
    } else if args.learn {
        let learned = learn(&trace, &replay.warming(), args)?;
        replay = replay.corrected(Arc::new(learned));
    }
    let mut replay = replay.with_states(states);
    if let Some(slots) = args.vram_slots {
        replay = replay.with_tier(ReplayTier {
            slots: slots as usize,
            governed: true,
            times: args.vram_times,
        });
        let named = policies.len();
        policies.retain(|policy| *policy != ReplayPolicy::Belady);
        if policies.is_empty() {
            bail!(
                "belady foresees no graphics card; name another policy, or leave out --vram-slots"
            );
        }
        if policies.len() < named {
            note!("sws: belady foresees no graphics card, and is left out");
        }
    }
    let slots = budgets(args, &trace, &replay);
    let mut runs: Vec<(f64, usize, ReplayPolicy)> = Vec::new();
    for &(percent, slots) in &slots {
        for &policy in &policies {
            runs.push((percent, slots, policy));
        }
    }
    if runs.len() > MAX_RUNS {
        bail!(
            "{} budgets and policies are too many for one command; name at most {MAX_RUNS}",
            runs.len()
        );
    }

    let page = args.html.as_deref().map(AtomicFile::create).transpose()?;
    if page.as_ref().is_some_and(AtomicFile::is_stdout) {
        bail!("standard output holds the table; name a file for --html");
    }
    if let Some(page) = &page {
        for path in &args.traces {
            page.check_apart(path)?;
        }
    }
    let meter = ProgressMeter::quiet("replaying", ProgressUnit::Tokens);
    let done = AtomicU64::new(0);
    let total = (runs.len() * trace.token_count()) as u64;
    let clock = Clock::real();
    let outcomes: Vec<(ReplayOutcome, f64)> = runs
        .par_iter()
        .map(|&(_, slots, policy)| {
            let started = clock.now();
            let outcome = replay.run(policy, slots, &mut |tokens| {
                let done = done.fetch_add(tokens as u64, Ordering::Relaxed) + tokens as u64;
                meter.show(Progress { done, total });
            });
            (outcome, (clock.now() - started).as_secs_f64())
        })
        .collect();
    meter.finish();
    if let Some(mut file) = page {
        let name = args.traces[0].file_name().unwrap_or_default().to_string_lossy();
        let story = recorded(&name, &trace, simulated(&policies, &slots));
        write_page(&story, &mut file)?;
        file.publish()?;
    }

    let report = ReplayReport::new(&trace, args, &runs, &outcomes);
    print_report(args.json, &report, ReplayReport::text)
}

/// The slots to replay with, each beside its share of all experts in percent.
fn budgets(args: &args::ReplayArgs, trace: &Trace, replay: &Replay) -> Vec<(f64, usize)> {
    let mut slots: Vec<(f64, usize)> = Vec::new();
    if args.slots.is_empty() {
        for &percent in &args.budgets {
            slots.push((percent, replay.slots(percent / 100.0)));
        }
    }
    let all = (trace.shape().layers * trace.shape().experts) as f64;
    for &n in &args.slots {
        slots.push((100.0 * f64::from(n) / all, n as usize));
    }
    slots
}

/// The cache of the page: the default policy if it is among those, or else the first that looks only
/// back.
fn simulated(policies: &[ReplayPolicy], slots: &[(f64, usize)]) -> Option<Simulated> {
    let mut found = None;
    for policy in policies {
        let kind = match policy {
            ReplayPolicy::Engine(kind) => *kind,
            ReplayPolicy::Corrected | ReplayPolicy::Learning => PolicyKind::default(),
            _ => continue,
        };
        if found.is_none() || kind == PolicyKind::default() {
            found = Some(kind);
        }
    }
    let &(_, slots) = slots.first()?;
    Some(Simulated { policy: found?, slots })
}

/// A trace, and its file as far as it may be needed.
struct TraceInput {
    path: PathBuf,
    trace: Trace,
    bytes: Vec<u8>,
}

impl TraceInput {
    /// True if the file has states of this length.
    fn has_states_of(&self, hidden: usize) -> bool {
        let found = RouterStates::read(&self.bytes, &self.trace);
        matches!(found, Ok(Some(found)) if found.hidden() == hidden)
    }
}

/// Reads traces. With `states`, the states in their files stay in memory.
fn files(paths: &[PathBuf], states: bool) -> anyhow::Result<Vec<TraceInput>> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let bytes = read(path)?;
        let trace = Trace::read(&bytes).map_err(|e| anyhow!("`{}` {e}", path.display()))?;
        let bytes = if states { bytes } else { Vec::new() };
        files.push(TraceInput { path: path.clone(), trace, bytes });
    }
    Ok(files)
}

/// All traces, one after another.
fn joined(files: &[TraceInput]) -> anyhow::Result<Trace> {
    let Some((first, others)) = files.split_first() else { bail!("there is no trace; name one") };
    let mut all = first.trace.clone();
    for TraceInput { path, trace, .. } in others {
        if let Err(e) = all.append(trace) {
            bail!("`{}` {e}", path.display());
        }
    }
    Ok(all)
}

/// The states of all traces; none if a trace has none, or states of another length.
fn states(files: &[TraceInput]) -> anyhow::Result<ReplayStates<'_>> {
    let mut all = ReplayStates::default();
    let mut first = 0;
    for TraceInput { path, trace, bytes } in files {
        match RouterStates::read(bytes, trace) {
            Ok(Some(found)) if [0, found.hidden()].contains(&all.hidden()) => {
                all.push(first, found);
            }
            Ok(_) => return Ok(ReplayStates::default()),
            Err(e) => bail!("`{}` {e}", path.display()),
        }
        first += trace.token_count();
    }
    Ok(all)
}

/// The correction in a file, for traces of this shape with these states.
fn recalled(
    path: &Path,
    files: &[TraceInput],
    states: &ReplayStates<'_>,
) -> anyhow::Result<Correction> {
    let saved = open(path)?;
    let name = path.display();
    let shape = files[0].trace.shape();
    let correction = match Correction::recall(&saved, shape) {
        Ok(Some(correction)) => correction,
        Ok(None) => bail!("`{name}` has no correction; make one with `sws draft train`"),
        Err(e) => {
            bail!("`{name}` {e} of `{}`; train one for that model", files[0].path.display())
        }
    };
    let hidden = correction.hidden();
    if ![0, states.hidden()].contains(&hidden) {
        let blind = files.iter().find(|file| !file.has_states_of(hidden)).unwrap_or(&files[0]);
        bail!(
            "`{}` has no states that the correction looks at; record them with `sws run --record-hidden`",
            blind.path.display()
        );
    }
    Ok(correction)
}

/// The tensors in the file of a correction.
fn open(path: &Path) -> anyhow::Result<SavedTensors> {
    match SavedTensors::of_any_model(&read(path)?) {
        Ok((_, saved)) => Ok(saved),
        Err(e) => bail!("`{}` {e}; make a correction with `sws draft train`", path.display()),
    }
}

/// Learns a correction from some sequences of a trace.
fn learn(
    trace: &Trace,
    sequences: &[Range<usize>],
    args: &args::ReplayArgs,
) -> anyhow::Result<Correction> {
    let meter = ProgressMeter::of("learning", ProgressUnit::Tokens);
    let fit = Fit { hidden: 0, rank: args.rank.into(), ..Fit::default() };
    let fitted = fit.run(
        FitSequences::new(trace, sequences),
        &mut |_, _, _| Ok::<_, anyhow::Error>(()),
        &mut |done, total| {
            meter.show(Progress { done: done as u64, total: total as u64 });
            true
        },
    )?;
    meter.finish();
    match fitted {
        Some(fitted) => Ok(fitted.correction),
        None => bail!("nothing was learned; name a longer trace"),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = path.display();
    let unread =
        |e: std::io::Error| anyhow!("`{name}` cannot be read: {e}; name a file with routes");
    let file = open_regular(path).map_err(unread)?;
    let about = file.metadata().map_err(unread)?;
    if about.len() > MAX_BYTES {
        let len = size(about.len());
        let most = size(MAX_BYTES);
        bail!("`{name}` has {len} and a trace at most {most}; record fewer tokens");
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(unread)?;
    Ok(bytes)
}

#[derive(Debug, Serialize)]
struct ReplayReport {
    layers: usize,
    experts: usize,
    top_k: usize,
    sequences: usize,
    tokens: usize,
    batch: u16,
    /// Tokens of a turn; `None` if the sequences share passes.
    turns: Option<u32>,
    /// Tokens of the second half.
    counted: usize,
    /// Experts that a graphics card has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    vram_slots: Option<u32>,
    runs: Vec<ReplayRun>,
}

#[derive(Debug, Serialize)]
struct ReplayRun {
    /// Slots, in percent of all experts.
    budget: f64,
    slots: usize,
    policy: String,
    /// Experts used, each counted once per layer and pass.
    uses: u64,
    misses: u64,
    hit_rate: f64,
    misses_per_token: f64,
    /// Experts computed on the graphics card, and copied to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    vram: Option<VramRun>,
    /// `None` unless both `lru` and `belady` were replayed.
    gap_closed: Option<f64>,
    misses_by_layer: Vec<u64>,
    /// Time spent in the policy and its bookkeeping, warm-up included.
    microseconds_per_token: f64,
}

#[derive(Debug, Serialize)]
struct VramRun {
    hits: u64,
    /// Share of the uses.
    hit_rate: f64,
    copies: u64,
}

impl VramRun {
    fn of(outcome: &ReplayOutcome) -> Option<VramRun> {
        let TierOutcome { hits, copies } = outcome.tier?;
        Some(VramRun { hits, hit_rate: outcome.tier_rate()?, copies })
    }
}

/// The outcome of the first run with these slots and this policy.
fn outcome_of<'o>(
    runs: &[(f64, usize, ReplayPolicy)],
    outcomes: &'o [(ReplayOutcome, f64)],
    slots: usize,
    policy: ReplayPolicy,
) -> Option<&'o ReplayOutcome> {
    for (run, (outcome, _)) in runs.iter().zip(outcomes) {
        if (run.1, run.2) == (slots, policy) {
            return Some(outcome);
        }
    }
    None
}

impl ReplayReport {
    fn new(
        trace: &Trace,
        args: &args::ReplayArgs,
        runs: &[(f64, usize, ReplayPolicy)],
        outcomes: &[(ReplayOutcome, f64)],
    ) -> ReplayReport {
        let mut rows = Vec::with_capacity(runs.len());
        for (&(budget, slots, policy), (outcome, seconds)) in runs.iter().zip(outcomes) {
            let lru = outcome_of(runs, outcomes, slots, ReplayPolicy::Engine(PolicyKind::Lru));
            let best = outcome_of(runs, outcomes, slots, ReplayPolicy::Belady);
            let gap_closed = match (lru, best) {
                (Some(lru), Some(best)) => outcome.gap_closed(lru, best),
                _ => None,
            };
            rows.push(ReplayRun {
                budget,
                slots,
                policy: policy.to_string(),
                uses: outcome.uses,
                misses: outcome.misses,
                hit_rate: outcome.hit_rate(),
                misses_per_token: outcome.misses_per_token(),
                vram: VramRun::of(outcome),
                gap_closed,
                misses_by_layer: outcome.layers.iter().map(|layer| layer.misses).collect(),
                microseconds_per_token: 1e6 * seconds / trace.token_count() as f64,
            });
        }
        let shape = trace.shape();
        ReplayReport {
            layers: shape.layers,
            experts: shape.experts,
            top_k: shape.top_k,
            sequences: trace.sequences().count(),
            tokens: trace.token_count(),
            batch: args.batch,
            turns: args.turns,
            counted: outcomes.first().map_or(0, |(outcome, _)| outcome.tokens),
            vram_slots: args.vram_slots,
            runs: rows,
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} of {} experts, {} a token; {} in {}, {} counted\n\n",
            count(self.layers, "layer"),
            self.experts,
            self.top_k,
            count(self.tokens, "token"),
            count(self.sequences, "sequence"),
            self.counted,
        );
        let mut rows = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            rows.push(vec![
                format!("{:.1} %", run.budget),
                run.slots.to_string(),
                run.policy.clone(),
                format!("{:.1} %", 100.0 * run.hit_rate),
                format!("{:.2}", run.misses_per_token),
                match (&run.vram, run.gap_closed) {
                    (Some(vram), _) => format!("{:.1} %", 100.0 * vram.hit_rate),
                    (None, Some(gap)) => format!("{gap:.3}"),
                    (None, None) => String::new(),
                },
            ]);
        }
        let last = if self.vram_slots.is_some() { "on card" } else { "gap closed" };
        let heading = ["budget", "slots", "<policy", "hits", "misses/token", last];
        text.push_str(&table(&heading, &rows));
        text.extend(self.vram_slots.map(|slots| {
            wrapped(&format!(
                "\nwith room for {} on a card, whose hits are among the hits; by the times of --vram-times, which are assumed\n",
                count(slots, "expert")
            ))
        }));
        text
    }
}
