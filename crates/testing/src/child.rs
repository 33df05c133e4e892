//! Tasks in processes of their own, as memory is counted for a whole process: a task goes in as
//! JSON, and its result comes out.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cgroup::Group;

/// Starts this program's `subcommand`, which waits for its task on standard input, in a control
/// group if one is given.
pub fn start(subcommand: &str, group: Option<&Group>) -> Result<Child> {
    start_with(subcommand, group, None)
}

fn start_with(subcommand: &str, group: Option<&Group>, cache: Option<&Path>) -> Result<Child> {
    let program = std::env::current_exe()?;
    let mut command = match group {
        Some(group) => group.command(program),
        None => Command::new(program),
    };
    command.envs(cache.map(|dir| ("XDG_CACHE_HOME", dir)));
    command.arg(subcommand).stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command.stderr(Stdio::piped()).spawn()?)
}

/// Runs a task to its end.
pub fn run(subcommand: &str, task: &impl Serialize, group: Option<&Group>) -> Result<Output> {
    finish(start(subcommand, group)?, task)
}

/// Runs a task that keeps what it learns below a directory.
pub fn run_learning(subcommand: &str, task: &impl Serialize, cache: &Path) -> Result<Output> {
    finish(start_with(subcommand, None, Some(cache))?, task)
}

fn finish(mut child: Child, task: &impl Serialize) -> Result<Output> {
    let mut stdin = child.stdin.take().context("a child without an input")?;
    // A child that ends early reports the reason itself.
    let _ = stdin.write_all(&serde_json::to_vec(task)?);
    drop(stdin);
    Ok(child.wait_with_output()?)
}

/// Entry point of a child: reads a task, runs it and writes the result.
pub fn serve<T: DeserializeOwned, R: Serialize>(work: impl FnOnce(T) -> Result<R>) -> Result<()> {
    let json = hear()?;
    let task = serde_json::from_str(&json)?;
    drop(json);
    tell(&work(task)?)
}

/// Reads a line from the parent.
pub fn hear() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}

/// Writes a line of JSON to the parent.
pub fn tell(what: &impl Serialize) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, what)?;
    writeln!(stdout)?;
    Ok(stdout.flush()?)
}
