//! A simulator of the whole engine: plans, drives, reads, experts, tiers that lose experts, drafts, many texts and
//! their prefix cache, in virtual time. A seed is a scenario, and gives the same run on every machine.
//!
//! Every text must have the bits that it has alone with all weights in memory, or end with a sentence if
//! a read had trouble while it ran or a bit is always wrong. At every step, experts lie within the slots of
//! the plan, as do keys and values while one text runs; no text is lost, and none waits longer between two
//! tokens than it may.

mod model;
mod run;
mod scenario;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use sws_format::Clock;
use sws_testing::troubled::TroubleCounts;
use tempfile::TempDir;

use model::{SimulatedModel, models};
use run::{Outcome, run};
use scenario::Scenario;

/// Seeds of which one is run twice.
const REPEATED: u64 = 16;

/// Sums over all seeds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Simulated {
    seeds: u64,
    texts: u64,
    /// Texts with the bits that they have alone, to the end or until their client left.
    exact: u64,
    /// Texts that ended with a sentence.
    failed: u64,
    /// Models that were refused with a sentence.
    refused: u64,
    tokens: u64,
    /// Texts that began as another one did.
    forked: u64,
    /// Tokens of prompts that were not computed again.
    known: u64,
    steps: u64,
    bytes: u64,
    /// Experts that were computed on tiers outside memory, and copied to them.
    on_tiers: u64,
    copies: u64,
    virtual_seconds: f64,
    troubles: TroubleCounts,
    /// Seeds whose runs were not as they must be, with what was wrong.
    wrong: Vec<(u64, String)>,
}

/// Runs `count` seeds from `first` on.
pub(crate) fn simulate(first: u64, count: u64, scratch: &Path) -> Result<Simulated> {
    std::fs::create_dir_all(scratch)?;
    let temp = TempDir::with_prefix_in("simulator-", scratch)?;
    let mut models = models(temp.path()).context("the models of the simulator")?;
    let vocab: Vec<usize> = models.iter().map(|model| model.spec.vocab).collect();
    let mut sums = Simulated::default();
    let clock = Clock::real();
    let mut told = clock.now();
    for seed in first..first.saturating_add(count) {
        let scenario = Scenario::new(seed, &vocab);
        let model = &mut models[scenario.model];
        let result = catch_unwind(AssertUnwindSafe(|| checked(&scenario, model)));
        let result = result.unwrap_or_else(|_| Err(anyhow!("a panic")));
        sums.seeds += 1;
        match result {
            Ok((outcome, exact)) => sums.add(&outcome, exact),
            Err(error) => {
                let name = &model.name;
                eprintln!("seed {seed} ({name}): {error:#}");
                sums.wrong.push((seed, format!("{name}: {error:#}")));
            }
        }
        if clock.now() > told + Duration::from_secs(10) {
            eprintln!("simulator: {} of {count} seeds", sums.seeds);
            told = clock.now();
        }
    }
    Ok(sums)
}

/// Runs a scenario, and compares its texts. Returns the number of those that are as they must be.
fn checked(scenario: &Scenario, model: &mut SimulatedModel) -> Result<(Outcome, u64)> {
    let outcome = run(scenario, model)?;
    if scenario.seed.is_multiple_of(REPEATED) {
        ensure!(run(scenario, model)? == outcome, "another run of it differs");
    }
    if let Some(refused) = &outcome.refused {
        ensure!(outcome.may_refuse(), "refused without trouble: {refused}");
        return Ok((outcome, 0));
    }
    let mut exact = 0;
    for told in &outcome.texts {
        // Its reason is known to be one.
        if told.failed.is_some() {
            continue;
        }
        let alone = model.alone(&told.text)?;
        ensure!(
            told.is_as(&alone),
            "text {} has other bits than alone: {told:?}, {alone:?}",
            told.text.number
        );
        for altered in told.altered() {
            ensure!(!altered.is_as(&alone), "a bit of another value is not found");
        }
        exact += 1;
    }
    Ok((outcome, exact))
}

impl Simulated {
    /// True if a run was not as it must be.
    pub(crate) fn failed(&self) -> bool {
        !self.wrong.is_empty()
    }

    fn add(&mut self, outcome: &Outcome, exact: u64) {
        self.texts += outcome.texts.len() as u64;
        self.exact += exact;
        self.failed += outcome.texts.iter().filter(|told| told.failed.is_some()).count() as u64;
        self.refused += u64::from(outcome.refused.is_some());
        self.steps += outcome.steps;
        self.bytes += outcome.bytes;
        let [on_tier, copies] = outcome.on_tier;
        self.on_tiers += on_tier;
        self.copies += copies;
        self.virtual_seconds += outcome.time.as_secs_f64();
        self.troubles.add(&outcome.troubles);
        for told in &outcome.texts {
            self.tokens += told.tokens.len() as u64;
            self.forked += u64::from(told.text.forked);
            self.known += told.known as u64;
        }
    }
}
