//! Errors, in sentences for people.

use std::io;
use std::path::PathBuf;

use sws_engine::UnknownBudget;
use sws_model::ForwardError;
use sws_model::text::SampleError;
use sws_store::{CheckpointError, FetchError, Holder, LayoutError, ManifestError, SmallFileError};

use crate::Size;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error, as the cause of another.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A model that cannot be found, loaded or run: one sentence with the file, what is wrong, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither a path nor the name of a model.
    #[error(
        "`{}` does not exist; give a shard directory, a checkpoint directory, or the id of a model in the Hugging Face cache",
        path.display()
    )]
    NoPath {
        /// The path, as it was given.
        path: PathBuf,
    },
    /// A name of a model that the Hugging Face cache does not have.
    #[error(
        "`{name}` is neither a directory nor a model in the Hugging Face cache{}; {}",
        cache.as_ref().map_or(String::new(), |cache| format!(" (`{}`)", cache.display())),
        match name.contains('/') {
            true => format!("check the path, or download the model of that id with `hf download {name}`"),
            false => "give a directory, or the id of a model there: owner/name".to_owned(),
        }
    )]
    NotCached {
        /// The name.
        name: String,
        /// The cache, if there is one.
        cache: Option<PathBuf>,
    },
    /// A damaged manifest, or none.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A directory that is no checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file beside the weights that is missing or damaged.
    #[error(transparent)]
    SmallFile(#[from] SmallFileError),
    /// Shards without a configuration, which a manifest always names.
    #[error("`{}` is missing; make the shards again", path.display())]
    NoConfig {
        /// The file.
        path: PathBuf,
    },
    /// Something wrong with a model.
    #[error("`{}`: {cause}", dir.display())]
    Model {
        /// The directory of the model.
        dir: PathBuf,
        /// The words behind it.
        cause: Cause,
    },
    /// A model that needs more memory than there is.
    #[error(
        "`{}` needs {} of memory and {holder} has {} left; {}, or {otherwise}",
        dir.display(),
        Size(*needed),
        Size(*available),
        match holder {
            Holder::Machine => "close other programs",
            Holder::Cgroup(_) => "give it more",
        }
    )]
    Memory {
        /// The directory of the model.
        dir: PathBuf,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are left.
        available: u64,
        /// The machine, or the control group that leaves no more.
        holder: Holder,
        /// The remedy besides more memory.
        otherwise: &'static str,
    },
    /// A draft that cannot be used.
    #[error("`{}` {why}", file.display())]
    Draft {
        /// The file of the draft.
        file: PathBuf,
        /// The words behind it.
        why: String,
    },
    /// An option that the candle backend does not have.
    #[error("the candle backend {0}")]
    Candle(&'static str),
    /// Words that are no amount of memory.
    #[error(transparent)]
    Ram(#[from] UnknownBudget),
    /// Threads that the system does not grant.
    #[error(
        "{count} threads cannot be started: {cause}; ask for fewer with --threads, or raise the limit of threads (`ulimit -u`) or of address space (`ulimit -v`)"
    )]
    Threads {
        /// Threads that were asked for.
        count: usize,
        /// The system's words.
        cause: rayon::ThreadPoolBuildError,
    },
    /// A way of reading that this system lacks.
    #[error(transparent)]
    Reader(io::Error),
    /// A manifest whose pieces have no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A read that failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A pass that failed, or tokens that do not fit.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Logits from which no token can be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A [`Cancel`](crate::Cancel) handle ended it before there was anything to give.
    #[error("it was cancelled while the model was still being loaded; load it again")]
    Cancelled,
}

/// A file that a model lacks for what was asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lacking {
    /// No tokenizer.
    #[error(
        "there is no tokenizer.json; put the one that was published with the weights beside them"
    )]
    Tokenizer,
    /// No chat template.
    #[error(
        "there is no chat template, so this model was not made for conversation; let it continue a text with `sws run`"
    )]
    Template,
}
