//! Arguments that name a model and say how to run it.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use sws::{Backend, DraftChoice, Options, Streaming, VramChoice};
use sws_cache::policy::PolicyKind;
use sws_engine::{RamBudget, StandInUse};
use sws_kernels::{Activations, TIER_VARIABLE, Tier, UnknownTier};
use sws_model::KvPrecision;
use sws_store::ReaderKind;

use super::{ADVANCED, models};

/// Arguments that name a model and say how to run it, a field each.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Memory and speed")]
pub(crate) struct ModelArgs {
    /// A shard directory, a checkpoint directory, a GGUF file, the id of a model, which `sws list`
    /// shows, or an address of shards: https://host/path, s3://bucket/path [default: the model in
    /// ./shards; for a chat, the newest chat model on this machine].
    #[arg(help_heading = None, add = models())]
    pub(crate) model: Option<PathBuf>,
    /// The same, as an option.
    #[arg(long = "model", short = 'm', value_name = "MODEL", help_heading = None, add = models(), hide_short_help = true)]
    pub(crate) named: Option<PathBuf>,
    /// Memory for the whole process: 8GiB, 80%, `min`, or `auto` for the memory that is free.
    #[arg(long, value_name = "SIZE", default_value = "auto", conflicts_with = "resident")]
    pub(crate) ram: RamBudget,
    /// Load the whole model into memory before computing anything.
    #[arg(long, hide_short_help = true)]
    pub(crate) resident: bool,
    /// Context length in tokens [default: what fits in memory, at most 4096, or more where a
    /// sixteenth of memory has room].
    #[arg(long, short, alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    /// Compute threads [default: one per core]. With candle the output
    /// depends on their number.
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) advanced: Advanced,
}

/// Arguments that few people need.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = ADVANCED)]
pub(crate) struct Advanced {
    /// Cache policy that evicts experts: expected or lru.
    #[arg(long, value_name = "POLICY", default_value = "expected")]
    pub(crate) policy: PolicyKind,
    /// Read experts only on demand, after the router has chosen them. By default they are
    /// prefetched while the disk is idle, as long as that measurably saves time.
    #[arg(long)]
    pub(crate) no_speculation: bool,
    /// Draft file; the draft forecasts the experts of the next layers [default: draft.safetensors
    /// in the model's directory, or, for a model whose experts are large in total, an untrained
    /// draft that learns during the run].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["resident", "no_speculation"])]
    pub(crate) draft: Option<PathBuf>,
    /// Run without a draft. A draft takes up to a twentieth of --ram, or 1 MiB, if memory remains
    /// for expert slots.
    #[arg(long, conflicts_with = "draft")]
    pub(crate) no_draft: bool,
    /// Stand-ins kept in memory, for a model sharded with stand-ins or as nested: all, which raises the
    /// smallest budget by their size, off, or auto for as many as fit into an eighth of the experts' memory
    /// [default: off; auto with --tolerance].
    ///
    /// While an expert is being read, the pass runs ahead on stand-ins to learn which experts later
    /// layers need; then it rewinds.
    #[arg(long, value_name = "WHICH", value_parser = stand_in_use, conflicts_with = "resident")]
    pub(crate) stand_ins: Option<StandInUse>,
    /// Use a stand-in's result where it changes the state by at most this share of its norm. The
    /// output is then neither exact nor reproducible, as it depends on the contents of memory.
    ///
    /// The share is bounded from above, expert by expert. The effect on the logits is not bounded:
    /// see the example `tolerance` of the benchmarks. 0 is exact.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = tolerance, conflicts_with = "resident")]
    pub(crate) tolerance: f64,
    /// Speculative decoding: verify several draft tokens in one pass, from an earlier place of the text or
    /// from the model on its stand-ins (--stand-ins all), as long as that measurably saves time.
    /// The output is the same.
    #[arg(long)]
    pub(crate) proposals: bool,
    /// Neither load nor save what runs learn of the use of a model's experts, which is kept in the user's
    /// cache directory, one file per model.
    #[arg(long)]
    pub(crate) no_warm_start: bool,
    /// Implementation of the layers.
    #[arg(long, value_name = "BACKEND", default_value = "sws", value_parser = backend())]
    pub(crate) backend: Backend,
    #[arg(long, value_name = "TIER", env = TIER_VARIABLE, help = TIERS, value_parser = chosen)]
    tier: Option<TierChoice>,
    /// Activations of products: f32 as computed, or int8, rounded to 8 bits in blocks of 32. int8 is
    /// faster where weights are small whole numbers, as in GGUF files, and lossy; other weights are
    /// multiplied as with f32.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = activations())]
    pub(crate) activations: Activations,
    /// Disk space for the shards of models at addresses, which come while they are read; what was
    /// used longest ago goes [default: what the disk has, less a reserve].
    #[arg(long, value_name = "SIZE", value_parser = disk)]
    pub(crate) cache_disk: Option<u64>,
    /// A directory on another drive with a copy of the shards, whole or partial, as `sws mirror` makes
    /// it; may be given several times.
    ///
    /// Reads go to the drive that is expected to finish first. A copy that is absent, fails or is damaged
    /// is named and left out. The output is the same.
    #[arg(long, value_name = "DIR")]
    pub(crate) also: Vec<PathBuf>,
    /// Memory of a graphics card for experts, beside --ram: auto for what a card has, less a reserve for the
    /// desktop; a size such as 8GiB, of any OpenCL device; or off. In builds with the feature gpu.
    ///
    /// The device is compared with this CPU first, and refused if one bit differs. Experts are computed there
    /// while that measurably saves time. The output is the same.
    #[arg(long, value_name = "SIZE", default_value = "off", conflicts_with = "resident")]
    pub(crate) vram: VramChoice,
    /// I/O backend: direct, uring or mmap.
    #[arg(long, value_name = "READER", default_value = "direct")]
    pub(crate) reader: ReaderKind,
    /// Most bytes that are read of a model's files in a second, for drives that get hot: 500MB, 1GiB
    /// [default: as many as the drive gives].
    #[arg(long, value_name = "SIZE", value_parser = disk_rate)]
    pub(crate) max_disk_rate: Option<u64>,
    /// Precision of the KV cache: f32 as computed, bf16 in half the memory, or q8, 8 bits in
    /// blocks of 32, in little more than a quarter. bf16 and q8 are lossy [default: f32, or as in
    /// the certificate].
    #[arg(long, value_name = "TYPE", value_parser = kv)]
    kv: Option<KvPrecision>,
}

/// Value of --tier. `None` if it is empty, as an environment variable can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct TierChoice(Option<Tier>);

impl TierChoice {
    pub(super) fn tier(self) -> Option<Tier> {
        self.0
    }
}

impl ModelArgs {
    /// Options for loading the model.
    pub(crate) fn options(&self) -> Options {
        let advanced = &self.advanced;
        let draft = match &advanced.draft {
            _ if advanced.no_draft => DraftChoice::Off,
            Some(file) => DraftChoice::File(file.clone()),
            None => DraftChoice::Auto,
        };
        Options {
            ram: self.ram,
            resident: self.resident,
            context: self.context.map(|n| n as usize),
            kv: self.kv(),
            backend: advanced.backend,
            tier: advanced.tier.and_then(TierChoice::tier),
            activations: advanced.activations,
            vram: advanced.vram,
            reader: advanced.reader,
            max_disk_rate: advanced.max_disk_rate,
            speculative: advanced.proposals,
            streaming: Streaming {
                policy: advanced.policy,
                speculation: !advanced.no_speculation,
                draft,
                stand_ins: advanced.stand_ins,
                tolerance: advanced.tolerance,
                warm_start: !advanced.no_warm_start,
            },
        }
    }

    /// Precision of the KV cache.
    pub(crate) fn kv(&self) -> KvPrecision {
        self.advanced.kv.unwrap_or(KvPrecision::F32)
    }

    /// Sets the precision of the KV cache, unless another one was typed; returns false in that
    /// case.
    pub(crate) fn keep_as(&mut self, kv: KvPrecision) -> bool {
        *self.advanced.kv.get_or_insert(kv) == kv
    }
}

/// Parses an amount of bytes, as in `--ram`.
pub(super) fn amount(word: &str) -> Result<RamBudget, String> {
    word.parse::<RamBudget>().map_err(|e| e.to_string())
}

/// Parses the size of a directory.
pub(super) fn disk(word: &str) -> Result<u64, String> {
    match amount(word)? {
        RamBudget::Bytes(bytes) if bytes >= 1 << 20 => Ok(bytes),
        _ => Err(format!("shards have at least 1MiB of disk, not {word}")),
    }
}

/// Parses bytes per second.
pub(super) fn disk_rate(word: &str) -> Result<u64, String> {
    let size = word.strip_suffix("/s").unwrap_or(word);
    match amount(size)? {
        RamBudget::Bytes(bytes) if bytes >= 1 << 20 => Ok(bytes),
        _ => Err(format!("a run reads at least 1MiB in a second, not {word}")),
    }
}

pub(super) fn activations() -> impl TypedValueParser<Value = Activations> {
    PossibleValuesParser::new(Activations::ALL.map(Activations::name))
        .try_map(|name| name.parse::<Activations>())
}

fn backend() -> impl TypedValueParser<Value = Backend> {
    let mut words = Vec::new();
    for backend in Backend::ALL {
        words.push(PossibleValue::new(backend.name()).help(backend.about()));
    }
    PossibleValuesParser::new(words).try_map(backend_of)
}

fn backend_of(name: String) -> Result<Backend, &'static str> {
    for &backend in Backend::ALL {
        if backend.name() == name {
            return Ok(backend);
        }
    }
    Err("there is no such backend")
}

/// Help of `--tier`.
pub(super) const TIERS: &str =
    "Tier of the kernels; `sws --version` lists those of this CPU [default: the first]";

pub(super) fn chosen(word: &str) -> Result<TierChoice, UnknownTier> {
    Ok(TierChoice(if word.is_empty() { None } else { Some(word.parse()?) }))
}

fn stand_in_use(word: &str) -> Result<StandInUse, String> {
    for which in StandInUse::ALL {
        if which.name() == word {
            return Ok(which);
        }
    }
    Err("expected off, auto or all".to_owned())
}

fn tolerance(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(share) if share.is_finite() && share >= 0.0 => Ok(share),
        _ => Err("expected a number that is not negative, like 0.01".to_owned()),
    }
}

pub(super) fn kv(word: &str) -> Result<KvPrecision, String> {
    for kv in KvPrecision::ALL {
        if kv.name() == word {
            return Ok(kv);
        }
    }
    Err(format!("keys and values are kept in f32, bf16 or q8, not in {word}"))
}
