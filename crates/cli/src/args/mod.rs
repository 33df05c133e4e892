//! Command-line arguments.

mod bench;
mod complete;
mod hub;
#[cfg(feature = "serve")]
mod launch;
mod model;
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

use anyhow::{anyhow, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use sws::{Options, VramChoice};
use sws_engine::RamBudget;
use sws_kernels::{Activations, TIER_VARIABLE, Tier};
use sws_model::KvPrecision;
use sws_store::ReaderKind;

use crate::config::ConfigFile;
use crate::watch;

pub(crate) use bench::BenchArgs;
use complete::models;
pub(crate) use complete::{COMPLETE_VARIABLE, check_shell};
pub(crate) use hub::{LinkArgs, ListArgs, Rm};
#[cfg(feature = "serve")]
pub(crate) use launch::{Launch, LaunchClient};
pub(crate) use model::ModelArgs;
use model::{TIERS, TierChoice, chosen, kv};
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
        let parsed = command.try_get_matches_from_mut(&words);
        let mut matches = parsed.map_err(|error| with_suggestion(error, &command))?;
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

/// Options of llama.cpp that say how much of a model a GPU computes.
const GPU: [&str; 3] = ["-ngl", "--gpu-layers", "--n-gpu-layers"];

/// Leaves out an option that asks for nothing of a GPU, out of habit, and refuses one that does.
fn without_gpu(mut words: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Some(at) = words.iter().position(|word| GPU.iter().any(|option| word == option)) else {
        return Ok(words);
    };
    // Behind this word they are texts.
    if words[..at].iter().any(|word| word == "--") {
        return Ok(words);
    }
    if words.get(at + 1).is_none_or(|layers| layers != "0") {
        bail!(
            "layers are not put on a GPU one by one; leave out {}, or give --vram auto",
            words[at].display()
        );
    }
    words.drain(at..at + 2);
    Ok(words)
}

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
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
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
    let mut words = std::env::args_os().filter_map(|word| word.into_string().ok());
    let typed = words.any(|word| word.split('=').next() == Some(option));
    (!typed && std::env::var_os(&variable).is_some()).then_some(variable)
}

/// The environment variable of an option, the same in all commands that have it.
fn variable(command: &clap::Command, long: &str) -> Option<String> {
    let mut args = command.get_arguments().filter(|arg| arg.get_long() == Some(long));
    let found = args.find_map(|arg| arg.get_env()?.to_str().map(str::to_owned));
    found.or_else(|| command.get_subcommands().find_map(|below| variable(below, long)))
}

/// Suggests a command of the same letters, which clap finds too far away: `rnu`.
fn with_suggestion(mut error: clap::Error, command: &clap::Command) -> clap::Error {
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

/// The letters of a word, sorted.
fn letters(word: &str) -> Vec<char> {
    let mut letters: Vec<char> = word.chars().collect();
    letters.sort_unstable();
    letters
}

/// Parses a command line again, with the entries of a configuration file that apply to it.
fn with_defaults(
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

/// The table of all commands and options.
pub(crate) fn command() -> clap::Command {
    for_people(Args::command())
}

/// Leaves advanced options out of `-h`, and takes a negative number behind an option as its value, so
/// that the error names the option.
fn for_people(command: clap::Command) -> clap::Command {
    let is_advanced = |arg: &clap::Arg| arg.get_help_heading() == Some(ADVANCED);
    let command = command.mut_args(|arg| {
        let hide = is_advanced(&arg) || arg.is_hide_short_help_set();
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

/// Show how a model would run within a memory budget.
///
/// Shows the smallest budget that works, and the gain of each further GiB. The speeds of disk, memory
/// and computing are measured briefly; bytes read and time per token are estimates. Hit rates are those
/// of earlier runs of the model, or before the first one those of another model. Without weights, sizes
/// in each format follow from the configuration, and the disk is that of the newest model, or else of
/// this program. Of a model that is not on this machine the hub is asked for it.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// A shard directory, a checkpoint directory, a GGUF file, a config.json without weights, the
    /// id of a model, downloaded or not, or an address of shards [default: the model in `shards`].
    #[arg(add = models())]
    pub(crate) model: Option<PathBuf>,
    /// The same, as an option.
    #[arg(long = "model", short = 'm', value_name = "MODEL", add = models(), hide_short_help = true)]
    pub(crate) named: Option<PathBuf>,
    /// Memory for the whole process: 8GiB, 80% of the machine's, `min` for the least that works, or
    /// `auto` for the memory that is free.
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub(crate) ram: RamBudget,
    /// Also count the experts that so much memory of a graphics card holds: 8GiB, or auto for the card here. In builds
    /// with the feature gpu.
    #[arg(long, value_name = "SIZE", default_value = "off")]
    pub(crate) vram: VramChoice,
    /// Context length in tokens [default: up to 4096, fewer where memory is scarce, more as far as a
    /// sixteenth of it has room].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) context: Option<usize>,
    /// Sequences processed together.
    #[arg(long, value_name = "N", default_value_t = 1, hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
    /// Precision of the KV cache: f32, bf16 in half the memory, or q8 in little more than a
    /// quarter.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = kv, hide_short_help = true)]
    pub(crate) kv: KvPrecision,
    #[arg(long, value_name = "TIER", env = TIER_VARIABLE, help = TIERS, value_parser = chosen, hide_short_help = true)]
    tier: Option<TierChoice>,
    /// Activations of products: f32, or int8, which is faster for some formats and lossy.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = model::activations(), hide_short_help = true)]
    pub(crate) activations: Activations,
    /// Compute threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// A directory on another drive with a copy of the shards, as for `sws run`; may be given several
    /// times.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) also: Vec<PathBuf>,
    /// I/O backend: direct, uring or mmap.
    #[arg(long, value_name = "READER", default_value = "direct", hide_short_help = true)]
    pub(crate) reader: ReaderKind,
    /// Plan for at most so many bytes from the disk in a second: 500MB, 1GiB.
    #[arg(long, value_name = "SIZE", hide_short_help = true, value_parser = model::disk_rate)]
    pub(crate) max_disk_rate: Option<u64>,
    /// Skip the measurements of disk, memory and computing; no speed is then estimated.
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
    /// Show why each setting of the plan is what it is, in place of other budgets and formats.
    #[arg(long, conflicts_with = "memory")]
    pub(crate) why: bool,
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
    /// Face cache [default: no checks of memory; the disk is that of the newest model].
    #[arg(add = models())]
    pub(crate) model: Option<PathBuf>,
    /// The same, as an option.
    #[arg(long = "model", short = 'm', value_name = "MODEL", add = models())]
    pub(crate) named: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl PlanArgs {
    /// Options of the run to plan.
    pub(crate) fn options(&self) -> Options {
        Options {
            ram: self.ram,
            context: self.context,
            kv: self.kv,
            tier: self.tier.and_then(|tier| tier.0),
            activations: self.activations,
            ..Options::default()
        }
    }
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
    if text.is_none() {
        *text = model.take().map(|text| text.to_string_lossy().into_owned());
    }
}

fn positive(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("a number above 0 is needed".to_owned()),
    }
}
