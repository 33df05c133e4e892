//! Errors of command lines, in one sentence each.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::command;

/// Errors of numbers as the standard library has them, and what was expected.
const NUMBERS: [(&str, &str); 5] = [
    ("invalid digit found in string", "expected a whole number"),
    ("cannot parse integer from empty string", "expected a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid float literal", "expected a number"),
    ("cannot parse float from empty string", "expected a number"),
];

/// What is wrong with a command line, and the remedy, in one sentence.
pub(crate) fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let mut sentence = String::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() {
            continue;
        }
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if !sentence.is_empty() {
            sentence += if sentence.ends_with(':') { " " } else { "; " };
        }
        sentence += line.strip_prefix("tip: ").unwrap_or(line);
    }
    if error.kind() == ErrorKind::ValueValidation {
        for (theirs, ours) in NUMBERS {
            sentence = sentence.replace(theirs, ours);
        }
    }
    if let Some(variable) = variable_of(error) {
        sentence = format!("{sentence}, from the environment variable {variable}");
    }
    sentence + "; `--help` lists what there is"
}

/// The environment variable that gave an option its wrong value.
fn variable_of(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = option.split(' ').next()?;
    let variable = variable(&command(), option.strip_prefix("--")?)?;
    (!is_typed(option) && std::env::var_os(&variable).is_some()).then_some(variable)
}

/// True if an option was typed, with its dashes.
fn is_typed(option: &str) -> bool {
    for word in std::env::args_os() {
        if let Some(word) = word.to_str()
            && word.split('=').next() == Some(option)
        {
            return true;
        }
    }
    false
}

/// The environment variable of an option, the same in all commands that have it.
fn variable(command: &clap::Command, long: &str) -> Option<String> {
    for arg in command.get_arguments() {
        if arg.get_long() == Some(long)
            && let Some(variable) = arg.get_env()
            && let Some(variable) = variable.to_str()
        {
            return Some(variable.to_owned());
        }
    }
    command.get_subcommands().find_map(|below| variable(below, long))
}

/// Suggests a command of the same letters, which clap finds too far away: `rnu`.
pub(super) fn with_suggestion(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand)
        && error.get(ContextKind::SuggestedSubcommand).is_none()
    {
        let mut similar = Vec::new();
        for name in command.get_subcommands().map(clap::Command::get_name) {
            if letters(name) == letters(typed) {
                similar.push(name.to_owned());
            }
        }
        if !similar.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(similar));
        }
    }
    error
}

/// The letters of a word, sorted.
fn letters(word: &str) -> Vec<char> {
    let mut letters: Vec<char> = word.chars().collect();
    letters.sort_unstable();
    letters
}
