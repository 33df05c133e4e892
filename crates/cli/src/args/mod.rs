//! What can be typed.

mod model;
mod recorded;
mod sampling;
mod shards;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use sws::Options;
use sws_engine::Budget;
use sws_kernels::TIER_VARIABLE;
use sws_model::KvPrecision;
use sws_store::ReaderKind;

pub(crate) use model::Model;
use model::{Chosen, chosen, kv, tiers};
#[cfg(feature = "candle")]
pub(crate) use recorded::DraftTrain;
pub(crate) use recorded::{Draft, DraftCommand, DraftScore, Recorded, Replay};
pub(crate) use sampling::Sampling;
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
    /// Talk to a model.
    Chat(Chat),
    /// Write the logits of a sequence of tokens to a file.
    Forward(Forward),
    /// Compute a certified answer again and compare every bit.
    Certify(Certify),
    /// Turn a checkpoint into shards: smaller, faster to stream, checksummed.
    Shard(Shard),
    /// Read every byte of a shard directory and say what is damaged.
    Verify(Verify),
    /// Show what a shard directory or a checkpoint consists of.
    Inspect(Inspect),
    /// Turn shards back into the checkpoint they were made from.
    Unshard(Unshard),
    /// Show how a model would be run within a memory budget.
    Plan(Plan),
    /// Count what a cache of experts would have read for recorded routes.
    Replay(Replay),
    /// Train a draft, which forecasts the experts that a model will need, or say how good it is.
    Draft(Draft),
}

/// Continue a text.
///
/// The prompt is what --prompt or --tokens says, or standard input; without any the text begins with
/// "Once upon a time". Standard output gets the new text and nothing else, standard error the rest.
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
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    /// Write down which experts are chosen, as a trace that `sws replay` reads.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Also record what `sws draft train` learns from: `hidden` and `attended` [tokens, layers, hidden]
    /// f32, what each layer is given and what its router is.
    #[arg(long, requires = "record")]
    pub(crate) record_hidden: bool,
    /// Write a certificate of the answer, with which `sws certify` can compute it again.
    #[arg(long, value_name = "FILE", conflicts_with = "tolerance")]
    pub(crate) certify: Option<PathBuf>,
    /// Print one JSON object instead of the text: `tokens` (the new ids), `text`, `end`, `metrics`.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compute a certified answer again and compare every bit.
///
/// Not a bit depends on --ram, --resident, --policy, --reader or --threads. Exits with 0 if all
/// agree, with 1 and the first step that differs if not.
#[derive(Debug, clap::Args)]
pub(crate) struct Certify {
    /// What `sws run --certify` has written.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) model: Model,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Talk to a model.
///
/// Each line is a message. Ctrl-C stops an answer; /help lists what else there is.
#[derive(Debug, clap::Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) model: Model,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
}

/// Write the logits of a sequence of tokens to a file.
///
/// A safetensors file with `logits` [tokens, vocabulary] f32: row t has the logits of what follows
/// token t. With --routes also `routes` [layers, tokens, k] u32: for each layer that has experts, first
/// to last, the experts that its router chose, the most probable first.
#[derive(Debug, clap::Args)]
pub(crate) struct Forward {
    #[command(flatten)]
    pub(crate) model: Model,
    /// The token ids: 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub(crate) tokens: Vec<u32>,
    /// The file to write; it appears when it is complete.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Also write which experts were chosen.
    #[arg(long)]
    pub(crate) routes: bool,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show how a model would be run within a memory budget.
///
/// What memory is used for, the smallest budget that works, and what each further GiB would give.
/// Disk and memory are measured for a moment; what a token reads and how long it takes is estimated.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// A shard directory, a checkpoint directory, or the id of a model in the Hugging Face cache
    /// [default: the model in `shards`].
    pub(crate) model: Option<PathBuf>,
    /// Memory for the whole process: 8GiB, 80% of the machine's, `min` for the least that works, or
    /// `auto` for what is free.
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub(crate) ram: Budget,
    /// Positions of a text [default: up to 4096, fewer where memory is scarce].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) context: Option<usize>,
    /// Texts that run together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
    /// How keys and values are kept: f32, or bf16 in half the memory.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = kv)]
    pub(crate) kv: KvPrecision,
    #[arg(long, value_name = "TIERS", env = TIER_VARIABLE, help = tiers(), value_parser = chosen)]
    tier: Option<Chosen>,
    /// Threads that compute [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// How files are read: direct, uring or mmap.
    #[arg(long, value_name = "READER", default_value = "direct")]
    pub(crate) reader: ReaderKind,
    /// Measure neither disk nor memory; then no speed is told.
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Plan {
    /// How the model would be run.
    pub(crate) fn options(&self) -> Options {
        Options {
            ram: self.ram,
            context: self.context,
            kv: self.kv,
            functionals: self.tier.and_then(|tier| tier.0),
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
