//! Gate 3: the verifier.
//!
//! Deliberately wrong stand-ins for every expert do not change a bit; without the verifier a single
//! one does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use sws_cache::policy::PolicyKind;
use sws_engine::{
    ComputeCosts, Counters, Exactness, Metrics, Options, ProcessMemory, RamBudget,
    SpeculativeWeightStreamer, StandInUse,
};
use sws_format::{MANIFEST_FILE, Manifest, checksum, open_checkpoint};
use sws_kernels::Encoding;
use sws_model::{CausalLm, ForwardPass, naming};
use sws_shard::{ShardOptions, shard, unshard, verify};
use sws_store::SimulatedDisk;
use sws_testing::tales;
use sws_testing::virtual_time::simulated;
use tempfile::TempDir;

use crate::report::Report;
use crate::setting::Setting;
use crate::task::Done;

const SAME: &str = "exact mode: every bit of the logits is that of the model without stand-ins";
const CAUGHT: &str = "exact mode: inexact pieces are offered, and each is caught";
const WRONG: &str = "one that is let through changes the logits";
const FAR: &str = "their error bounds, blind to the damage, would let them through";
const AHEAD: &str = "running ahead on them happens, and changes nothing";
const SOUND: &str = "their shards are sound, so that nothing else finds them";

const MIB: u64 = 1 << 20;
const PROMPT: u32 = 24;
/// A slow disk, so that running ahead pays.
const DISK: SimulatedDisk = SimulatedDisk {
    bytes_per_second: 100_000_000,
    latency: Duration::from_micros(100),
    devices: 1,
};
const COSTS: ComputeCosts = ComputeCosts {
    infrastructure: Duration::from_micros(60),
    expert: Duration::from_micros(12),
    head: Duration::from_micros(120),
};

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(3, "the verifier");
    let mut budgets = Vec::new();
    for mib in [20, 24, 30] {
        if PolicyKind::ALL.iter().any(|&policy| setting.wants(&case(mib, policy))) {
            budgets.push(mib);
        }
    }
    if budgets.is_empty() {
        return Ok(report);
    }
    let wrong = Wrong::make()?;
    let damage = verify(&wrong.dir, &|_| ())?.damage;
    report.check(SOUND, damage.is_empty(), || format!("{damage:?}"));
    let tokens = if setting.full { 256 } else { 48 };
    let (truth, ..) = wrong.run(tokens, 64, Options::default())?;
    for mib in budgets {
        for policy in PolicyKind::ALL {
            let case = case(mib, policy);
            if !setting.wants(&case) {
                continue;
            }
            let options = Options { policy, ..all(Exactness::Exact) };
            let (hash, counters, metrics) = wrong.run(tokens, mib, options)?;
            report.check(SAME, hash == truth, || format!("{case}: {hash:x} and {truth:x}"));
            let Counters { offered, caught, run_ahead, .. } = counters;
            report.check(CAUGHT, offered > 0 && offered == caught, || {
                format!("{case}: {offered} offered, {caught} caught")
            });
            report.check(AHEAD, run_ahead.runs > 0, || format!("{case}: {run_ahead:?}"));
            let done = Done {
                budget: mib * MIB,
                metrics: serde_json::to_value(metrics)?,
                ..Done::default()
            };
            report.row(&case, format!("{caught} of {offered}"), &done, None);
        }
        for (what, exactness) in [(WRONG, Exactness::Unseen(1)), (FAR, Exactness::Within(f64::MAX))]
        {
            let (hash, counters, _) = wrong.run(tokens, mib, all(exactness))?;
            let passed = counters.offered - counters.caught;
            report.check(what, hash != truth && passed > 0, || {
                format!("{mib} MiB, {exactness:?}: {passed} counted, and the logits are the same")
            });
        }
    }
    Ok(report)
}

fn all(exactness: Exactness) -> Options {
    Options { stand_ins: StandInUse::All, exactness, ..Options::default() }
}

/// The bundled model, with stand-ins of random weights.
struct Wrong {
    dir: PathBuf,
    _temp: TempDir,
}

impl Wrong {
    fn make() -> Result<Wrong> {
        let temp = tempfile::tempdir()?;
        let checkpoint = temp.path().join("checkpoint");
        let dir = temp.path().join("shards");
        unshard(&tales(), &checkpoint, false, None, &|_| ())?;
        let source = open_checkpoint(&checkpoint, None)?;
        let naming = naming(source.config())?;
        let options = ShardOptions { stand_ins: Some(Encoding::Q4), ..ShardOptions::default() };
        shard(&*source, &*naming, &dir, &options, &|_| ())?;
        std::fs::remove_dir_all(&checkpoint)?;
        randomise(&dir)?;
        Ok(Wrong { dir, _temp: temp })
    }

    /// A hash of the logits of some tokens in virtual time, with the counters and metrics.
    fn run(&self, tokens: u32, mib: u64, options: Options) -> Result<(u64, Counters, Metrics)> {
        let (store, spec) = simulated(&self.dir, DISK, 1 << 20)?;
        let options = Options {
            ram_budget: RamBudget::Bytes(mib * MIB),
            process: Some(ProcessMemory::default()),
            context: Some((PROMPT + tokens) as usize),
            costs: COSTS,
            ..options
        };
        let mut lm = SpeculativeWeightStreamer::new(ForwardPass::new(spec), store, options)?;
        let before = lm.counters();
        let mut bits = Vec::new();
        let prompt: Vec<u32> = (0..PROMPT).map(token).collect();
        bits.extend(lm.prefill(&prompt)?.iter().copied().flat_map(f32::to_le_bytes));
        for n in PROMPT..PROMPT + tokens {
            bits.extend(lm.decode(token(n))?.iter().copied().flat_map(f32::to_le_bytes));
        }
        let after = lm.counters();
        let metrics = Metrics::between(&before, &after);
        Ok((checksum(&bits), after, metrics))
    }
}

fn case(mib: u64, policy: PolicyKind) -> String {
    format!("wrong stand-ins, {mib} MiB, {policy}")
}

fn token(n: u32) -> u32 {
    (n * 131 + 5) % 4096
}

/// Randomises every code of every stand-in, and updates the checksums in the manifest.
fn randomise(dir: &Path) -> Result<()> {
    let mut manifest = Manifest::load(dir)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let stand_ins = manifest.pieces.iter_mut().filter_map(|piece| piece.stand_in.as_mut());
    for tensor in stand_ins.flat_map(|stand_in| &mut stand_in.tensors) {
        let codes = tensor.parts.first_mut().context("a tensor without parts")?;
        let path = dir.join(&manifest.files[codes.file as usize].path);
        let mut file = std::fs::read(&path)?;
        let bytes = &mut file[codes.offset as usize..][..codes.len as usize];
        for byte in &mut *bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        codes.checks = bytes.chunks(codes.check_len as usize).map(checksum).collect();
        std::fs::write(&path, &file)?;
    }
    Ok(std::fs::write(dir.join(MANIFEST_FILE), manifest.to_json()?)?)
}
