//! The `sws` command.

mod args;
mod backend;
mod commands;
mod draft;
mod generate;
mod interrupt;
mod live;
mod metrics;
mod model;
mod process;
mod progress;
mod record;
mod running;
mod table;
mod unfinished;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;
use interrupt::{INTERRUPTED, Interrupted};
use sws_store::shard::ShardError;

/// Something was verified and is not as it should be.
const FAILED: u8 = 1;
/// Bad input or usage, or the system refused.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Forward(args) => commands::forward::run(&args),
        Command::Certify(args) => commands::certify::run(args),
        Command::Shard(args) => commands::shard::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Unshard(args) => commands::unshard::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Draft(args) => commands::draft::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) if commands::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sws: {error}");
            let damaged = matches!(
                error.downcast_ref(),
                Some(ShardError::Damaged { .. } | ShardError::DamagedCopy { .. })
            );
            let interrupted = error.is::<Interrupted>();
            ExitCode::from(match () {
                () if interrupted => INTERRUPTED,
                () if damaged => FAILED,
                () => REFUSED,
            })
        }
    }
}
