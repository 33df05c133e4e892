//! What is done with recorded routes.

use std::path::PathBuf;

use clap::Subcommand;
use sws_cache::replay::ReplayPolicy;
use sws_engine::Budget;

/// Count what a cache of experts would have read for recorded routes.
///
/// The first half of the sequences warms the cache, the second half is counted; of a single sequence
/// the halves of its tokens. What `gap closed` says is how much of what the best possible policy saves
/// over `lru` a policy saves.
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// The routes: a safetensors file with `ids` [tokens, layers, k], one that `sws forward --routes`
    /// wrote, or a CSV file with the columns turn, phase, step, layer, slot, expert.
    pub(crate) trace: PathBuf,
    /// How many of all experts there is room for, in percent.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "20,30,50", value_parser = percent)]
    pub(crate) budgets: Vec<f64>,
    /// The same as numbers of experts, instead of --budgets.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "budgets", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slots: Vec<u32>,
    /// Who decides what goes: lru, expected, or belady, which knows what comes.
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "lru,expected,belady"
    )]
    pub(crate) policies: Vec<ReplayPolicy>,
    /// Sequences that go through the layers together.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Train a draft, or say how good it is.
///
/// A draft forecasts which experts the next layers will need, so that they can be read before they are
/// asked for. Not a bit of any answer depends on it. Both commands work on recordings:
/// `sws run MODEL --prompt TEXT --record FILE --record-hidden`, many of them, of different prompts.
#[derive(Debug, clap::Args)]
pub(crate) struct Draft {
    #[command(subcommand)]
    pub(crate) command: DraftCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DraftCommand {
    /// Train a draft and put it beside the model, where `sws run` finds it.
    Train(DraftTrain),
    /// Compare what a draft forecasts with what came, and with other forecasts.
    Score(DraftScore),
}

/// A model and recordings of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Recorded {
    /// A shard directory, a checkpoint directory, or the id of a model in the Hugging Face cache.
    pub(crate) model: PathBuf,
    /// What `sws run --record FILE --record-hidden` wrote, any number of files.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) traces: Vec<PathBuf>,
}

/// Train a draft and put it beside the model, where `sws run` finds it.
///
/// Of ten sequences one is held out: what is kept is what was best there.
#[derive(Debug, clap::Args)]
pub(crate) struct DraftTrain {
    #[command(flatten)]
    pub(crate) recorded: Recorded,
    /// The file to write [default: draft.safetensors in the model's directory].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// The rank of corrections: more is better and takes more memory.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=sws_draft::MAX_RANK as i64))]
    pub(crate) rank: u16,
    /// How often every token is learned from.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) epochs: u16,
    /// The most memory that the draft may take [default: what it needs].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    /// The same seed and recordings give the same draft on one machine.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare what a draft forecasts with what came, and with other forecasts.
///
/// Recall is the share of the experts used that are among the first k, 1.5 k and 2 k named, where a
/// token uses k; on misses, of those that were not in a cache of --budget. Beside the draft stand the
/// layer's own router asked about the same state, what is used together, the previous token, the most
/// used, and a control that must name all.
#[derive(Debug, clap::Args)]
pub(crate) struct DraftScore {
    #[command(flatten)]
    pub(crate) recorded: Recorded,
    /// The draft [default: draft.safetensors in the model's directory, or an untrained one].
    #[arg(long, value_name = "FILE")]
    pub(crate) draft: Option<PathBuf>,
    /// One that has learned nothing, whatever lies beside the model.
    #[arg(long, conflicts_with = "draft")]
    pub(crate) untrained: bool,
    /// Do not go on learning from what comes.
    #[arg(long, conflicts_with = "pairs")]
    pub(crate) frozen: bool,
    /// Of each two sequences, as two topics, score the second: with a draft that goes on learning, and
    /// with one that does not.
    #[arg(long)]
    pub(crate) pairs: bool,
    /// How many of all experts the cache has room for, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = percent)]
    pub(crate) budget: f64,
    /// The most memory that the draft may take [default: what it needs].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// An amount of memory, as in `--ram`.
fn bytes(word: &str) -> Result<u64, String> {
    match word.parse::<Budget>().map_err(|e| e.to_string())? {
        Budget::Bytes(bytes) => Ok(bytes),
        _ => Err(format!("an amount of memory has a unit, as 8MiB has, not {word}")),
    }
}

fn percent(word: &str) -> Result<f64, String> {
    let share: Option<f64> = word.trim_end_matches('%').parse().ok();
    share
        .filter(|share| *share > 0.0 && *share <= 100.0)
        .ok_or_else(|| format!("a budget is above 0 and at most 100 percent, not {word}"))
}
