//! Errors, as sentences for people.

use std::io;
use std::path::{Path, PathBuf};

use sws_engine::UnknownBudget;
use sws_format::{CheckpointError, ManifestError, SmallFileError};
use sws_hub::{HubError, ModelId, ModelName, some_of};
use sws_model::ForwardError;
use sws_store::{FetchError, LayoutError, LimitSource};
use sws_text::{ConstraintError, GenerationError, SampleError};

use crate::Size;
use crate::common_names::common_name;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Underlying error of another error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Failure to find, load or run a model. Its text is one sentence that names the file, the problem
/// and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    /// Neither an existing path nor a possible id of a model.
    #[error(
        "`{}` does not exist; give a shard directory, a checkpoint directory, a GGUF file, or the id of a model: owner/name",
        path.display()
    )]
    NoPath {
        /// The path, as it was given.
        path: PathBuf,
    },
    /// A model that is not on this machine.
    #[error("{}", not_here(path, name, similar.as_ref(), snapshots))]
    NotHere {
        /// The name, as the user typed it.
        path: PathBuf,
        /// The parsed name of the missing model.
        name: Box<ModelName>,
        /// A model on this machine whose name is similar.
        similar: Option<ModelId>,
        /// Names of the model's snapshots in the Hugging Face cache, by commit, where no branch
        /// decides which snapshot is meant.
        snapshots: Vec<ModelName>,
    },
    /// A variable of the environment that names no place for models.
    #[error(transparent)]
    Place(HubError),
    /// Several models under one name.
    #[error(
        "`{name}` has several models: {}; choose one, as in `{}:Q4_K_M`",
        some_of(models),
        name.id
    )]
    Several { name: ModelName, models: Vec<String> },
    /// A damaged or missing manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A budget that is too small to read the manifest.
    #[error(
        "`{}` has {} MiB, and a budget of {} MiB is too small to read it; give --ram {}MiB, or check where the shards come from",
        path.display(),
        len >> 20,
        budget >> 20,
        (enough >> 20) + 1
    )]
    ManifestMemory {
        path: PathBuf,
        len: u64,
        /// The budget in bytes.
        budget: u64,
        /// A budget that is large enough to read the manifest.
        enough: u64,
    },
    /// A directory that is not a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A missing or damaged small file of a model.
    #[error(transparent)]
    SmallFile(#[from] SmallFileError),
    /// Shards without a configuration, which a manifest always names.
    #[error("`{}` is missing; make the shards again", path.display())]
    NoConfig { path: PathBuf },
    /// Any other problem of a model.
    #[error("`{}`: {cause}", dir.display())]
    Model {
        /// The directory of the model.
        dir: PathBuf,
        cause: Cause,
    },
    /// A model that needs more memory than is available.
    #[error(
        "`{}` needs {} of memory and {holder} has {} left; {}, or {otherwise}",
        dir.display(),
        Size(*needed),
        Size(*available),
        match holder {
            LimitSource::Machine => "close other programs",
            LimitSource::Cgroup(_) | LimitSource::Job => "give it more",
        }
    )]
    Memory {
        /// The directory of the model.
        dir: PathBuf,
        needed: u64,
        available: u64,
        /// The machine or control group that limits memory.
        holder: LimitSource,
        /// The alternative to more memory.
        otherwise: &'static str,
    },
    /// A draft that cannot be used.
    #[error("`{}` {why}", file.display())]
    Draft {
        /// The file of the draft.
        file: PathBuf,
        /// The problem and the remedy, after the path in the sentence.
        why: String,
    },
    /// An option that the candle backend does not support.
    #[error("the candle backend {0}")]
    Candle(&'static str),
    /// Several texts at once on a backend that continues one.
    #[error(
        "this backend continues one text at a time; choose another, or continue the texts one by one"
    )]
    OneText,
    /// A use of candle in a build without the feature of that name.
    #[error(
        "`--backend candle` and `sws draft train` need the feature candle, without which this sws was built; build it with `cargo build --release --features candle`"
    )]
    WithoutCandle,
    /// A device that cannot be used, in one sentence with its name.
    #[error("{0}")]
    Vram(String),
    /// Text that is not an amount of memory.
    #[error(transparent)]
    Ram(#[from] UnknownBudget),
    /// Threads that the system refuses to start.
    #[error(
        "{count} threads cannot be started: {cause}; ask for fewer with --threads, or raise the limit of threads (`ulimit -u`) or of address space (`ulimit -v`)"
    )]
    Threads {
        /// Number of threads requested.
        count: usize,
        cause: rayon::ThreadPoolBuildError,
    },
    /// A reader that this system does not support.
    #[error(transparent)]
    Reader(io::Error),
    /// A manifest whose pieces have no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A failed read.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A failed pass, or tokens that do not fit.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Logits from which no token can be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A restriction of the text that cannot be kept.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// An option of generation out of range.
    #[error(transparent)]
    Generation(GenerationError),
    /// Cancelled by a [`Cancel`](crate::Cancel) handle before the model was loaded.
    #[error("it was cancelled while the model was still being loaded; load it again")]
    Cancelled,
}

/// A file that is missing for the requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lacking {
    /// No tokenizer.
    #[error("there is no tokenizer.json; copy the one published with the weights next to them")]
    Tokenizer,
    /// No chat template.
    #[error(
        "there is no chat template, so this model was not made for conversation; continue a text with `sws run`"
    )]
    Template,
}

impl Error {
    /// An error of the model at a path.
    pub(crate) fn model(path: &Path, cause: impl Into<Cause>) -> Error {
        Error::Model { dir: path.to_owned(), cause: cause.into() }
    }
}

/// Names the path of a model in the error of a result.
pub(crate) fn of_model<T, E: Into<Cause>>(path: &Path, result: Result<T, E>) -> Result<T> {
    result.map_err(|cause| Error::model(path, cause))
}

/// The sentence about a model that is not on this machine.
fn not_here(
    path: &Path,
    name: &ModelName,
    similar: Option<&ModelId>,
    snapshots: &[ModelName],
) -> String {
    let path = path.display();
    if !snapshots.is_empty() {
        let names: Vec<String> = snapshots.iter().map(|name| format!("`{name}`")).collect();
        let names = some_of(&names);
        return format!(
            "no snapshot on this machine is known as `{path}`; name one whole, as {names}, or download the model with `sws pull {name}`"
        );
    }
    if let Some(id) = common_name(&path.to_string()) {
        return format!(
            "`{path}` is neither a path nor a model on this machine; if you mean `{id}`, download it with `sws pull {id}`"
        );
    }
    let similar = similar.map_or(String::new(), |id| format!("did you mean `{id}`? Or "));
    let remedy = match name.id.has_owner() {
        true => format!("check the path, or download the model with `sws pull {name}`"),
        false => "give a path, or the id of a model: owner/name".to_owned(),
    };
    format!("`{path}` is neither a path nor a model on this machine; {similar}{remedy}")
}
