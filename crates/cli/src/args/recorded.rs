//! Arguments of the commands on recorded routes.

use std::path::PathBuf;

use clap::Subcommand;
use sws_cache::replay::{AssumedTimes, ReplayPolicy};
use sws_engine::RamBudget;

use super::model::amount;
use super::models;

/// Simulate an expert cache on recorded routes and count its misses.
///
/// The first half of the sequences warms the cache and the second half is counted; a single
/// sequence is split into halves. `gap closed` is the share of the misses between `lru` and the
/// optimal policy that a policy avoids.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Traces, one after another: safetensors files with `ids` [tokens, layers, k], the output of `sws
    /// forward --routes`, or CSV files with the columns turn, phase, step, layer, slot, expert.
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// Cache sizes, in percent of all experts.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "20,30,50", value_parser = percent)]
    pub(crate) budgets: Vec<f64>,
    /// Cache sizes as numbers of experts, instead of --budgets.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "budgets", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slots: Vec<u32>,
    /// Cache policies: lru, expected, corrected with --eviction or --learn, learning, which learns a
    /// correction on the way (from states, if all traces have them), or belady, the optimum with perfect
    /// foresight.
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "lru,expected,belady"
    )]
    pub(crate) policies: Vec<ReplayPolicy>,
    /// Correction of the expected policy, made by `sws draft train`; adds the policy corrected. Traces
    /// must have the states that it looks at: record them with `sws run --record-hidden`.
    #[arg(long, value_name = "FILE", conflicts_with = "learn")]
    pub(crate) eviction: Option<PathBuf>,
    /// Learn a correction from the half that warms the cache, without states; adds the policy
    /// corrected.
    #[arg(long)]
    pub(crate) learn: bool,
    /// Rank of what --learn learns.
    #[arg(long, value_name = "N", default_value = "32", requires = "learn", value_parser = clap::value_parser!(u16).range(1..=sws_cache::correction::MAX_RANK as i64))]
    pub(crate) rank: u16,
    /// Sequences processed together.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
    /// Turns of so many tokens for the sequences of --batch, instead of shared passes.
    #[arg(long, value_name = "TOKENS", requires = "batch", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) turns: Option<u32>,
    /// Experts that a graphics card has room for, beside each cache: counts the experts that `sws run --vram` would
    /// compute there. The policy belady is left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) vram_slots: Option<u32>,
    /// Times by which experts are placed on that card, in microseconds: an expert on the CPU, on the card, its
    /// read, its copy to the card. They are assumptions; a run measures them.
    #[arg(long, value_name = "CPU,CARD,READ,COPY", default_value = "200,100,800,400", requires = "vram_slots", value_parser = times)]
    pub(crate) vram_times: AssumedTimes,
    /// Also write a page with the experts of each pass, for a browser. What is in memory is simulated
    /// with the first of the cache sizes, and the default policy or the first other one but belady.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Train or score a draft.
///
/// A draft forecasts the experts of the next layers, so that they can be prefetched. The output of
/// a model never depends on it. Both commands work on recordings, made with `sws run MODEL --prompt
/// TEXT --record FILE --record-hidden` from many different prompts.
#[derive(Debug, clap::Args)]
pub(crate) struct DraftArgs {
    #[command(subcommand)]
    pub(crate) command: DraftCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DraftCommand {
    Train(DraftTrain),
    Score(DraftScore),
}

/// Model and its recordings.
#[derive(Debug, clap::Args)]
pub(crate) struct RecordedArgs {
    /// A shard directory, a checkpoint directory, a GGUF file, or the id of a model in the Hugging
    /// Face cache.
    #[arg(add = models())]
    pub(crate) model: PathBuf,
    /// Recordings written by `sws run --record FILE --record-hidden`; any number of files.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) traces: Vec<PathBuf>,
}

/// Train a draft and save it in the model's directory, where `sws run` finds it.
///
/// One sequence in ten is held out; the weights that do best on these are kept. Only an sws that was
/// built with the feature candle trains.
#[derive(Debug, clap::Args)]
pub(crate) struct DraftTrain {
    #[command(flatten)]
    pub(crate) recorded: RecordedArgs,
    /// Output file [default: draft.safetensors in the model's directory].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Output file of the correction of evictions [default: eviction.safetensors beside the draft].
    #[arg(long, value_name = "FILE")]
    pub(crate) eviction: Option<PathBuf>,
    /// Rank of the corrections: a higher rank forecasts better and takes more memory.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=sws_draft::MAX_RANK as i64))]
    pub(crate) rank: u16,
    /// Passes over the training tokens.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) epochs: u16,
    /// Memory limit of the draft [default: as much as it needs].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    /// Random seed. The same seed and recordings give the same draft on one machine.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare the forecasts of a draft with the experts used and with other forecasts.
///
/// Recall is the share of the used experts among the first k, 1.5 k and 2 k forecast, for a token
/// that uses k. Recall on misses counts only the experts absent from a cache of --budget. The
/// baselines are the layer's own router on the same state, co-activation, the previous token, the
/// most used experts, and a control that must find all.
#[derive(Debug, clap::Args)]
pub(crate) struct DraftScore {
    #[command(flatten)]
    pub(crate) recorded: RecordedArgs,
    /// Draft file [default: draft.safetensors in the model's directory, or an untrained draft].
    #[arg(long, value_name = "FILE")]
    pub(crate) draft: Option<PathBuf>,
    /// Score an untrained draft, even if the model has a trained one.
    #[arg(long, conflicts_with = "draft")]
    pub(crate) untrained: bool,
    /// Freeze the learned parameters of the draft while it is scored.
    #[arg(long, conflicts_with = "pairs")]
    pub(crate) frozen: bool,
    /// Treat each two sequences as two topics and score the second, with a draft that keeps
    /// learning and with a frozen one.
    #[arg(long)]
    pub(crate) pairs: bool,
    /// Cache size, in percent of all experts.
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = percent)]
    pub(crate) budget: f64,
    /// Memory limit of the draft [default: as much as it needs].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses an amount of memory, as in `--ram`.
fn bytes(word: &str) -> Result<u64, String> {
    match amount(word)? {
        RamBudget::Bytes(bytes) => Ok(bytes),
        _ => Err(format!("an amount of memory needs a unit, as in 8MiB, not {word}")),
    }
}

fn percent(word: &str) -> Result<f64, String> {
    match word.trim_end_matches('%').parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 100.0 => Ok(share),
        _ => Err(format!("a budget is above 0 and at most 100 percent, not {word}")),
    }
}

/// Parses the times of an expert in microseconds. A layer takes as long as an expert besides.
fn times(words: &str) -> Result<AssumedTimes, String> {
    let times: Option<Vec<f64>> = words.split(',').map(|word| word.trim().parse().ok()).collect();
    match times.as_deref() {
        Some(&[here, there, read, copy])
            if [here, there, read, copy].iter().all(|time| (0.0..=1e9).contains(time)) =>
        {
            let [here, there, read, copy] = [here, there, read, copy].map(|time| 1e3 * time);
            Ok(AssumedTimes { here, there, read, copy, layer: here })
        }
        _ => Err("expected four numbers of microseconds, as in 200,100,800,400".to_owned()),
    }
}
