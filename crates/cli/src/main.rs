//! The `sws` command.

mod account;
mod answer;
mod args;
mod atomic_file;
#[cfg(feature = "tale")]
mod bundled;
mod commands;
mod config;
mod exit;
mod far;
mod here;
#[cfg(feature = "serve")]
mod http;
mod input;
mod interrupt;
mod limits;
mod lines;
mod live;
mod logs;
mod model;
mod process;
mod progress;
mod prompt;
mod record;
mod table;
mod terminal;
mod watch;

use std::process::ExitCode;

use args::{Args, Command};
use clap::error::ErrorKind;
use clap_complete::CompleteEnv;
use exit::{FAILED, REFUSED};
use interrupt::{INTERRUPTED, Interrupted};
use sws_shard::ShardError;
use terminal::{hint, is_broken_pipe, note};

/// Only checks the stack, so that a small one is reported before it overflows.
fn main() -> ExitCode {
    if let Err(error) = limits::stack() {
        note!("sws: {error}");
        return ExitCode::from(REFUSED);
    }
    start()
}

/// True for a call without a command, which the usage answers best.
fn asks_for_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand};
    matches!(kind, DisplayHelpOnMissingArgumentOrSubcommand | MissingSubcommand)
}

/// Runs the command. Not inlined, because its frame must not be on the stack that `main` checks.
#[inline(never)]
fn start() -> ExitCode {
    process::reserve();
    sws_os::terminal::prepare();
    #[cfg(feature = "tale")]
    sws_engine::leave_out_of_plans(bundled::bytes());
    interrupt::before_an_end(watch::restore);
    if let Err(error) = args::check_shell() {
        note!("sws: {error}");
        return ExitCode::from(REFUSED);
    }
    // Answers the shell, and ends the program, if it asks for completions.
    CompleteEnv::with_factory(args::command).var(args::COMPLETE_VARIABLE).complete();
    let args = match Args::typed() {
        Ok(args) => args,
        Err(error) => match error.downcast::<clap::Error>() {
            // Escaped: the arguments may contain an untrusted file name.
            Ok(error) if asks_for_help(error.kind()) => {
                hint(format_args!("{}", error.render()));
                return ExitCode::from(REFUSED);
            }
            Ok(error) if error.use_stderr() => {
                note!("sws: {}", render(args::sentence(&error)));
                return ExitCode::from(REFUSED);
            }
            Ok(help) => help.exit(),
            Err(error) => {
                note!("sws: {error}");
                return ExitCode::from(REFUSED);
            }
        },
    };
    if let Err(error) = logs::start(args.verbose) {
        note!("sws: {error}");
        return ExitCode::from(REFUSED);
    }
    match run(args) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            note!("sws: {}", render(error.to_string()));
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

fn run(args: Args) -> anyhow::Result<ExitCode> {
    limits::file_size()?;
    match args.command {
        Command::Run(args) if args.prompts.is_some() => commands::prompts::run(&args),
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => commands::serve::run(&args),
        #[cfg(feature = "serve")]
        Command::Launch(args) => commands::launch::run(&args),
        #[cfg(feature = "serve")]
        Command::Top(args) => commands::top::run(&args),
        Command::Forward(args) => commands::forward::run(&args),
        Command::Certify(args) => commands::certify::run(args),
        #[cfg(feature = "pull")]
        Command::Pull(args) => commands::pull::run(&args),
        #[cfg(feature = "pull")]
        Command::Push(args) => commands::push::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Link(args) => commands::link::run(&args),
        Command::Rm(args) => commands::rm::run(&args),
        Command::Shard(args) => commands::shard::run(&args),
        Command::Mirror(args) => commands::mirror::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Unshard(args) => commands::unshard::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Draft(args) => limits::threads(None)?.run(|| commands::draft::run(&args)),
        Command::Config => commands::config::run(args.config.as_deref()),
        Command::Pages(args) => commands::pages::run(&args),
        Command::Replay(args) => limits::threads(None)?.run(|| commands::replay::run(&args)),
    }
}

/// An error as it is printed: without what is secret in the addresses that were typed.
fn render(error: String) -> String {
    let typed: Vec<_> = std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect();
    far::without_secrets(error, typed.iter().map(String::as_str))
}
