//! The configuration file: defaults for options, by command and by model.
//!
//! Its entries are put on the command line, before what was typed, so that they mean the same and are
//! checked alike. An entry is left out if its option, or one that excludes it, was typed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// Size limit of the file.
const MAX_BYTES: u64 = 1 << 20;

/// The configuration file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    /// Entries for every command that has the option.
    #[serde(default)]
    all: Table,
    /// Entries by command.
    #[serde(default)]
    command: BTreeMap<String, Table>,
    /// Entries by model, as it is typed.
    #[serde(default)]
    model: BTreeMap<String, Table>,
}

/// A file and its entries.
#[derive(Debug)]
pub(crate) struct Config {
    path: PathBuf,
    contents: Contents,
}

/// The place of the file unless another is typed.
pub(crate) fn place() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(base.join("sws/config.toml"))
}

impl Config {
    /// Reads the file that was typed, or that at the usual place if there is one. An empty path stands
    /// for no file.
    pub(crate) fn read(typed: Option<&Path>) -> anyhow::Result<Option<Config>> {
        let path = match typed {
            Some(path) if path.as_os_str().is_empty() => return Ok(None),
            Some(path) => path.to_owned(),
            None => match place().filter(|path| path.exists()) {
                Some(path) => path,
                None => return Ok(None),
            },
        };
        let name = path.display();
        let unreadable = |e| anyhow!("`{name}` cannot be read: {e}; give --config another file");
        let len = path.metadata().map_err(unreadable)?.len();
        if len > MAX_BYTES {
            bail!("`{name}` has {len} bytes, and a configuration at most {MAX_BYTES}");
        }
        let text = std::fs::read_to_string(&path).map_err(unreadable)?;
        let contents = toml::from_str(&text).map_err(|e| {
            let line = e.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            anyhow!("`{name}`, line {line}: {}; correct it", e.message().replace('\n', " "))
        })?;
        Ok(Some(Config { path, contents }))
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that every entry is an option.
    pub(crate) fn check(&self, command: &Command) -> anyhow::Result<()> {
        let any = |name: &str| command.get_subcommands().any(|child| option(child, name).is_some());
        for (name, entries) in &self.contents.command {
            let Some(child) = command.find_subcommand(name) else {
                bail!("`{}`: [command.{name}] names no command", self.path.display());
            };
            self.known(entries, &format!("command.{name}"), &|name| option(child, name).is_some())?;
        }
        self.known(&self.contents.all, "all", &any)?;
        for (model, entries) in &self.contents.model {
            self.known(entries, &format!("model.\"{model}\""), &any)?;
        }
        Ok(())
    }

    fn known(
        &self,
        entries: &Table,
        section: &str,
        is_option: &dyn Fn(&str) -> bool,
    ) -> anyhow::Result<()> {
        match entries.keys().find(|name| !is_option(name)) {
            None => Ok(()),
            Some(name) => Err(anyhow!(
                "`{}`: [{section}] has `{name}`, which is no option there; `--help` lists them, here without dashes",
                self.path.display()
            )),
        }
    }

    /// The entries that apply to a command line, as options.
    pub(crate) fn options(
        &self,
        command: &Command,
        typed: &ArgMatches,
    ) -> anyhow::Result<Vec<OsString>> {
        let Some((name, typed)) = typed.subcommand() else { return Ok(Vec::new()) };
        let Some(command) = command.find_subcommand(name) else { return Ok(Vec::new()) };
        let Contents { all, command: commands, model: models } = &self.contents;
        let model = typed.try_get_one::<PathBuf>("model").ok().flatten();
        let model = model.and_then(|model| models.get(&*model.to_string_lossy()));
        // Later ones replace earlier ones.
        let sections = [Some(all), commands.get(name), model].into_iter().flatten();
        let entries: BTreeMap<&String, &Value> = sections.flatten().collect();
        let is_typed = |arg: &Arg| {
            let source = typed.value_source(arg.get_id().as_str());
            matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        let excluded = |arg: &Arg| {
            let excludes = |a: &Arg, b: &Arg| {
                command.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id())
            };
            let mut others = command.get_arguments().filter(|other| is_typed(other));
            others.any(|other| excludes(arg, other) || excludes(other, arg))
        };
        let mut options = Vec::new();
        for (name, value) in entries {
            let Some(arg) = option(command, name) else { continue };
            if is_typed(arg) || excluded(arg) {
                continue;
            }
            self.add(arg, name, value, &mut options)?;
        }
        Ok(options)
    }

    fn add(
        &self,
        arg: &Arg,
        name: &str,
        value: &Value,
        to: &mut Vec<OsString>,
    ) -> anyhow::Result<()> {
        let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
        let wrong = |what| anyhow!("`{}`: `{name}` needs {what}", self.path.display());
        match value {
            Value::Boolean(on) if is_switch => {
                if *on {
                    to.push(format!("--{name}").into());
                }
            }
            _ if is_switch => return Err(wrong("true or false")),
            Value::Array(values) => {
                for value in values {
                    self.add(arg, name, value, to)?;
                }
            }
            Value::String(text) => to.push(format!("--{name}={text}").into()),
            Value::Integer(number) => to.push(format!("--{name}={number}").into()),
            Value::Float(number) => to.push(format!("--{name}={number}").into()),
            _ => return Err(wrong("a number or a text")),
        }
        Ok(())
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string(&self.contents).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

/// The option of this name, without dashes.
fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let is_own = |arg: &&Arg| arg.get_long() == Some(name) && !arg.is_global_set();
    command.get_arguments().find(is_own)
}
