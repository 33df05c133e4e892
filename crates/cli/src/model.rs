//! The MODEL argument: finding and loading the model.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use sws::{LoadedModel, Loader, Model, Progress, Warning};
use sws_store::MANIFEST_FILE;

use crate::here::{Here, newest};
use crate::interrupt::{Interrupt, Interrupted};
use crate::process;
use crate::progress::{Meter, Unit};
use crate::terminal::note;

/// Directory of the bundled model.
const SHARDS: &str = "shards";

/// Opens the model that was typed, or the bundled one.
pub(crate) fn open(typed: Option<&Path>) -> anyhow::Result<Model> {
    Ok(match typed {
        Some(typed) => Model::open_counted(typed, process::heap)?,
        None => Model::open_counted(shipped()?, process::heap)?,
    })
}

/// Explains that a text was typed in place of a model, where `example` shows how to give one.
pub(crate) fn text_is_no_model(error: anyhow::Error, example: &str) -> anyhow::Error {
    match error.downcast_ref::<sws::Error>() {
        Some(sws::Error::NoPath { path }) if path.to_string_lossy().contains(' ') => {
            anyhow!("`{}` is no model; a text is given as in `{example}`", path.display())
        }
        _ => error,
    }
}

/// Like [`open`], but offers to download a model that is not on this machine, if there is a terminal.
pub(crate) fn open_or_pull(typed: Option<&Path>) -> anyhow::Result<Model> {
    match open(typed) {
        #[cfg(feature = "pull")]
        Err(error) => match error.downcast_ref::<sws::Error>() {
            Some(sws::Error::NotHere { name, .. }) if crate::commands::pull::offer(name)? => {
                open(typed)
            }
            _ => Err(error),
        },
        opened => opened,
    }
}

/// The newest model on this machine that was made for conversation.
pub(crate) fn for_chat() -> Option<Model> {
    newest().into_iter().find_map(|Here { id, form, path, .. }| {
        let model = Model::open_counted(path?, process::heap).ok()?;
        model.chat_template().ok()?;
        note!("sws: the model is `{id}` ({form})");
        Some(model)
    })
}

/// Loads a model and prints its warnings.
pub(crate) fn load(loader: Loader<'_>, interrupt: &Interrupt) -> anyhow::Result<LoadedModel> {
    // Created on the first report only: a bar that shows nothing would still be cleared.
    let meter = OnceCell::new();
    let loader = loader.cancelled_by(interrupt.cancel()).reporting(|progress: Progress| {
        meter.get_or_init(|| Meter::quiet("loading", Unit::Bytes)).show(progress);
    });
    let loaded = loader.load();
    if let Some(meter) = meter.get() {
        meter.finish();
    }
    let loaded = loaded.map_err(|e| match e {
        sws::Error::Cancelled => Interrupted("the model was still being loaded").into(),
        e => anyhow::Error::from(e),
    })?;
    for warning in loaded.warnings() {
        match warning {
            Warning::Context { .. } => note!("{warning}"),
            _ => note!("sws: {warning}"),
        }
    }
    Ok(loaded)
}

/// Finds the model in `shards/`, below the working directory or a parent directory of the program.
fn shipped() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1));
    let places = [Path::new("")].into_iter().chain(above).map(|dir| dir.join(SHARDS));
    for place in places {
        let Ok(entries) = place.read_dir() else { continue };
        let dirs = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut models: Vec<PathBuf> =
            dirs.filter(|dir| dir.join(MANIFEST_FILE).exists()).collect();
        models.sort();
        if models.len() > 1 {
            let names: Vec<_> = models.iter().map(|dir| dir.display().to_string()).collect();
            bail!("`{}` holds several models; name one: {}", place.display(), names.join(", "));
        }
        if let Some(model) = models.pop() {
            note!("sws: the model is `{}`", model.display());
            return Ok(model);
        }
    }
    bail!(
        "no model was given, and there is none in `{SHARDS}`, neither here nor where the program lies; give a shard directory, a checkpoint directory, a GGUF file, or the id of a model, which `sws list` shows and `sws pull` downloads"
    )
}
