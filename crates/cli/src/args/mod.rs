//! Command-line arguments.

mod bench;
mod complete;
mod defaults;
mod errors;
mod hub;
#[cfg(feature = "serve")]
mod launch;
mod model;
mod plan;
#[cfg(feature = "pull")]
mod pull;
#[cfg(feature = "pull")]
mod push;
mod recorded;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
mod shards;
mod structured;
mod texts;
#[cfg(feature = "serve")]
mod top;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::bail;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use sws_kernels::Tier;

use crate::config::ConfigFile;

pub(crate) use bench::BenchArgs;
use complete::models;
pub(crate) use complete::{COMPLETE_VARIABLE, check_shell};
use defaults::with_defaults;
pub(crate) use errors::sentence;
use errors::with_suggestion;
pub(crate) use hub::{LinkArgs, ListArgs, Rm};
#[cfg(feature = "serve")]
pub(crate) use launch::{Launch, LaunchClient};
pub(crate) use model::ModelArgs;
pub(crate) use plan::{Doctor, PlanArgs};
#[cfg(feature = "pull")]
pub(crate) use pull::{PullArgs, PullForm};
#[cfg(feature = "pull")]
pub(crate) use push::PushArgs;
pub(crate) use recorded::{
    DraftArgs, DraftCommand, DraftScore, DraftTrain, RecordedArgs, ReplayArgs,
};
pub(crate) use sampling::SamplingArgs;
#[cfg(feature = "serve")]
pub(crate) use serve::Serve;
pub(crate) use shards::{
    EncodingChoice, Inspect, MirrorArgs, ShardArgs, Unshard, Verify, encoding,
};
pub(crate) use structured::StructuredArgs;
pub(crate) use texts::{Certify, ChatArgs, Forward, Run};
#[cfg(feature = "serve")]
pub(crate) use top::TopArgs;

/// Heading of options that few people need; `-h` leaves them out.
const ADVANCED: &str = "Advanced";

/// Runs language models that are larger than memory, by streaming their weights from disk.
#[derive(Debug, Parser)]
#[command(name = "sws", version, long_version = VERSION.as_str(), after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// File with defaults for options; an empty name for none [default: ~/.config/sws/config.toml].
    #[arg(
        long,
        value_name = "FILE",
        env = "SWS_CONFIG",
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        global = true,
        hide_short_help = true,
        help_heading = ADVANCED
    )]
    pub(crate) config: Option<PathBuf>,
    /// Show where time and bytes went, and log what the program decides; -vv logs every request.
    #[arg(long, short, action = ArgAction::Count, global = true, help_heading = ADVANCED)]
    pub(crate) verbose: u8,
}

const EXAMPLES: &str = "\
Examples:
  sws run                                     tell a tale with the bundled model
  sws pull                                    list models to begin with
  sws pull Qwen/Qwen3-30B-A3B                 download one, into shards
  sws chat Qwen/Qwen3-30B-A3B                 talk to it
  sws chat Qwen/Qwen3-30B-A3B \"Why is the sky blue?\"
  sws plan Qwen/Qwen3-30B-A3B --ram 16GiB     how fast it will be
  sws serve Qwen/Qwen3-30B-A3B                for other programs";

/// The version with what was built in, and what this CPU offers.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        ("candle", cfg!(feature = "candle")),
        ("forms", cfg!(feature = "forms")),
        ("gpu", cfg!(feature = "gpu")),
        ("pull", cfg!(feature = "pull")),
        ("serve", cfg!(feature = "serve")),
        ("uring", cfg!(feature = "uring")),
    ];
    let mut built_in = Vec::new();
    for (name, is_on) in features {
        if is_on {
            built_in.push(name);
        }
    }
    let tiers: Vec<&str> = Tier::available().into_iter().map(Tier::name).collect();
    let commit = match env!("SWS_COMMIT") {
        // Where it is not known: build.rs.
        "" => String::new(),
        commit => format!(" ({commit})"),
    };
    format!(
        "{}{commit}\nfeatures: {}\ntiers of this CPU: {}",
        env!("CARGO_PKG_VERSION"),
        built_in.join(" "),
        tiers.join(" "),
    )
});

impl Args {
    /// Parses the command line, with the defaults of the configuration file.
    pub(crate) fn typed() -> anyhow::Result<Args> {
        let words = without_gpu(std::env::args_os().collect())?;
        let mut command = command();
        let mut matches = match command.try_get_matches_from_mut(&words) {
            Ok(matches) => matches,
            Err(error) => return Err(with_suggestion(error, &command).into()),
        };
        let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
        if let Some(config) = ConfigFile::read(file)?
            && matches.subcommand_name() != Some("config")
        {
            config.check(&command)?;
            matches = with_defaults(&mut command, words, matches, &config)?;
        }
        let mut args = Args::from_arg_matches(&matches).map_err(|e| e.format(&mut command))?;
        args.command.name_model()?;
        Ok(args)
    }
}

/// Leaves out an option that asks for nothing of a GPU, out of habit, and refuses one that does.
fn without_gpu(mut words: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    for (at, word) in words.iter().enumerate() {
        // Behind this word they are texts.
        if word == "--" {
            break;
        }
        if !is_of_gpu(word) {
            continue;
        }
        match words.get(at + 1) {
            Some(layers) if layers == "0" => {}
            _ => bail!(
                "layers are not put on a GPU one by one; leave out {}, or give --vram auto",
                word.display()
            ),
        }
        words.drain(at..at + 2);
        break;
    }
    Ok(words)
}

/// True for options of llama.cpp that say how much of a model a GPU computes.
fn is_of_gpu(word: &OsStr) -> bool {
    matches!(word.to_str(), Some("-ngl" | "--gpu-layers" | "--n-gpu-layers"))
}

/// The table of all commands and options.
pub(crate) fn command() -> clap::Command {
    for_people(Args::command())
}

/// Leaves advanced options out of `-h`, and takes a negative number behind an option as its value, so
/// that the error names the option.
fn for_people(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let is_advanced = arg.get_help_heading() == Some(ADVANCED);
        let hide = is_advanced || arg.is_hide_short_help_set();
        let takes_value = !arg.is_positional() && arg.get_action().takes_values();
        arg.hide_short_help(hide).allow_negative_numbers(takes_value)
    });
    command.mut_subcommands(for_people)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Chat(ChatArgs),
    #[cfg(feature = "serve")]
    Serve(Serve),
    #[cfg(feature = "serve")]
    Launch(Launch),
    #[cfg(feature = "serve")]
    Top(TopArgs),
    Forward(Forward),
    Certify(Certify),
    #[cfg(feature = "pull")]
    Pull(PullArgs),
    #[cfg(feature = "pull")]
    Push(PushArgs),
    List(ListArgs),
    Link(LinkArgs),
    Rm(Rm),
    Shard(ShardArgs),
    Mirror(MirrorArgs),
    Verify(Verify),
    Inspect(Inspect),
    Unshard(Unshard),
    Plan(PlanArgs),
    Bench(BenchArgs),
    Doctor(Doctor),
    Replay(ReplayArgs),
    Draft(DraftArgs),
    /// Show the defaults that the configuration file sets.
    Config,
    #[command(hide = true)]
    Pages(Pages),
}

/// Write the manual pages and a list of all options.
#[derive(Debug, clap::Args)]
pub(crate) struct Pages {
    /// Output directory.
    pub(crate) dir: PathBuf,
}

impl Command {
    /// Takes the model from -m where it is not in its own place.
    fn name_model(&mut self) -> anyhow::Result<()> {
        let (model, named) = match self {
            Command::Run(args) => {
                let named = args.model.named.take();
                if named.is_some() && !args.has_prompt() {
                    take_text(&mut args.model.model, &mut args.text);
                }
                if let Some(text) = args.text.take() {
                    args.prompt = Some(text);
                }
                (&mut args.model.model, named)
            }
            Command::Chat(args) => {
                let named = args.model.named.take();
                if named.is_some() {
                    take_text(&mut args.model.model, &mut args.question);
                }
                (&mut args.model.model, named)
            }
            #[cfg(feature = "serve")]
            Command::Serve(args) => (&mut args.model.model, args.model.named.take()),
            Command::Forward(args) => (&mut args.model.model, args.model.named.take()),
            Command::Certify(args) => (&mut args.model.model, args.model.named.take()),
            Command::Plan(args) => (&mut args.model, args.named.take()),
            Command::Doctor(args) => (&mut args.model, args.named.take()),
            _ => return Ok(()),
        };
        match (&model, named) {
            (_, None) => {}
            (None, named) => *model = named,
            (Some(model), Some(named)) => bail!(
                "two models are named, `{}` and `{}` with -m; leave out one of them",
                model.display(),
                named.display()
            ),
        }
        Ok(())
    }
}

/// Takes what stands in the place of a model that was named with -m as the text behind it.
fn take_text(model: &mut Option<PathBuf>, text: &mut Option<String>) {
    if text.is_none()
        && let Some(typed) = model.take()
    {
        *text = Some(typed.to_string_lossy().into_owned());
    }
}
