//! Defaults of the configuration file on the command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::anyhow;
use clap::ArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;

use super::sentence;
use crate::config::ConfigFile;
use crate::watch;

/// Parses a command line again, with the entries of a configuration file that apply to it.
pub(super) fn with_defaults(
    command: &mut clap::Command,
    words: Vec<OsString>,
    typed: ArgMatches,
    config: &ConfigFile,
) -> anyhow::Result<ArgMatches> {
    let mut at = 1;
    let mut child = &*command;
    let mut found = &typed;
    let mut path = Vec::new();
    while let Some((name, below)) = found.subcommand() {
        // A file may have the name of a command.
        while let Some(word) = words.get(at)
            && word != OsStr::new(name)
        {
            at += if word == "--config" { 2 } else { 1 };
        }
        at += 1;
        path.push(name);
        found = below;
        child = child.find_subcommand(name).unwrap_or(child);
    }
    let typed_model = typed_model(found);
    let path = path.join(" ");
    let has_model = typed_model.is_some();
    let model = typed_model.or_else(|| config.model(&path));
    let mut options = config.options(child, &path, model)?;
    // Also of an option that may be given several times: what was typed replaces the entry.
    options.retain(|option| match option.first() {
        Some(word) => match id_of(word, child) {
            "named" if has_model => false,
            id => !is_given(id, found),
        },
        None => true,
    });
    if !watch::can_show() {
        // As a default it is for terminals; typed, it is refused there.
        options.retain(|option| !matches!(option.first(), Some(word) if word == "--watch"));
    }
    let mut matches = typed.clone();
    let mut words = words;
    for option in options {
        let mut more = words.clone();
        let at = at.min(more.len());
        more.splice(at..at, option);
        match command.try_get_matches_from_mut(&more) {
            Ok(parsed) => (words, matches) = (more, parsed),
            // Typed, excluded by what was, or of no use without another option.
            Err(e) if e.kind() == ErrorKind::ArgumentConflict => {}
            Err(e) if e.kind() == ErrorKind::MissingRequiredArgument => {}
            Err(error) => {
                let file = config.path().display();
                return Err(anyhow!("with the entries of `{file}`: {}", sentence(&error)));
            }
        }
    }
    Ok(matches)
}

/// The model that was typed, of whatever kind.
fn typed_model(found: &ArgMatches) -> Option<PathBuf> {
    for id in ["named", "model", "checkpoint", "dir"] {
        if let Ok(Some(mut values)) = found.try_get_raw(id)
            && let Some(value) = values.next()
        {
            return Some(value.into());
        }
    }
    None
}

/// Id of the argument of an option as it is typed; empty if the command has none.
fn id_of<'c>(word: &OsStr, command: &'c clap::Command) -> &'c str {
    let long = long_name(word);
    for arg in command.get_arguments() {
        if arg.get_long() == long {
            return arg.get_id().as_str();
        }
    }
    ""
}

/// Name of an option as it is typed, without dashes and value.
fn long_name(word: &OsStr) -> Option<&str> {
    word.to_str()?.strip_prefix("--")?.split('=').next()
}

/// True for an argument that was typed, or stands in the environment.
fn is_given(id: &str, found: &ArgMatches) -> bool {
    found.try_contains_id(id).is_ok()
        && matches!(
            found.value_source(id),
            Some(ValueSource::EnvVariable | ValueSource::CommandLine)
        )
}
