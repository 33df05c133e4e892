//! One module per command.

pub(crate) mod bench;
pub(crate) mod certify;
pub(crate) mod chat;
mod choice;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod draft;
#[cfg(feature = "pull")]
mod first;
pub(crate) mod forward;
pub(crate) mod inspect;
mod kv;
#[cfg(feature = "serve")]
pub(crate) mod launch;
pub(crate) mod link;
pub(crate) mod list;
mod machine;
pub(crate) mod mirror;
#[cfg(feature = "serve")]
mod notify;
mod outline;
pub(crate) mod pages;
pub(crate) mod plan;
pub(crate) mod prompts;
#[cfg(feature = "pull")]
pub(crate) mod pull;
#[cfg(feature = "pull")]
pub(crate) mod push;
mod remote;
pub(crate) mod replay;
pub(crate) mod rm;
mod rounded;
pub(crate) mod run;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod shard;
mod structured;
#[cfg(feature = "serve")]
pub(crate) mod top;
pub(crate) mod unshard;
pub(crate) mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sws::Warning;
use sws_format::{Checkpoint, Manifest};
use sws_model::ModelSpec;

use crate::far;
use crate::terminal::{note, show as print};

fn print_json(value: &(impl serde::Serialize + ?Sized)) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints a report, as JSON or as text.
fn print_report<R: serde::Serialize + ?Sized>(
    json: bool,
    report: &R,
    text: fn(&R) -> String,
) -> anyhow::Result<ExitCode> {
    if json {
        print_json(report)?
    } else {
        print(&text(report))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a count with its noun: `1 token`, `2 tokens`.
pub(crate) fn count(number: impl TryInto<u64>, word: &str) -> String {
    match number.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {word}"),
        number => format!("{number} {word}s"),
    }
}

/// The tensors of a checkpoint, as a pass would find them.
fn in_place(checkpoint: &dyn Checkpoint) -> anyhow::Result<Manifest> {
    let naming = sws_model::naming(checkpoint.config())?;
    Ok(Manifest::in_place(checkpoint, &*naming)?)
}

/// Names those that no pass reads.
fn note_unused(checkpoint: &dyn Checkpoint, manifest: &Manifest) {
    if let Ok(spec) = ModelSpec::of(checkpoint.config()) {
        for warning in Warning::unused(&spec.for_weights(manifest), manifest) {
            note!("sws: {warning}");
        }
    }
}

/// Returns the shard directory of a path or an id.
fn shards(typed: &Path) -> anyhow::Result<PathBuf> {
    far::refuse(typed)?;
    match sws::locate(typed) {
        // The command itself says what is wrong with the directory.
        Err(sws::Error::NoPath { path }) => Ok(path),
        found => Ok(found?),
    }
}

/// Each of two numbers, if there are any.
fn both(pair: Option<[u64; 2]>) -> [Option<u64>; 2] {
    match pair {
        Some([first, second]) => [Some(first), Some(second)],
        None => [None, None],
    }
}

pub(crate) fn size(bytes: u64) -> String {
    sws::Size(bytes).to_string()
}
