//! Command-line arguments.

mod complete;
mod hub;
mod model;
#[cfg(feature = "pull")]
mod pull;
mod recorded;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
mod shards;
mod texts;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use sws::Options;
use sws_engine::RamBudget;
use sws_kernels::{TIER_VARIABLE, Tier};
use sws_model::KvPrecision;
use sws_store::ReaderKind;

use crate::config::Config;
use crate::terminal::note;

use complete::models;
pub(crate) use hub::{List, Rm};
pub(crate) use model::Model;
use model::{Chosen, TIERS, chosen, kv};
#[cfg(feature = "pull")]
pub(crate) use pull::{Form, Pull};
pub(crate) use recorded::{Draft, DraftCommand, DraftScore, DraftTrain, Recorded, Replay};
pub(crate) use sampling::Sampling;
#[cfg(feature = "serve")]
pub(crate) use serve::Serve;
#[cfg(feature = "pull")]
pub(crate) use shards::encoding;
pub(crate) use shards::{Inspect, Shard, Unshard, Verify};
pub(crate) use texts::{Certify, Chat, Forward, Run};

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

/// The version with what was built in, and what this CPU offers. The commit is known if it was given
/// to the compiler as `SWS_COMMIT`.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        ("candle", cfg!(feature = "candle")),
        ("pull", cfg!(feature = "pull")),
        ("serve", cfg!(feature = "serve")),
        ("uring", cfg!(feature = "uring")),
    ];
    let features = features.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name);
    let tiers = Tier::available().into_iter().map(Tier::name);
    format!(
        "{}{}\nfeatures: {}\ntiers of this CPU: {}",
        env!("CARGO_PKG_VERSION"),
        option_env!("SWS_COMMIT").map_or(String::new(), |commit| format!(" ({commit})")),
        features.collect::<Vec<_>>().join(" "),
        tiers.collect::<Vec<_>>().join(" "),
    )
});

impl Args {
    /// Parses the command line, with the defaults of the configuration file.
    pub(crate) fn typed() -> anyhow::Result<Args> {
        let words: Vec<OsString> = std::env::args_os().collect();
        let mut command = command();
        let mut matches = command.try_get_matches_from_mut(&words)?;
        let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
        if let Some(config) = Config::read(file)?
            && matches.subcommand_name() != Some("config")
        {
            config.check(&command)?;
            matches = with_defaults(&mut command, words, matches, &config)?;
        }
        Ok(Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?)
    }
}

/// Parses a command line again, with the entries of a configuration file that apply to it.
fn with_defaults(
    command: &mut clap::Command,
    words: Vec<OsString>,
    typed: ArgMatches,
    config: &Config,
) -> anyhow::Result<ArgMatches> {
    let (mut at, mut child, mut found, mut path) = (1, &*command, &typed, Vec::new());
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
    let model = found.try_get_one::<PathBuf>("model").ok().flatten();
    let model = model.map(|model| model.to_string_lossy());
    let from_environment = |word: &OsString| {
        let long = word.to_str().and_then(|word| word.strip_prefix("--")?.split('=').next());
        let arg = child.get_arguments().find(|arg| arg.get_long() == long);
        let source = arg.and_then(|arg| found.value_source(arg.get_id().as_str()));
        source == Some(ValueSource::EnvVariable)
    };
    let mut options = config.options(child, &path.join(" "), model.as_deref())?;
    options.retain(|option| !option.first().is_some_and(from_environment));
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
                note!("sws: with the entries of `{}`:", config.path().display());
                return Err(error.into());
            }
        }
    }
    Ok(matches)
}

/// The table of all commands and options.
pub(crate) fn command() -> clap::Command {
    hiding_advanced(Args::command())
}

/// Leaves advanced options out of `-h`.
fn hiding_advanced(command: clap::Command) -> clap::Command {
    let is_advanced = |arg: &clap::Arg| arg.get_help_heading() == Some(ADVANCED);
    let command = command.mut_args(|arg| {
        let hide = is_advanced(&arg) || arg.is_hide_short_help_set();
        arg.hide_short_help(hide)
    });
    command.mut_subcommands(hiding_advanced)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Chat(Chat),
    #[cfg(feature = "serve")]
    Serve(Serve),
    Forward(Forward),
    Certify(Certify),
    #[cfg(feature = "pull")]
    Pull(Pull),
    List(List),
    Rm(Rm),
    Shard(Shard),
    Verify(Verify),
    Inspect(Inspect),
    Unshard(Unshard),
    Plan(Plan),
    Doctor(Doctor),
    Replay(Replay),
    Draft(Draft),
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

/// Show how a model would run within a memory budget.
///
/// Shows the smallest budget that works, and the gain of each further GiB. Disk and memory speed are
/// measured briefly; bytes read and time per token are estimates. Without weights, sizes in each
/// format follow from the configuration, and the disk is the one that this program lies on. Of a
/// model that is not on this machine the hub is asked for it.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// A shard directory, a checkpoint directory, a GGUF file, a config.json without weights, or the
    /// id of a model, downloaded or not [default: the model in `shards`].
    #[arg(add = models())]
    pub(crate) model: Option<PathBuf>,
    /// Memory for the whole process: 8GiB, 80% of the machine's, `min` for the least that works, or
    /// `auto` for the memory that is free.
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub(crate) ram: RamBudget,
    /// Context length in tokens [default: up to 4096, fewer where memory is scarce].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) context: Option<usize>,
    /// Sequences processed together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
    /// Precision of keys and values: f32, or bf16 in half the memory.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = kv)]
    pub(crate) kv: KvPrecision,
    #[arg(long, value_name = "TIER", env = TIER_VARIABLE, help = TIERS, value_parser = chosen)]
    tier: Option<Chosen>,
    /// Compute threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// I/O backend: direct, uring or mmap.
    #[arg(long, value_name = "READER", default_value = "direct")]
    pub(crate) reader: ReaderKind,
    /// Skip the measurements of disk and memory; no speed is then estimated.
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Plan for another machine, described in a file: the `machine` that --json prints there.
    ///
    /// An object of `ram_bytes`, and optionally `free_bytes`, `threads`, `disk_bytes_per_second` and
    /// `memory_bytes_per_second`.
    #[arg(long, value_name = "FILE", conflicts_with = "no_probe")]
    pub(crate) describe: Option<PathBuf>,
    /// Also show the use of memory, line by line.
    #[arg(long)]
    pub(crate) memory: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check this machine, and the disk of a model.
///
/// Each check has a line, and each that will make runs slow or fail a remedy. Exits with 1 if there
/// is any.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// A shard directory, a checkpoint directory, a GGUF file, or the id of a model in the Hugging
    /// Face cache [default: only checks that need no model].
    #[arg(add = models())]
    pub(crate) model: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Plan {
    /// Options of the run to plan.
    pub(crate) fn options(&self) -> Options {
        Options {
            ram: self.ram,
            context: self.context,
            kv: self.kv,
            tier: self.tier.and_then(|tier| tier.0),
            ..Options::default()
        }
    }
}

fn positive(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("a number above 0 is needed".to_owned()),
    }
}
