//! Arguments of the commands that make, check and restore shards.

use std::path::PathBuf;

use sws_engine::RamBudget;
use sws_kernels::Encoding;

use super::models;

/// Convert a checkpoint into shards: smaller, faster to stream, checksummed.
///
/// Needs less than 256 MiB of memory, whatever the size of the model. It can be interrupted at any
/// time; running the same command again verifies what is there, makes anew what is damaged, and
/// continues, with the same result.
///
/// Small files of the checkpoint are copied: configuration, tokenizer, licence. Their symbolic
/// links must stay within the checkpoint, or the blobs of its repository in the Hugging Face cache.
#[derive(Debug, clap::Args)]
pub(crate) struct ShardArgs {
    /// Directory of a Hugging Face checkpoint in safetensors format, a GGUF file, or the id of a model
    /// in the Hugging Face cache.
    #[arg(add = models())]
    pub(crate) checkpoint: PathBuf,
    /// Output directory: new, empty, or left by an interrupted run of the same command [default:
    /// where an id finds the shards, if the checkpoint is given by its id].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Encoding of the matrices of experts, attention, dense layers, embedding and head.
    ///
    /// bf12 keeps every bit of bf16 weights in three quarters of the space. bf11 does so in two
    /// thirds, for models that are read from disk; it is slower in memory. `auto` takes the one with
    /// more tokens per second within --ram, by the estimates of `sws plan` on this machine. nested is bf11
    /// whose experts hold their own stand-ins, for speculative decoding on models with few, large experts.
    /// f32 keeps everything. f16 and bf16 are exact if each weight fits. q8, q4, fp8, mxfp4 and q8_0 are
    /// lossy; `sws inspect` shows the error. Tensors that are published quantised are left unchanged, but
    /// with bf11 and nested fp8 loses a sixth of its bytes and none of its bits (fp7).
    #[arg(long, visible_alias = "as", value_name = "ENCODING", default_value = "bf12", value_parser = choice)]
    pub(crate) encoding: EncodingChoice,
    /// Memory that the model will run in, for `--encoding auto`: 8GiB, 80% of the machine's, or `auto`
    /// for what is free [default: auto].
    #[arg(long, value_name = "SIZE")]
    pub(crate) ram: Option<RamBudget>,
    /// Also make small, inexact copies of the experts: q8 or q4.
    ///
    /// They stand in while an exact expert is being read, so that the needs of later layers are
    /// known sooner. Their results never reach the output, unless --tolerance permits it. The
    /// manifest bounds the error of each. `sws unshard` omits them. Experts in nested have their own.
    #[arg(long, value_name = "ENCODING", value_parser = stand_in)]
    pub(crate) stand_ins: Option<Encoding>,
    /// Encoding threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Then copy the shards to this directory on another drive, as `sws mirror` does; may be given several
    /// times.
    #[arg(long, value_name = "DIR")]
    pub(crate) also: Vec<PathBuf>,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Copy shards to another drive, so that runs read from both (--also).
///
/// Every byte is verified on the way. With --size the copy has as many shards as fit: first the experts
/// that earlier runs used most, or else some of each layer. The command can be interrupted; running it
/// again verifies what is there, copies anew what is damaged, and goes on, also to a larger --size. A run
/// can read from a copy that is not finished.
#[derive(Debug, clap::Args)]
pub(crate) struct MirrorArgs {
    /// A shard directory, or the id of a model.
    #[arg(add = models())]
    pub(crate) model: PathBuf,
    /// Directory of the copy: new, empty, or with a copy of the same shards.
    #[arg(value_name = "DIR")]
    pub(crate) to: PathBuf,
    /// Maximum size of the copy, as 40GiB [default: all shards].
    #[arg(long, value_name = "SIZE", value_parser = super::model::disk)]
    pub(crate) size: Option<u64>,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Read every byte of a shard directory and report damage.
///
/// Exits with 0 if every shard is intact, with 1 and a line for each damaged place otherwise, and
/// with 2 if there is nothing to verify.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// A shard directory, or the id of a model.
    #[arg(add = models())]
    pub(crate) dir: PathBuf,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the contents of a shard directory or a checkpoint.
///
/// Of a model without weights, or whose family is not supported, it shows what the configuration
/// says: sizes in each format, and the memory that they need.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// A shard directory, a checkpoint directory, a GGUF file, a config.json, or the id of a model,
    /// downloaded or not.
    #[arg(add = models())]
    pub(crate) model: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restore the checkpoint that shards were made from.
///
/// Writes the same files with the same tensors, bit for bit. Checksums are verified on the way; a
/// mismatch exits with 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Unshard {
    /// A shard directory, or the id of a model.
    #[arg(add = models())]
    pub(crate) dir: PathBuf,
    /// Output directory: new, empty, or left by an interrupted run of the same command.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Accept weights changed by a lossy encoding; they are decoded to the checkpoint's type.
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Decoding threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Encoding of shards, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodingChoice {
    /// The one that is planned to be fastest.
    Auto,
    /// This one.
    Made(Encoding),
}

fn choice(word: &str) -> Result<EncodingChoice, String> {
    match word {
        "auto" => Ok(EncodingChoice::Auto),
        _ => match encoding(word) {
            Ok(encoding) => Ok(EncodingChoice::Made(encoding)),
            Err(error) => Err(format!("{error}, or auto")),
        },
    }
}

pub(crate) fn encoding(word: &str) -> Result<Encoding, String> {
    let encoding: Encoding =
        word.parse().map_err(|e: sws_kernels::UnknownEncoding| e.to_string())?;
    match encoding {
        _ if encoding.is_made() => Ok(encoding),
        _ if encoding.packs_codes() => {
            Err(format!("{encoding} is what bf11 makes of fp8; choose bf11"))
        }
        _ => Err(format!("{encoding} is only read, where a file has it, and not made")),
    }
}

fn stand_in(word: &str) -> Result<Encoding, String> {
    match encoding(word)? {
        encoding @ (Encoding::Q8 | Encoding::Q4) => Ok(encoding),
        other => Err(format!("stand-ins are q8 or q4, not {other}")),
    }
}
