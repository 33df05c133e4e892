//! Arguments of `sws plan` and `sws doctor`.

use std::path::PathBuf;

use sws::{Options, VramChoice};
use sws_engine::RamBudget;
use sws_kernels::{Activations, TIER_VARIABLE};
use sws_model::KvPrecision;
use sws_store::ReaderKind;

use super::model::{TIERS, TierChoice, activations, chosen, disk_rate, kv};
use super::models;

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
    /// Also count the experts that so much memory of a graphics card holds: 8GiB, or auto for the card here. A device
    /// that shares the machine's memory takes as much of --ram, which is not counted. In builds with the feature gpu.
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
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = activations(), hide_short_help = true)]
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
    #[arg(long, value_name = "SIZE", hide_short_help = true, value_parser = disk_rate)]
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
            tier: self.tier.and_then(TierChoice::tier),
            activations: self.activations,
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
