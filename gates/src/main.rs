//! Gates: criteria that must hold before the next part is built.
//!
//! `cargo run --release -p sws-gates` runs all of them at a size that takes minutes, `--full` at
//! the real one. Each prints its measurements and names the criteria that failed. Measurements of
//! memory run in a process of their own, started from this same program.

mod child;
mod crowd;
mod gate0;
mod gate1;
mod gate2;
mod gate3;
mod gate4;
mod gate5;
mod models;
mod pairs;
mod report;
mod schedule;
mod setting;
mod simulator;
mod stage;
mod switch;
mod task;
mod virtual_time;

use std::cell::OnceCell;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use models::Large;
use report::Report;
use setting::Setting;

/// Checks the criteria that must hold before the next part is built, and prints the figures.
#[derive(Parser)]
#[command(name = "sws-gates", version)]
struct Arguments {
    /// Only this gate (may be repeated)
    #[arg(long = "gate", value_parser = clap::value_parser!(u32).range(0..=5))]
    gates: Vec<u32>,
    /// Run at full size: experts of 14 MiB, 128 tokens, 1,000 answers, and wall time, for which the
    /// machine must be quiet
    #[arg(long)]
    full: bool,
    /// Only cases whose name contains these words
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Directory for the large model, which is deleted afterwards: on a disk with room for it
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Existing large model: a directory with `checkpoint` and `shards`
    #[arg(long, value_name = "DIR", conflicts_with = "scratch")]
    large: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run random scenarios in virtual time: budgets, drives with troubles, texts that come and go.
    /// Exits with 1 if a run was not as it must be; its seed repeats it
    Simulate {
        /// Number of scenarios
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        first: u64,
    },
    /// Runs one task read from standard input: for the gates themselves
    #[command(hide = true)]
    Child,
}

type Gate = fn(&Setting) -> Result<Report>;

/// The gates by their numbers.
const GATES: [(u32, Gate); 6] = [
    (0, gate0::run),
    (1, gate1::run),
    (2, gate2::run),
    (3, gate3::run),
    (4, gate4::run),
    (5, gate5::run),
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Some(Command::Child) => child::main().map(|()| true),
        Some(Command::Simulate { seeds, first }) => simulate(&arguments, first, seeds),
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

/// Runs scenarios. Returns true if all were as they must be.
fn simulate(arguments: &Arguments, first: u64, seeds: u64) -> Result<bool> {
    let done = simulator::simulate(first, seeds, &scratch(arguments))?;
    println!("{}", serde_json::to_string_pretty(&done)?);
    Ok(!done.failed())
}

fn scratch(arguments: &Arguments) -> PathBuf {
    arguments.scratch.clone().unwrap_or_else(|| sws_testing::root().join("target/gates"))
}

/// Runs the selected gates. Returns true if all criteria hold.
fn run(arguments: &Arguments) -> Result<bool> {
    let scratch = scratch(arguments);
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
