//! The configuration file: defaults for options, by command and by model.
//!
//! Its entries are put on the command line, before what was typed, so that they mean the same and are
//! checked alike. An entry is left out if its option, or one that excludes it, was typed or stands in
//! a more specific section.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::{Arg, ArgAction, Command};
use serde::{Deserialize, Serialize};
use sws_format::open_regular;
use sws_hub::{HubCache, Library, ModelName};
use toml::{Table, Value};

use crate::here;

/// Size limit of the file.
const MAX_BYTES: u64 = 1 << 20;

/// The configuration file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ConfigContents {
    /// Entries for every command that has the option.
    #[serde(default)]
    all: Table,
    /// Entries by command.
    #[serde(default)]
    command: BTreeMap<String, Table>,
    /// Entries by model: its id, with or without encoding and revision, or its path.
    #[serde(default)]
    model: BTreeMap<String, Table>,
}

/// A file and its entries.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    contents: ConfigContents,
}

/// The place of the file unless another is typed.
pub(crate) fn place() -> Option<PathBuf> {
    let get = |name: &str| std::env::var_os(name);
    let base = sws_os::places::of_user(get, "XDG_CONFIG_HOME", ".config")?;
    Some(base.join("sws/config.toml"))
}

/// Fails if the directory of configurations is something else.
fn check_home() -> anyhow::Result<()> {
    let Some(home) = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from) else { return Ok(()) };
    if home.is_absolute() && home.exists() && !home.is_dir() {
        bail!(
            "the variable XDG_CONFIG_HOME names `{}`, which is not a directory; correct it, or unset it",
            home.display()
        );
    }
    Ok(())
}

/// The beginning of a file, one byte longer than a configuration may be.
fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    Ok(text)
}

impl ConfigFile {
    /// Reads the file that was typed, or that at the usual place if there is one. An empty path stands
    /// for no file.
    pub(crate) fn read(typed: Option<&Path>) -> anyhow::Result<Option<ConfigFile>> {
        let path = match typed {
            Some(path) if path.as_os_str().is_empty() => return Ok(None),
            Some(path) => path.to_owned(),
            None => {
                check_home()?;
                match place() {
                    Some(path) if path.exists() => path,
                    _ => return Ok(None),
                }
            }
        };
        let name = path.display();
        let text = match read(&path) {
            Ok(text) => text,
            Err(e) => {
                bail!("`{name}` cannot be read: {e}; give another file with --config or SWS_CONFIG")
            }
        };
        if text.len() as u64 > MAX_BYTES {
            bail!("`{name}` has more than the {MAX_BYTES} bytes of a configuration");
        }
        match toml::from_str(&text) {
            Ok(contents) => Ok(Some(ConfigFile { path, contents })),
            Err(e) => {
                let before = match e.span() {
                    Some(span) => &text[..span.start],
                    None => "",
                };
                let line = 1 + before.matches('\n').count();
                bail!("`{name}`, line {line}: {}; correct it", e.message().replace('\n', " "))
            }
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that every entry is an option.
    pub(crate) fn check(&self, command: &Command) -> anyhow::Result<()> {
        for (name, entries) in &self.contents.command {
            let child = match name.split(' ').try_fold(command, Command::find_subcommand) {
                Some(child) if child.get_name() != "help" => child,
                _ => bail!(
                    "`{}`: [command.\"{name}\"] names no command; `sws help` lists them",
                    self.path.display()
                ),
            };
            self.known(entries, &format!("command.\"{name}\""), child)?;
        }
        self.known(&self.contents.all, "all", command)?;
        for (model, entries) in &self.contents.model {
            let is_id = matches!(model.parse::<ModelName>(), Ok(name) if name.id.has_owner());
            if !model.contains('/') && !is_id && sws::locate(model).is_err() {
                bail!(
                    "`{}`: [model.\"{model}\"] names no model; give its id, OWNER/NAME, or its path",
                    self.path.display()
                );
            }
            self.known(entries, &format!("model.\"{model}\""), command)?;
        }
        Ok(())
    }

    /// Checks that entries are options of a command, or of one below it.
    fn known(&self, entries: &Table, section: &str, command: &Command) -> anyhow::Result<()> {
        for name in entries.keys() {
            if !has_option(command, name) {
                bail!(
                    "`{}`: [{section}] has `{name}`, which is no option there; `--help` lists them, here without dashes",
                    self.path.display()
                );
            }
        }
        Ok(())
    }

    /// The model that the entries of a command name.
    pub(crate) fn model(&self, command: &str) -> Option<PathBuf> {
        let ConfigContents { all, command: commands, .. } = &self.contents;
        commands.get(command).and_then(model_of).or_else(|| model_of(all))
    }

    /// The entries that apply to a command and a model, as options, the most specific ones first.
    pub(crate) fn options(
        &self,
        command: &Command,
        name: &str,
        model: Option<PathBuf>,
    ) -> anyhow::Result<Vec<Vec<OsString>>> {
        let ConfigContents { all, command: commands, model: models } = &self.contents;
        // The default may have to be looked for.
        let model =
            if models.is_empty() { NamedModel::default() } else { NamedModel::of(model, name) };
        let mut ranked: Vec<(u8, &Table)> = Vec::new();
        for (key, section) in models {
            if let Some(rank) = model.rank(key) {
                ranked.push((rank, section));
            }
        }
        ranked.sort_by_key(|(rank, _)| *rank);
        let mut sections = Vec::new();
        for (_, section) in ranked {
            sections.push(section);
        }
        sections.extend(commands.get(name));
        sections.push(all);
        let mut known: Vec<&str> = Vec::new();
        let mut options = Vec::new();
        for (name, value) in sections.into_iter().flatten() {
            let Some(arg) = option(command, name) else { continue };
            if !known.contains(&name.as_str()) {
                let mut words = Vec::new();
                self.add(arg, name, value, &mut words)?;
                known.push(name);
                options.push(words);
            }
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
        let is_switch = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
        match value {
            Value::Boolean(on) if is_switch => {
                if *on {
                    to.push(format!("--{name}").into());
                }
            }
            Value::Integer(times @ 0..=3) if matches!(arg.get_action(), ArgAction::Count) => {
                for _ in 0..*times {
                    to.push(format!("--{name}").into());
                }
            }
            _ if is_switch => return Err(self.wrong(name, "true or false")),
            Value::Array(values) => {
                for value in values {
                    self.add(arg, name, value, to)?;
                }
            }
            Value::String(text) => to.push(format!("--{name}={text}").into()),
            Value::Integer(number) => to.push(format!("--{name}={number}").into()),
            Value::Float(number) => to.push(format!("--{name}={number}").into()),
            _ => return Err(self.wrong(name, "a number or a text")),
        }
        Ok(())
    }

    fn wrong(&self, name: &str, needed: &str) -> anyhow::Error {
        anyhow!("`{}`: `{name}` needs {needed}", self.path.display())
    }
}

/// The model that a section names.
fn model_of(section: &Table) -> Option<PathBuf> {
    section.get("model")?.as_str().map(PathBuf::from)
}

/// A model by its name and its place, to find the entries about it.
#[derive(Debug, Default)]
struct NamedModel {
    typed: Option<PathBuf>,
    name: Option<ModelName>,
    /// Its path without links, if it is on this machine.
    path: Option<PathBuf>,
}

impl NamedModel {
    /// The model that was typed, or that a command takes where none was.
    fn of(typed: Option<PathBuf>, command: &str) -> NamedModel {
        let place = match (&typed, command) {
            (Some(typed), _) => sws::locate(typed).ok(),
            (None, "chat") => here::newest_for_chat().map(|(here, _)| here),
            (None, "run" | "serve" | "forward" | "certify" | "plan") => {
                here::bundled_files().ok().flatten()
            }
            (None, _) => None,
        };
        let path = place.and_then(|place| place.canonicalize().ok());
        let name = typed.as_deref().and_then(Path::to_str).and_then(|typed| typed.parse().ok());
        NamedModel { typed, name, path }
    }

    /// How much the entries of a section are about this model, with the closest first. `None` if they
    /// are about another one.
    fn rank(&self, key: &str) -> Option<u8> {
        if self.typed.as_deref() == Some(Path::new(key)) {
            return Some(0);
        }
        if let Some(path) = &self.path
            && let Ok(place) = sws::locate(key)
            && is_same(&place, path)
        {
            return Some(1);
        }
        let key: ModelName = key.parse().ok()?;
        let ModelName { id, tag, revision } = &key;
        let whole = tag.is_none() && revision.is_none();
        if let Some(name) = &self.name
            && name.id == *id
            && (tag.is_none() || *tag == name.tag)
            && (revision.is_none() || *revision == name.revision)
        {
            return Some(if whole { 3 } else { 2 });
        }
        let mut dirs = Vec::new();
        if let Some(library) = Library::of_process() {
            dirs.push(library.dir().join(id.flat()));
        }
        if let Some(cache) = HubCache::of_process() {
            dirs.push(cache.model(id).dir().to_owned());
        }
        let is_below = dirs.iter().any(|dir| self.is_below(dir));
        (whole && is_below).then_some(3)
    }

    fn is_below(&self, dir: &Path) -> bool {
        match (&self.path, dir.canonicalize()) {
            (Some(path), Ok(dir)) => path.starts_with(dir),
            _ => false,
        }
    }
}

/// True if a path without its links is `resolved`.
fn is_same(path: &Path, resolved: &Path) -> bool {
    matches!(path.canonicalize(), Ok(path) if path == resolved)
}

impl fmt::Display for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match toml::to_string(&self.contents) {
            Ok(text) => f.write_str(&text),
            Err(_) => Err(fmt::Error),
        }
    }
}

/// The option of this name, without dashes.
fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    for arg in command.get_arguments() {
        let is_other = matches!(arg.get_id().as_str(), "config" | "help" | "version");
        if arg.get_long() == Some(name) && !is_other {
            return Some(arg);
        }
    }
    None
}

/// True if a command or one below it has the option.
fn has_option(command: &Command, name: &str) -> bool {
    option(command, name).is_some()
        || command.get_subcommands().any(|child| has_option(child, name))
}
