//! What can be typed.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use sws_engine::policy::PolicyKind;
use sws_engine::replay::ReplayPolicy;
use sws_engine::{Budget, Exactness, StandInUse};
use sws_kernels::{Encoding, Functionals, Kind, TIER_VARIABLE, Tier, UnknownFunctional};
use sws_model::KvPrecision;
use sws_model::text::GenerationOptions;
use sws_store::ReaderKind;

use crate::backend::{self, Backend};

/// Runs language models that are larger than memory, by streaming their weights from disk.
#[derive(Debug, Parser)]
#[command(name = "sws", version, disable_help_subcommand = true)]
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

/// A model, and how to run it.
#[derive(Debug, clap::Args)]
pub(crate) struct Model {
    /// A shard directory, a checkpoint directory, or the id of a model in the Hugging Face cache
    /// [default: the model in `shards`].
    pub(crate) model: Option<PathBuf>,
    /// Memory for the whole process: 8GiB, 80%, min, or auto for what is free. Not a bit depends on
    /// it.
    #[arg(long, value_name = "SIZE", default_value = "auto", conflicts_with = "resident")]
    pub(crate) ram: Budget,
    /// Load the whole model into memory before anything is computed.
    #[arg(long)]
    pub(crate) resident: bool,
    /// Positions of the text [default: what suits the memory, up to 4096].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    /// Which expert makes room for another: expected or lru.
    #[arg(long, value_name = "POLICY", default_value = "expected")]
    pub(crate) policy: PolicyKind,
    /// Read experts only when a router has asked for them. Without this they are read earlier, while the
    /// disk has nothing better to do, as long as that measurably saves time.
    #[arg(long)]
    pub(crate) no_speculation: bool,
    /// The draft, which forecasts the experts of the next layers [default: draft.safetensors in the
    /// model's directory, or one that has learned nothing yet and learns as it goes].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["resident", "no_speculation"])]
    pub(crate) draft: Option<PathBuf>,
    /// Forecast nothing. A draft takes up to a twentieth of --ram, or 1 MiB, where experts have slots
    /// beside it. Not a bit depends on it.
    #[arg(long, conflicts_with = "draft")]
    pub(crate) no_draft: bool,
    /// Which stand-ins stay in memory, of a model sharded with some: all, off, or auto for as many as
    /// have room in an eighth of what experts have [default: off; auto with --tolerance].
    ///
    /// While an expert is being read, the pass runs ahead on stand-ins to learn which experts later
    /// layers need; then it goes back. Not a bit depends on it.
    #[arg(long, value_name = "WHICH", value_parser = stand_in_use, conflicts_with = "resident")]
    pub(crate) stand_ins: Option<StandInUse>,
    /// Let a stand-in count where it changes the state by at most this share of its norm: not exact,
    /// and not reproducible, as it depends on what is in memory.
    ///
    /// The share is bounded from above, expert by expert. What becomes of the logits is not: see
    /// the example `tolerance` of the engine. 0 is exact.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = tolerance, conflicts_with = "resident")]
    pub(crate) tolerance: f64,
    /// Keep nothing of what earlier runs learned about the use of experts, and save nothing: what is
    /// learned lies in the user's cache directory, one small file a model. Not a bit depends on it.
    #[arg(long)]
    pub(crate) no_warm_start: bool,
    /// What computes the layers.
    #[arg(long, value_name = "BACKEND", default_value = "sws", value_parser = backend())]
    pub(crate) backend: &'static Backend,
    #[arg(long, value_name = "TIERS", env = TIER_VARIABLE, help = tiers(), value_parser = chosen)]
    tier: Option<Chosen>,
    /// Threads that compute [default: one a core]. Not a bit depends on it, except with candle.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// How files are read: direct, uring or mmap.
    #[arg(long, value_name = "READER", default_value = "direct")]
    pub(crate) reader: ReaderKind,
    /// How keys and values are kept: f32 as computed, or bf16 in half the memory. bf16 is lossy
    /// [default: f32, or as in the certificate].
    #[arg(long, value_name = "TYPE", value_parser = kv)]
    kv: Option<KvPrecision>,
}

/// What --tier says; empty, as a variable can be, it says nothing.
#[derive(Clone, Copy, Debug)]
struct Chosen(Option<Functionals>);

impl Model {
    /// What computes the functionals, if that was asked for.
    pub(crate) fn functionals(&self) -> Option<Functionals> {
        self.tier?.0
    }

    /// How keys and values are kept.
    pub(crate) fn kv(&self) -> KvPrecision {
        self.kv.unwrap_or(KvPrecision::F32)
    }

    /// Keeps them like this; false if something else was asked for.
    pub(crate) fn keep_as(&mut self, kv: KvPrecision) -> bool {
        *self.kv.get_or_insert(kv) == kv
    }
}

/// How tokens are chosen. What is not given is what the model's `generation_config.json` says.
#[derive(Debug, clap::Args)]
pub(crate) struct Sampling {
    /// How many tokens at most [default: 256, in a chat as many as there is room for].
    #[arg(long, value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,
    /// How freely to choose; 0 takes the likeliest token, always.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Choose among the N likeliest; 0 for all.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Choose among the likeliest that together have this probability.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Leave out what is less likely than this times the likeliest.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divides the logits of tokens in the prompt or the text so far.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens in the text so far.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtracted for every time a token is in the text so far.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// The same seed gives the same text, on every machine [default: another each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the text before this string; can be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on when the model says that the text is over.
    #[arg(long)]
    ignore_eos: bool,
}

impl Sampling {
    pub(crate) fn options(&self) -> GenerationOptions {
        GenerationOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
        }
    }
}

/// Turn a checkpoint into shards: smaller, faster to stream, checksummed.
///
/// Needs less than 256 MiB of memory, whatever the size of the model. It can be interrupted at any
/// moment; the same command again goes on where it stopped, and what comes out is the same.
#[derive(Debug, clap::Args)]
pub(crate) struct Shard {
    /// The directory of a Hugging Face checkpoint in safetensors.
    pub(crate) checkpoint: PathBuf,
    /// Where to put the shards: a new or empty directory, or one in which the same was begun.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// How to store the matrices of experts, attention, dense layers, embedding and head.
    ///
    /// bf12 keeps every bit of bf16 weights in three quarters of the space. f32 keeps everything.
    /// f16 and bf16 are exact if each weight fits. q8, q4, fp8 and mxfp4 lose precision; how much
    /// is told by `sws inspect`. What is in fp8 or mxfp4 already stays as it is.
    #[arg(long, value_name = "ENCODING", default_value = "bf12", value_parser = encoding)]
    pub(crate) encoding: Encoding,
    /// Also make small, inexact copies of the experts: q8 or q4.
    ///
    /// They stand in while an exact expert is being read, so that later layers' needs are known
    /// sooner; what they compute never reaches the output, unless --tolerance lets it. How far each
    /// is from the exact one is bounded in the manifest. `sws unshard` leaves them out.
    #[arg(long, value_name = "ENCODING", value_parser = stand_in)]
    pub(crate) stand_ins: Option<Encoding>,
    /// Threads that encode [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Read every byte of a shard directory and say what is damaged.
///
/// Exits with 0 if every shard is as it was written, with 1 and a line for each damaged place if
/// not, with 2 if there is nothing to verify.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// A shard directory.
    pub(crate) dir: PathBuf,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what a shard directory or a checkpoint consists of.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// A shard directory, a checkpoint as it would be read in place, or the id of one in the Hugging
    /// Face cache.
    pub(crate) model: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Turn shards back into the checkpoint they were made from.
///
/// The same files with the same tensors, bit for bit. Checksums are verified on the way: exits with 1
/// if one does not agree.
#[derive(Debug, clap::Args)]
pub(crate) struct Unshard {
    /// A shard directory.
    pub(crate) dir: PathBuf,
    /// Where to put the checkpoint: a new or empty directory, or one in which the same was begun.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Accept weights that a lossy encoding changed; they are decoded to the checkpoint's type.
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Threads that decode [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

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
    /// What would compute the functionals.
    pub(crate) fn functionals(&self) -> Functionals {
        self.tier.and_then(|tier| tier.0).unwrap_or(Functionals::best())
    }
}

fn positive(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("a number above 0 is needed".to_owned()),
    }
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

fn backend() -> impl TypedValueParser<Value = &'static Backend> {
    PossibleValuesParser::new(backend::possible())
        .try_map(|name| backend::find(&name).ok_or("there is no such backend"))
}

/// The help of `--tier`, which knows this CPU.
fn tiers() -> String {
    let kinds = Kind::ALL.map(Kind::name).join(", ");
    let tiers: Vec<&str> = Tier::available().into_iter().map(Tier::name).collect();
    format!(
        "What computes the functionals: a tier for all of them, and others for some, as in \
         portable,attention=scalar. The functionals: {kinds}. The tiers of this CPU: {} [default: the \
         first]. Not a bit depends on it",
        tiers.join(", ")
    )
}

fn chosen(words: &str) -> Result<Chosen, UnknownFunctional> {
    let chosen = Some(words).filter(|words| !words.is_empty());
    Ok(Chosen(chosen.map(str::parse).transpose()?))
}

fn encoding(word: &str) -> Result<Encoding, String> {
    word.parse().map_err(|e: sws_kernels::UnknownEncoding| e.to_string())
}

fn stand_in_use(word: &str) -> Result<StandInUse, String> {
    let found = StandInUse::ALL.into_iter().find(|which| which.name() == word);
    found.ok_or_else(|| "it is off, auto or all".to_owned())
}

fn tolerance(word: &str) -> Result<f64, String> {
    let found = word.parse().ok().filter(|share: &f64| share.is_finite() && *share >= 0.0);
    found.ok_or_else(|| "it is a number that is not negative, like 0.01".to_owned())
}

impl Model {
    /// How exact the answer is to be.
    pub(crate) fn exactness(&self) -> Exactness {
        if self.tolerance > 0.0 { Exactness::Within(self.tolerance) } else { Exactness::Exact }
    }

    /// Which stand-ins stay in memory.
    pub(crate) fn stand_ins(&self) -> StandInUse {
        let default = if self.tolerance > 0.0 { StandInUse::Auto } else { StandInUse::Off };
        self.stand_ins.unwrap_or(default)
    }
}

fn stand_in(word: &str) -> Result<Encoding, String> {
    match encoding(word)? {
        encoding @ (Encoding::Q8 | Encoding::Q4) => Ok(encoding),
        other => Err(format!("stand-ins are q8 or q4, not {other}")),
    }
}

fn kv(word: &str) -> Result<KvPrecision, String> {
    match word {
        "f32" => Ok(KvPrecision::F32),
        "bf16" => Ok(KvPrecision::Bf16),
        other => Err(format!("keys and values are kept in f32 or bf16, not in {other}")),
    }
}
