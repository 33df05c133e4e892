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
        while words.get(at).is_some_and(|word| word != OsStr::new(name)) {
            at += if words[at] == "--config" { 2 } else { 1 };
        }
        at += 1;
        path.push(name);
        found = below;
        child = child.find_subcommand(name).unwrap_or(child);
    }
    let value = |id: &str| Some(PathBuf::from(found.try_get_raw(id).ok()??.next()?));
    let typed_model = ["named", "model", "checkpoint", "dir"].into_iter().find_map(value);
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
        options.retain(|option| option.first().is_none_or(|word| word != "--watch"));
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

/// Id of the argument of an option as it is typed; empty if the command has none.
fn id_of<'c>(word: &OsStr, command: &'c clap::Command) -> &'c str {
    let long = word.to_str().and_then(|word| word.strip_prefix("--")?.split('=').next());
    let arg = command.get_arguments().find(|arg| arg.get_long() == long);
    arg.map_or("", |arg| arg.get_id().as_str())
}

/// True for an argument that was typed, or stands in the environment.
fn is_given(id: &str, found: &ArgMatches) -> bool {
    found.try_contains_id(id).is_ok()
        && matches!(
            found.value_source(id),
            Some(ValueSource::EnvVariable | ValueSource::CommandLine)
        )
}
