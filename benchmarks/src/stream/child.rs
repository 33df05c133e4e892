//! Runs `sws` as a process of its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sws_testing::cgroup::Group;

/// A run of `sws`.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Arguments that give the prompt.
    pub(crate) prompt: Vec<String>,
    pub(crate) tokens: u32,
    pub(crate) context: u32,
    pub(crate) threads: u32,
}

/// Sampled text: greedy text of a small model soon loops, and flatters any cache.
pub(super) const SAMPLING: [&str; 8] =
    ["--temperature", "1", "--top-k", "40", "--top-p", "0.95", "--seed", "7"];

/// Residency of the weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holding<'a> {
    Resident,
    /// Within a budget with an eviction policy, read on demand only.
    Budget(u64, &'a str),
    /// Within a budget, with the draft and the policy that the program chooses.
    Shipped(u64),
}

impl Holding<'_> {
    /// The budget, if there is one.
    pub(crate) fn budget(self) -> Option<u64> {
        match self {
            Holding::Resident => None,
            Holding::Budget(budget, _) | Holding::Shipped(budget) => Some(budget),
        }
    }
}

/// A model's sizes as reported by the program.
pub(crate) struct Known {
    pub(super) program: PathBuf,
    pub(super) model: PathBuf,
    /// Bytes of routed experts; 0 for a dense model.
    pub(super) experts: u64,
    /// Bytes of all weights.
    pub(crate) bytes: u64,
    /// Bytes of all weights but the embedding, which a token passes through, experts or not.
    pub(super) passed: u64,
}

/// Results reported by a run.
pub(crate) struct Told {
    pub(crate) tokens: Value,
    pub(crate) metrics: Value,
    /// Memory as counted by the control group.
    pub(crate) group_peak: Option<u64>,
}

/// Bytes of these parts of a plan together.
fn bytes_of(plan: &Value, parts: [&str; 2]) -> u64 {
    parts.iter().filter_map(|part| plan["plan"][part].as_u64()).sum()
}

impl Known {
    pub(crate) fn new(program: &Path, model: &Path) -> Result<Known> {
        let told =
            ask(program, &[OsStr::new("inspect"), model.as_os_str(), OsStr::new("--json")], None)?;
        let kinds = told["kinds"].as_array().context("`sws inspect` lists no kinds")?;
        let bytes = |wanted: &dyn Fn(&str) -> bool| -> u64 {
            let kinds = kinds.iter().filter(|kind| kind["kind"].as_str().is_some_and(wanted));
            kinds.filter_map(|kind| kind["stored_bytes"].as_u64()).sum()
        };
        Ok(Known {
            program: program.to_owned(),
            model: model.to_owned(),
            experts: bytes(&|kind| kind == "experts"),
            bytes: bytes(&|_| true),
            passed: bytes(&|kind| kind != "embedding"),
        })
    }

    /// The smallest budget that holds `share` of the experts, or of a dense model's weights.
    pub(crate) fn budget(&self, share: f64, task: &Task) -> Result<u64> {
        let all = self.plan(4 << 40, task)?;
        let enough = |plan: &Value| match bytes_of(&all, ["slots", "lent"]) {
            0 => {
                let held = bytes_of(plan, ["pinned_bytes", "ring_bytes"]);
                held as f64 >= share * self.passed as f64
            }
            experts => bytes_of(plan, ["slots", "lent"]) >= (share * experts as f64).round() as u64,
        };
        let nothing = all["smallest_budget"].as_u64().context("`sws plan` reports no minimum")?;
        let mut below = nothing >> 20;
        let mut above = (8 * nothing + 2 * self.passed) >> 20;
        ensure!(enough(&self.plan(above << 20, task)?), "no budget holds {share} of the model");
        while above - below > 1 {
            let middle = below.midpoint(above);
            match enough(&self.plan(middle << 20, task)?) {
                true => above = middle,
                false => below = middle,
            }
        }
        // The floor of a process differs by some pages from one start to the next.
        Ok((above + 1) << 20)
    }

    fn plan(&self, ram: u64, task: &Task) -> Result<Value> {
        let ram = mib(ram);
        let context = task.context.to_string();
        let threads = task.threads.to_string();
        let mut arguments = vec![OsStr::new("plan"), self.model.as_os_str()];
        arguments.extend(
            ["--ram", &ram, "--context", &context, "--threads", &threads, "--no-probe", "--json"]
                .map(OsStr::new),
        );
        ask(&self.program, &arguments, None)
    }

    /// Generates text.
    pub(crate) fn run(&self, task: &Task, holding: Holding<'_>) -> Result<Told> {
        let numbers = [task.tokens, task.context, task.threads].map(|n| n.to_string());
        let mut arguments = vec![OsStr::new("run"), self.model.as_os_str()];
        // Without a control group only the budget bounds the run.
        let group = holding.budget().and_then(|ram| Group::new("bench", ram).ok());
        let ram = holding.budget().map(mib).unwrap_or_default();
        match holding {
            Holding::Resident => arguments.push(OsStr::new("--resident")),
            // Every run starts in the same state.
            Holding::Shipped(_) => {
                arguments.extend(["--ram", &ram, "--no-warm-start"].map(OsStr::new));
            }
            Holding::Budget(_, policy) => {
                let how = ["--ram", &ram, "--policy", policy, "--no-warm-start", "--no-draft"];
                arguments.extend(how.map(OsStr::new));
            }
        }
        let [tokens, context, threads] = &numbers;
        let rest = ["--max-new-tokens", tokens, "--context", context, "--threads", threads];
        arguments.extend(rest.map(OsStr::new));
        arguments.extend(SAMPLING.map(OsStr::new));
        arguments.extend(task.prompt.iter().map(OsStr::new));
        arguments.extend(["--ignore-eos", "--json"].map(OsStr::new));
        let mut told = ask(&self.program, &arguments, group.as_ref())?;
        Ok(Told {
            tokens: told["tokens"].take(),
            metrics: told["metrics"].take(),
            group_peak: group.and_then(|group| group.peak().ok()),
        })
    }
}

/// Formats a budget for `sws`.
fn mib(bytes: u64) -> String {
    format!("{}MiB", bytes >> 20)
}

/// Runs `program` and parses the JSON that it prints.
pub(crate) fn ask(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    group: Option<&Group>,
) -> Result<Value> {
    serde_json::from_slice(&succeed(program, arguments, group)?)
        .with_context(|| format!("cannot parse the output of `{}`", program.display()))
}

/// Runs `program` and returns its output; fails if it does.
pub(crate) fn succeed(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    group: Option<&Group>,
) -> Result<Vec<u8>> {
    let output = output(program, arguments, group)?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        bail!("`sws {}` ({}): {}", words.join(" "), output.status, error.trim());
    }
    Ok(output.stdout)
}

/// Runs `program` to its end, within `group` if one is given.
pub(super) fn output(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    group: Option<&Group>,
) -> Result<Output> {
    let mut command = group.map_or_else(|| Command::new(program), |group| group.command(program));
    let output = command.args(arguments).stdin(Stdio::null()).output();
    output.with_context(|| format!("cannot start `{}`", program.display()))
}
