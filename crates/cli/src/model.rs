//! The MODEL argument: finding and loading the model.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sws::{LoadedModel, Loader, Model, Progress, RamBudget, Warning};
use sws_model::ModelSpec;

use crate::args;
use crate::far;
use crate::here::{Here, bundled, newest_for_chat};
use crate::interrupt::{Interrupt, Interrupted};
use crate::process;
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::terminal::note;

/// Opens the model that was typed, or the bundled one.
pub(crate) fn open(typed: Option<&Path>) -> anyhow::Result<Model> {
    open_with(typed, None, None)
}

/// Opens the model of a command, to run it. Until it is [loaded](load), the heap is limited to the
/// budget, if there is one.
pub(crate) fn open_to_run(args: &args::ModelArgs) -> anyhow::Result<Model> {
    limit_to_budget(args);
    let mut model = open_typed(args.model.as_deref(), args)?;
    spread(&mut model, &args.advanced.also)?;
    Ok(model)
}

/// Spreads the reads of a model over copies on other drives. Those that are left out, now or later, are
/// named on standard error.
pub(crate) fn spread(model: &mut Model, copies: &[PathBuf]) -> sws::Result<()> {
    model.also(copies, |sentence| note!("sws: {sentence}"))
}

/// Limits the heap to the budget of a command, if there is one.
pub(crate) fn limit_to_budget(args: &args::ModelArgs) {
    if let Some(budget) = args.options().budget() {
        process::limit(budget);
    }
}

/// Opens the model that was typed, or the bundled one, for the budget of a command.
pub(crate) fn open_typed(typed: Option<&Path>, args: &args::ModelArgs) -> anyhow::Result<Model> {
    open_with(typed, args.advanced.cache_disk, args.options().budget())
}

fn open_with(
    typed: Option<&Path>,
    cache: Option<u64>,
    ram: Option<RamBudget>,
) -> anyhow::Result<Model> {
    Ok(match typed {
        Some(typed) => match far::open(typed, cache, ram)? {
            Some(model) => model,
            None => Model::open_counted(typed, ram, process::heap)?,
        },
        None => {
            let bundled = bundled()?;
            note!("sws: the model is `{}`", bundled.display());
            Model::open_counted(bundled, ram, process::heap)?
        }
    })
}

/// Explains that a text was typed in place of a model, where `example` shows how to give one.
fn text_is_no_model(error: anyhow::Error, example: &str) -> anyhow::Error {
    match error.downcast_ref::<sws::Error>() {
        Some(sws::Error::NoPath { path }) if path.to_string_lossy().contains(' ') => {
            anyhow!("`{}` is not a model; a text is given as in `{example}`", path.display())
        }
        Some(sws::Error::NoPath { path }) if path == "-" => {
            anyhow!(
                "`-` is not a model; `sws run MODEL` and `sws chat MODEL -` read standard input"
            )
        }
        _ => error,
    }
}

/// Like [`open_to_run`], but offers to download a model that is not on this machine, if there is a
/// terminal. `example` shows how a text is given, for one that was typed in place of a model.
pub(crate) fn open_or_pull(args: &args::ModelArgs, example: &str) -> anyhow::Result<Model> {
    match open_or_offer(args) {
        Err(error) => Err(text_is_no_model(error, example)),
        opened => opened,
    }
}

fn open_or_offer(args: &args::ModelArgs) -> anyhow::Result<Model> {
    match open_to_run(args) {
        #[cfg(feature = "pull")]
        Err(error) => {
            process::lift();
            match error.downcast_ref::<sws::Error>() {
                Some(missing) if crate::commands::pull::offer(missing)? => open_to_run(args),
                _ => Err(error),
            }
        }
        opened => opened,
    }
}

/// The newest model on this machine that was made for conversation.
pub(crate) fn for_chat() -> Option<Model> {
    let (_, (model, Here { id, form, .. })) = newest_for_chat()?;
    note!("sws: the model is `{id}` ({form})");
    Some(model)
}

/// Loads a model and prints its warnings.
pub(crate) fn load(loader: Loader<'_>, interrupt: &Interrupt) -> anyhow::Result<LoadedModel> {
    // From here on its plan bounds the memory.
    process::lift();
    let meter = ProgressMeter::quiet("loading", ProgressUnit::Bytes);
    let report = |progress: Progress| meter.show(progress);
    let loaded = loader.cancelled_by(interrupt.cancel()).reporting(report).load();
    meter.finish();
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(sws::Error::Cancelled) => {
            return Err(Interrupted("the model was still being loaded").into());
        }
        Err(e) => return Err(e.into()),
    };
    for warning in loaded.warnings() {
        match warning {
            Warning::Context { .. } => note!("{warning}"),
            _ => note!("sws: {warning}"),
        }
    }
    Ok(loaded)
}

/// The memory budget of a loaded model, if it has one.
pub(crate) fn budget(running: &LoadedModel) -> Option<u64> {
    Some(running.plan()?.ledger.budget())
}

/// Experts of all layers.
pub(crate) fn all_experts(spec: &ModelSpec) -> usize {
    spec.moes().map(|moe| moe.experts).sum()
}
