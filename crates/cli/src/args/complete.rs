//! Completion of models: paths, and ids of the models on this machine.

use std::ffi::OsStr;

use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};

use crate::here;

/// Completes a model.
pub(super) fn models() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut found = PathCompleter::any().complete(typed);
        let typed = typed.to_string_lossy();
        let ids = here::all().into_iter().map(|here| here.id.to_string());
        let ids = ids.filter(|id| id.starts_with(&*typed));
        found.extend(ids.map(CompletionCandidate::new));
        found
    })
}
