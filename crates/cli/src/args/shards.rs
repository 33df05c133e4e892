//! Making shards, and looking at them.

use std::path::PathBuf;

use sws_kernels::Encoding;

/// Turn a checkpoint into shards: smaller, faster to stream, checksummed.
///
/// Needs less than 256 MiB of memory, whatever the size of the model. It can be interrupted at any
/// moment; the same command again goes on where it stopped, and what comes out is the same.
///
/// The checkpoint's small files are copied: configuration, tokenizer, licence. Their links must stay
/// within the checkpoint, or the blobs of its repository in the Hugging Face cache.
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

fn encoding(word: &str) -> Result<Encoding, String> {
    word.parse().map_err(|e: sws_kernels::UnknownEncoding| e.to_string())
}

fn stand_in(word: &str) -> Result<Encoding, String> {
    match encoding(word)? {
        encoding @ (Encoding::Q8 | Encoding::Q4) => Ok(encoding),
        other => Err(format!("stand-ins are q8 or q4, not {other}")),
    }
}
