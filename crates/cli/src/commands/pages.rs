//! `sws pages`: the pages of a package, made of the same table as `--help`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Arg, ArgAction, Command};

use crate::args;
use crate::atomic_file::AtomicFile;

pub(crate) fn run(args: &args::Pages) -> anyhow::Result<ExitCode> {
    let dir = &args.dir;
    let refused = |e| anyhow!("`{}` cannot be written: {e}", dir.display());
    std::fs::create_dir_all(dir).map_err(refused)?;
    let mut command = args::command();
    clap_mangen::generate_to(command.clone(), dir).map_err(refused)?;
    command.build();
    write(&dir.join("cli.md"), &markdown(&command))?;
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write(text.as_bytes())?;
    file.publish()
}

/// All commands and options, as a page of Markdown.
fn markdown(command: &Command) -> String {
    let mut text =
        "# The command line\n\nMade by `sws pages DIR` of what `--help` prints.\n".to_owned();
    for child in visible(command) {
        describe(child, &mut text);
    }
    text
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|child| !child.is_hide_set() && child.get_name() != "help")
}

fn describe(command: &Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about());
    let about = about.map_or(String::new(), ToString::to_string);
    let _ = write!(text, "\n## {name}\n\n{about}\n");
    let mut args: Vec<&Arg> = command.get_arguments().filter(|arg| is_shown(arg)).collect();
    args.sort_by_key(|arg| (arg.get_index().is_none(), arg.get_index()));
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in &args {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        let title = heading.unwrap_or("argument or option");
        let _ = write!(text, "\n| {} | |\n|---|---|\n", title.to_lowercase());
        for arg in &args {
            if arg.get_help_heading() == heading {
                let _ = writeln!(text, "| `{}` | {} |", spelling(arg), purpose(arg));
            }
        }
    }
    for child in visible(command) {
        describe(child, text);
    }
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

/// How an argument is typed.
fn spelling(arg: &Arg) -> String {
    let short = match arg.get_short() {
        Some(short) => format!("-{short}, "),
        None => String::new(),
    };
    let value = match arg.get_value_names() {
        Some([first, ..]) => first.to_string(),
        _ => String::new(),
    };
    match arg.get_long() {
        None if arg.is_required_set() => value,
        None => format!("[{value}]"),
        Some(long) if matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count) => {
            format!("{short}--{long}")
        }
        Some(long) => format!("{short}--{long} {value}"),
    }
}

/// What it does, and its default.
fn purpose(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let help = help.map_or(String::new(), ToString::to_string);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let shows_default = !matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
    let defaults = arg.get_default_values().iter().filter_map(|value| value.to_str());
    let defaults: Vec<&str> = defaults.collect();
    match defaults.is_empty() || !shows_default {
        true => help,
        false => format!("{help} [default: {}]", defaults.join(",")),
    }
}
