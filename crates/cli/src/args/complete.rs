//! Completion of models: paths, and ids of the models on this machine.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use anyhow::bail;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;

use crate::here;

/// Variable with the shell that asks for completions.
pub(crate) const COMPLETE_VARIABLE: &str = "SWS_COMPLETE";

/// Refuses a shell that is not known.
pub(crate) fn check_shell() -> anyhow::Result<()> {
    let shell = std::env::var_os(COMPLETE_VARIABLE).unwrap_or_default();
    if shell.is_empty() {
        return Ok(());
    }
    let shells = Shells::builtins();
    // It may be a path.
    let name = Path::new(&shell).file_stem().and_then(OsStr::to_str);
    if name.is_none_or(|name| shells.completer(name).is_none()) {
        let known: Vec<&str> = shells.names().collect();
        bail!(
            "the variable {COMPLETE_VARIABLE} is `{}`, which is not a shell; set one of {}, or unset it",
            shell.display(),
            known.join(", ")
        );
    }
    Ok(())
}

/// Completes a model.
pub(super) fn models() -> ArgValueCompleter {
    ArgValueCompleter::new(candidates)
}

fn candidates(typed: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(typed);
    let typed = typed.to_string_lossy();
    // A model may be here in several forms.
    let mut ids = BTreeSet::new();
    for here in here::all() {
        ids.insert(here.id.to_string());
    }
    for id in ids {
        if id.starts_with(&*typed) {
            found.push(CompletionCandidate::new(id));
        }
    }
    found
}
