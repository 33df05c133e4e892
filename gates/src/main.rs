//! The gates: what must hold before the next part is built.
//!
//! `cargo run --release -p sws-gates` runs all of them at a size that fits into minutes, `--full` at
//! the real one. Each prints what was measured, and fails by the name of its criterion. What memory
//! is measured of runs in a process of its own, this program started anew.

mod child;
mod gate0;
mod gate1;
mod gate2;
mod gate3;
mod gate4;
#[path = "../../tests/cgroup.rs"]
mod group;
mod models;
#[path = "../../tests/noisy.rs"]
mod noisy;
mod pairs;
mod report;
mod stage;
mod virtual_time;

use std::cell::OnceCell;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use models::Large;
use report::Report;

/// What must hold before the next part is built, with the figures.
#[derive(Parser)]
#[command(name = "sws-gates", version)]
struct Arguments {
    /// Only this gate (may be repeated)
    #[arg(long = "gate", value_parser = clap::value_parser!(u32).range(0..=4))]
    gates: Vec<u32>,
    /// At full size: experts of 14 MiB, 128 tokens, 1,000 answers, and wall time, for which the machine must
    /// be quiet
    #[arg(long)]
    full: bool,
    /// Only cases that have these words in their name
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Where the large model is made, and deleted afterwards: a disk with room for it
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The large model, already there: a directory with `checkpoint` and `shards`
    #[arg(long, value_name = "DIR", conflicts_with = "scratch")]
    large: Option<PathBuf>,
    #[command(subcommand)]
    child: Option<Child>,
}

#[derive(Subcommand)]
enum Child {
    /// Reads a task and does it: for the gates themselves
    #[command(hide = true)]
    Child,
}

type Gate = fn(&Setting) -> Result<Report>;

/// The gates by their numbers.
const GATES: [(u32, Gate); 5] =
    [(0, gate0::run), (1, gate1::run), (2, gate2::run), (3, gate3::run), (4, gate4::run)];

/// How gates are run.
pub(crate) struct Setting {
    pub(crate) full: bool,
    only: Option<String>,
    scratch: PathBuf,
    large: OnceCell<Large>,
}

impl Setting {
    /// Whether a case is to be tried.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|words| case.contains(words))
    }

    /// The model that is larger than the process by far, made when it is first asked for.
    pub(crate) fn large(&self) -> Result<&Large> {
        if let Some(large) = self.large.get() {
            return Ok(large);
        }
        let expert_bytes = if self.full { 14 << 20 } else { 2 << 20 };
        let large = Large::make(&self.scratch, expert_bytes)?;
        Ok(self.large.get_or_init(|| large))
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.child {
        Some(Child::Child) => child::main().map(|()| true),
        None => run(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether all gates held.
fn run(arguments: &Arguments) -> Result<bool> {
    let scratch = arguments.scratch.clone().unwrap_or_else(|| models::root().join("target/gates"));
    let large = arguments.large.as_deref().map(Large::at).transpose()?;
    let large = large.map_or_else(OnceCell::new, OnceCell::from);
    let setting = Setting { full: arguments.full, only: arguments.only.clone(), scratch, large };
    let mut reports = Vec::new();
    for (number, gate) in GATES {
        if !arguments.gates.is_empty() && !arguments.gates.contains(&number) {
            continue;
        }
        let report = gate(&setting)?;
        if report.is_empty() {
            continue;
        }
        if !arguments.json {
            println!("{}", report.table());
        }
        reports.push(report);
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    if let Some(words) = &arguments.only {
        ensure!(!reports.is_empty(), "no case has `{words}` in its name");
    }
    Ok(!reports.iter().any(Report::failed))
}

/// For people.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}
