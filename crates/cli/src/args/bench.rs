//! Arguments of `sws bench`.

use std::path::PathBuf;

use clap::value_parser;
use sws_engine::RamBudget;

use super::models;

/// Examples at the end of the help.
const EXAMPLES: &str = "\
Examples:
  sws bench MODEL --ram 8GiB,16GiB --out board.json
  sws bench MODEL --check board.json";

/// Measure a model on this machine.
///
/// A fixed text is continued, greedily, by a process of its own for each round: at each budget first without
/// what earlier runs learned of the model's experts (cold), then with what that round learned (warm). Every
/// round must give the same tokens. --out writes all numbers and a certificate of the text, and names neither
/// this machine nor a path; --check recomputes such a certificate, which shows that the text is the model's.
/// Speeds cannot be checked.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// A shard directory, a checkpoint directory, a GGUF file, or the id of a model on this machine [default:
    /// the model in ./shards].
    #[arg(add = models())]
    pub(crate) model: Option<PathBuf>,
    /// Memory for the whole process, several with commas between: 8GiB, 80%, `min` or `auto`.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "auto")]
    pub(crate) ram: Vec<RamBudget>,
    /// New tokens of each round.
    #[arg(long, short = 'n', value_name = "N", default_value = "64", value_parser = value_parser!(u16).range(2..=4096))]
    pub(crate) tokens: u16,
    /// Rounds, each cold and warm at every budget.
    #[arg(long, value_name = "N", default_value = "3", value_parser = value_parser!(u8).range(1..=100))]
    pub(crate) rounds: u8,
    /// Compute threads [default: one per core].
    #[arg(long, short, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// A directory on another drive with a copy of the shards, as for `sws run`; may be given several
    /// times.
    #[arg(long, value_name = "DIR")]
    pub(crate) also: Vec<PathBuf>,
    /// Write the numbers and the certificate.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    pub(crate) out: Option<PathBuf>,
    /// Recompute the certificate of such a file, at the first --ram.
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,
    /// Print what --out writes, in place of the table.
    #[arg(long)]
    pub(crate) json: bool,
}
