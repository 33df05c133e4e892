//! Command-line arguments.

mod hub;
mod model;
#[cfg(feature = "pull")]
mod pull;
mod recorded;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
mod shards;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use sws::Options;
use sws_engine::RamBudget;
use sws_kernels::TIER_VARIABLE;
use sws_model::KvPrecision;
use sws_store::ReaderKind;

pub(crate) use hub::{List, Rm};
pub(crate) use model::Model;
use model::{Chosen, chosen, kv, tiers};
#[cfg(feature = "pull")]
pub(crate) use pull::{Form, Pull};
pub(crate) use recorded::{Draft, DraftCommand, DraftScore, DraftTrain, Recorded, Replay};
pub(crate) use sampling::Sampling;
#[cfg(feature = "serve")]
pub(crate) use serve::Serve;
#[cfg(feature = "pull")]
pub(crate) use shards::encoding;
pub(crate) use shards::{Inspect, Shard, Unshard, Verify};

/// Runs language models that are larger than memory, by streaming their weights from disk.
#[derive(Debug, Parser)]
#[command(name = "sws", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a text.
    Run(Run),
    /// Chat with a model.
    Chat(Chat),
    /// Serve a model to programs that speak the interfaces of OpenAI.
    #[cfg(feature = "serve")]
    Serve(Serve),
    /// Write the logits of a sequence of tokens to a file.
    Forward(Forward),
    /// Recompute a certified answer and compare every bit.
    Certify(Certify),
    /// Download a model from the Hugging Face hub, straight into shards.
    #[cfg(feature = "pull")]
    Pull(Pull),
    /// List the models on this machine.
    List(List),
    /// Remove a model from this machine.
    Rm(Rm),
    /// Convert a checkpoint into shards: smaller, faster to stream, checksummed.
    Shard(Shard),
    /// Read every byte of a shard directory and report damage.
    Verify(Verify),
    /// Show the contents of a shard directory or a checkpoint.
    Inspect(Inspect),
    /// Restore the checkpoint that shards were made from.
    Unshard(Unshard),
    /// Show how a model would run within a memory budget.
    Plan(Plan),
    /// Check this machine, and the disk of a model.
    Doctor(Doctor),
    /// Simulate an expert cache on recorded routes and count its misses.
    Replay(Replay),
    /// Train or score a draft, which forecasts the experts that a model will need.
    Draft(Draft),
}

/// Continue a text.
///
/// The prompt is taken from --prompt, --tokens or standard input; without any of them the text
/// begins with "Once upon a time". The new text goes to standard output, and everything else to
/// standard error. With --prompts, several texts are continued together.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) model: Model,
    /// The text to continue.
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    /// The text to continue, as token ids: 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Continue each line of a file (`-` for standard input), several together. Prints a line of
    /// JSON for each, in the order of the file: `line`, `tokens` (the new ids), `text`, `end`,
    /// `seed`, `sampler`, or `line` and `error`. Each text is the one that --prompt gives.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["prompt", "tokens", "record", "certify", "json"]
    )]
    pub(crate) prompts: Option<PathBuf>,
    /// Maximum number of texts at a time, with --prompts. Each expert is read once for all of them.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        requires = "prompts",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub(crate) parallel: u16,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    /// Record the chosen experts, as a trace for `sws replay`.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Also record the training data of `sws draft train`: `hidden` and `attended` [tokens, layers,
    /// hidden] f32, the inputs of each layer and of its router.
    #[arg(long, requires = "record")]
    pub(crate) record_hidden: bool,
    /// Write a certificate of the answer, which `sws certify` can recompute.
    #[arg(long, value_name = "FILE", conflicts_with = "tolerance")]
    pub(crate) certify: Option<PathBuf>,
    /// Print one JSON object instead of the text: `tokens` (the new ids), `text`, `end`, `metrics`.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show where time and bytes went.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

impl Run {
    /// The arguments of `sws run MODEL`.
    pub(crate) fn of(model: Model, sampling: Sampling) -> Run {
        Run {
            model,
            prompt: None,
            tokens: None,
            prompts: None,
            parallel: 1,
            sampling,
            record: None,
            record_hidden: false,
            certify: None,
            json: false,
            verbose: false,
        }
    }
}

/// Recompute a certified answer and compare every bit.
///
/// The result does not depend on --ram, --resident, --policy, --reader or --threads. Exits with 0
/// if all bits agree, otherwise with 1 and the first step that differs.
#[derive(Debug, clap::Args)]
pub(crate) struct Certify {
    /// The certificate, written by `sws run --certify`.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) model: Model,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Chat with a model.
///
/// Each line is a message. Ctrl-C stops an answer; /help lists the commands. Without a model, the
/// newest one on this machine that was made for conversation answers. Standard output gets the
/// answers; what a model thinks before is shown, dimmed, on a terminal only.
#[derive(Debug, clap::Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) model: Model,
    /// Answer this question only; `-` for all of standard input.
    pub(crate) question: Option<String>,
    /// Let the model think before it answers, if its template has a switch for that [default: as in
    /// the template].
    #[arg(long, overrides_with = "no_think")]
    pub(crate) think: bool,
    /// Let the model answer at once.
    #[arg(long, overrides_with = "think")]
    pub(crate) no_think: bool,
    /// Continue a conversation that /save wrote.
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Option<PathBuf>,
    /// Show after each answer where time and bytes went.
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// System message, which precedes the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
}

/// Write the logits of a sequence of tokens to a file.
///
/// Writes a safetensors file with `logits` [tokens, vocabulary] f32: row t predicts the token after
/// token t. With --routes also `routes` [layers, tokens, k] u32: the experts chosen by the router
/// of each layer with experts, first layer to last, most probable expert first.
#[derive(Debug, clap::Args)]
pub(crate) struct Forward {
    #[command(flatten)]
    pub(crate) model: Model,
    /// The token ids: 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub(crate) tokens: Vec<u32>,
    /// Output file, which appears once it is complete.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Also write the chosen experts.
    #[arg(long)]
    pub(crate) routes: bool,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
    #[arg(long, value_name = "TIER", env = TIER_VARIABLE, help = tiers(), value_parser = chosen)]
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
