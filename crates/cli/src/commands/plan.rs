//! `sws plan`.

mod ledger;
mod other_formats;
mod prompts;
mod rows;
pub(crate) mod vram;
mod weights;
pub(crate) mod why;

use std::path::Path;
use std::process::ExitCode;

use sws::{Model, Outline, Threads};
use sws_engine::{PlanOptions, RamBudget};
use sws_kernels::Encoding;

use super::machine::Machine;
use super::outline::{self, PlanSubject};
use super::remote::{self, Remote, RemoteModel};
use crate::terminal::{Meanwhile, note};
use crate::{args, limits, model, process};
use weights::with_weights;

/// Said on a terminal meanwhile.
const MEASURING: &str = "measuring disk and memory";

pub(crate) fn run(args: &args::PlanArgs) -> anyhow::Result<ExitCode> {
    let described = args.describe.as_deref().map(Machine::described).transpose()?;
    let threads = described.unwrap_or_default().threads;
    let threads = limits::threads(args.threads.or(threads))?;
    let measures = (described.is_none() && !args.no_probe).then_some(&threads);
    let (found, remote) = match (model::open(args.model.as_deref()), &args.model) {
        (Err(error), Some(name)) => found(error.downcast()?, name)?,
        (opened, _) => {
            let mut model = opened?;
            model::spread(&mut model, &args.also)?;
            let planned = PlannedModel { described, measures, remote: None };
            return with_weights(args, &model, planned, &threads);
        }
    };
    let remote = if described.is_some() { remote.map(Remote::elsewhere) } else { remote };
    match found {
        RemoteModel::Outline(outline, named) => {
            let measuring = measuring(measures);
            let machine = machine(args, None, described, &threads);
            drop(measuring);
            let asked = PlanSubject { machine, threads: measures, ram: None, args: None, remote };
            without_weights(args, &outline, named, asked, &threads)
        }
        RemoteModel::Sketch(sketch) => {
            let planned = PlannedModel { described, measures, remote };
            let done = match Model::open_counted(&sketch.path, None, process::heap) {
                Ok(model) => with_weights(args, &model, planned, &threads),
                Err(error) => Err(error.into()),
            };
            match done {
                Err(error) => Err(sketch.explained(error)),
                done => done,
            }
        }
    }
}

/// The machine of a plan: the described one, or this one, measured with a model whose weights are here.
fn machine(
    args: &args::PlanArgs,
    model: Option<&Model>,
    described: Option<Machine>,
    threads: &Threads,
) -> Machine {
    let machine = match described {
        Some(machine) => machine,
        None if args.no_probe => Machine::unmeasured(threads),
        None => Machine::measure(model, args.reader, threads),
    };
    // Each drive may be read at this rate.
    let drives = match model {
        Some(model) => 1 + model.mirrors().len() as u64,
        None => 1,
    };
    machine.kept_to(args.max_disk_rate.map(|rate| rate.saturating_mul(drives)))
}

/// Says on a terminal that something is measured, if it is.
fn measuring(measures: Option<&Threads>) -> Option<Meanwhile> {
    measures.map(|_| Meanwhile::new(MEASURING))
}

/// The subject of a plan with weights, besides the model.
struct PlannedModel<'t> {
    /// The machine of `--describe`.
    described: Option<Machine>,
    /// Threads on which to measure how long tokens are computed, if this is the machine.
    measures: Option<&'t Threads>,
    /// The model's repository, if its weights are not on this machine.
    remote: Option<Remote>,
}

/// What there is of a model that cannot be opened: its configuration, or what the hub has of it.
fn found(error: sws::Error, name: &Path) -> anyhow::Result<(RemoteModel, Option<Remote>)> {
    if let Some(found) = remote::found(&error)? {
        return Ok(found);
    }
    Ok((RemoteModel::Outline(Box::new(Outline::instead(error, &sws::locate(name)?)?), None), None))
}

/// Plans the model of a configuration without weights.
fn without_weights(
    args: &args::PlanArgs,
    outline: &Outline,
    named: Option<Encoding>,
    asked: PlanSubject<'_>,
    threads: &Threads,
) -> anyhow::Result<ExitCode> {
    let machine = asked.machine;
    let ram = match machine.budget(args.ram, 0) {
        _ if args.ram == RamBudget::Min => None,
        // Less than what the system keeps for itself.
        0 => Some(machine.ram_bytes),
        ram => Some(ram),
    };
    if args.memory {
        note!("sws: --memory needs the weights, and is left out");
    }
    let options = plan_options(args, threads);
    let subject = PlanSubject { ram, args: Some(args), ..asked };
    outline::print(outline, named, options, Some(subject), args.json)
}

fn plan_options(args: &args::PlanArgs, threads: &Threads) -> PlanOptions {
    let options = args.options();
    PlanOptions {
        context: options.context,
        kv: options.kv,
        batch: args.batch.into(),
        tier: options.kernels(),
        threads: threads.count(),
        ..PlanOptions::default()
    }
}
