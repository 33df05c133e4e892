//! Checkpoints as published, as far as sharding and reading in place need them.

mod files;
mod gguf;
mod safetensors;
mod small;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::header::{HeaderError, HeaderTensor};
use crate::{Configuration, GgufError, ShardReader, SmallFileError, remedy};

pub use gguf::gguf_model;
pub use safetensors::{read_config, sketch};
pub use small::is_small_file;

/// A model as published, in one of several formats.
///
/// The files are untrusted. An implementation has checked their headers: every tensor lies in its
/// file, is as long as its type and shape require, and has a name of its own.
pub trait Checkpoint: fmt::Debug {
    /// Directory of the files, for messages.
    fn dir(&self) -> &Path;

    /// The directory of the checkpoint, in which no output may lie; `None` if the checkpoint
    /// consists of files that may lie among others.
    fn own_dir(&self) -> Option<&Path> {
        Some(self.dir())
    }

    /// Weight files with their tensors.
    fn files(&self) -> &[WeightFile];

    /// Configuration of the model.
    fn config(&self) -> &Configuration;

    /// Identity: equal for copies, and different if any header or a sample of the weights differs;
    /// see `docs/format.md`.
    fn fingerprint(&self) -> &str;

    /// A reader of the weight files, which identifies them by their index in
    /// [`files`](Self::files); `None` if they are read directly from [`dir`](Self::dir).
    fn reader(&self) -> Option<Arc<dyn ShardReader>> {
        None
    }

    /// Names of the small files (tokenizer, chat template, licence), sorted: plain names of files
    /// that are copied beside the shards.
    fn small_files(&self) -> Result<Vec<String>, CheckpointError>;

    /// Reads one of the small files and verifies that it has not changed since its first reading.
    fn read_small(&self, name: &str) -> Result<Vec<u8>, CheckpointError>;

    /// Bytes of disk that the weight files still take during sharding, besides the shards: none for
    /// files that exist already.
    fn room(&self) -> u64 {
        0
    }

    /// Called by the sharder when a weight file is no longer needed, with its index in
    /// [`files`](Self::files). Shards are made in the order of files.
    fn release(&self, _file: u32) {}
}

/// Opens the checkpoint at `path`: a directory of safetensors files or of one model in GGUF, or one
/// of the GGUF files.
///
/// Checksums of first readings are recorded in the folder `cache` for files that have none, and
/// later readings must agree with them.
pub fn open_checkpoint(
    path: impl AsRef<Path>,
    cache: Option<&Path>,
) -> Result<Box<dyn Checkpoint>, CheckpointError> {
    let path = path.as_ref();
    match gguf::find(path)? {
        Some(found) => Ok(Box::new(gguf::GgufCheckpoint::open(found)?)),
        None => Ok(Box::new(safetensors::SafetensorsCheckpoint::open(path, cache)?)),
    }
}

/// A file of a checkpoint that holds weights.
#[derive(Clone, Debug)]
pub struct WeightFile {
    /// File name in the directory of the checkpoint.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// Tensors, by ascending offset.
    pub tensors: Vec<HeaderTensor>,
}

/// Reason that a directory cannot be used as a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CheckpointError {
    /// A file or directory could not be read.
    #[error("`{}` cannot be read ({cause}); {}", path.display(),
            remedy(cause, "check that it exists and that you may read it"))]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Cause reported by the operating system.
        cause: io::Error,
    },
    /// The path is a file, not a directory.
    #[error("`{}` is not a GGUF file; give a .gguf file or a checkpoint directory", path.display())]
    NotADirectory { path: PathBuf },
    /// The directory holds no weights.
    #[error(
        "`{}` holds neither model.safetensors nor model.safetensors.index.json nor a GGUF file; give the directory of a complete Hugging Face checkpoint",
        dir.display()
    )]
    NoWeights { dir: PathBuf },
    /// The directory contains something other than a checkpoint.
    #[error("`{}` holds {what}", dir.display())]
    Other {
        dir: PathBuf,
        /// Description of the contents, and the remedy, after the directory in the sentence.
        what: String,
    },
    /// The weights are PyTorch pickles.
    #[error(
        "`{}` holds PyTorch weights, which can run code when opened; convert them where you trust them, with transformers: AutoModelForCausalLM.from_pretrained(dir).save_pretrained(out, safe_serialization=True)",
        path.display()
    )]
    PyTorch {
        /// One of the weight files.
        path: PathBuf,
    },
    /// A GGUF file is damaged, or contains something unsupported.
    #[error("`{}` {reason}", path.display())]
    Gguf {
        path: PathBuf,
        /// Description of the problem, and the remedy.
        reason: GgufError,
    },
    /// A directory holds several models in GGUF.
    #[error("`{}` holds several models, among them `{first}` and `{second}`; give the path of one of the files", dir.display())]
    Several {
        dir: PathBuf,
        /// The first file of one model.
        first: String,
        /// The first file of another.
        second: String,
    },
    /// A file of a model that is split into several is missing.
    #[error("`{}` is missing, one of {count} files of its model; download the rest of them", path.display())]
    MissingPart { path: PathBuf, count: usize },
    /// A file is not the part of a model that its name suggests.
    #[error("`{}` is not the part of a model that its name says: {reason}; download all parts again, under their own names", path.display())]
    Part {
        path: PathBuf,
        /// The entry that disagrees.
        reason: String,
    },
    /// A weight file has a name that manifests cannot hold.
    #[error("`{}` has a name with a colon, a backslash or a character that is not printable; rename it", path.display())]
    FileName { path: PathBuf },
    /// The directory holds shards, not a checkpoint.
    #[error("`{}` is a shard directory, not a checkpoint; give the checkpoint it was made from, or use it as it is", dir.display())]
    Shards { dir: PathBuf },
    /// A path that should be a regular file is a directory, a device or a pipe.
    #[error("`{}` is not a regular file; put the file itself there", path.display())]
    NotAFile { path: PathBuf },
    /// A JSON file is implausibly large.
    #[error("`{}` has {len} bytes, more than the {limit} that such a file can have; download it again", path.display())]
    TooLarge { path: PathBuf, len: u64, limit: u64 },
    /// A small file is a link out of the checkpoint.
    #[error(
        "`{}` is a link to `{}`, which is not of this checkpoint, and shards would carry a copy of it; put the file itself there, or take the link away",
        link.display(), target.display()
    )]
    Elsewhere {
        link: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// A small file differs from its first reading.
    #[error(transparent)]
    Small(#[from] SmallFileError),
    /// A file changed while it was read.
    #[error("`{}` became shorter while it was read; try again when nothing writes to it", path.display())]
    Changed { path: PathBuf },
    /// The configuration is damaged.
    #[error("`{}` is damaged ({reason}); download it again", path.display())]
    Config {
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A weight file is damaged.
    #[error("`{}` is damaged: {reason}; download it again", path.display())]
    Header {
        path: PathBuf,
        /// Description of the damage.
        reason: HeaderError,
    },
    /// The index is damaged.
    #[error("`{}` is damaged: {reason}; download it again", path.display())]
    Index {
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A file that the index lists is missing.
    #[error("`{}` is missing, though `{index}` lists it; download the rest of the checkpoint", path.display())]
    Missing { path: PathBuf, index: String },
    /// A tensor that the index lists is not in its file.
    #[error("`{}` lacks the tensor `{tensor}`, though `{index}` lists it there; download both again", path.display())]
    MissingTensor { path: PathBuf, tensor: String, index: String },
    /// Two files hold a tensor of the same name.
    #[error("`{}` holds the tensor `{tensor}`, and so does `{other}`; remove the file that does not belong to the checkpoint", path.display())]
    Twice { path: PathBuf, other: String, tensor: String },
    /// Two tensors have the same name after renaming.
    #[error("`{}` holds two tensors that are `{tensor}`; download it again", path.display())]
    SameName {
        path: PathBuf,
        /// The common name.
        tensor: String,
    },
    /// The checkpoint has more tensors than any known model.
    #[error("`{}` brings the checkpoint above {limit} tensors; this is not a model that was ever published, download it again", path.display())]
    TooManyTensors {
        path: PathBuf,
        /// Maximum accepted number of tensors.
        limit: usize,
    },
    /// Codes whose scales do not fit them.
    #[error("`{}` holds the codes `{tensor}`, {reason}; download both again", path.display())]
    Scales {
        path: PathBuf,
        /// The tensor with the codes.
        tensor: String,
        /// The tensor whose shape or type does not fit.
        reason: String,
    },
    /// Scales, zero points or codes for a matrix that is not quantised.
    #[error(
        "`{}` holds `{tensor}`, a part of the codes of `{matrix}`, whose other parts are missing, or of which config.json does not say how they are packed; take weights and configuration that were published together",
        path.display()
    )]
    NotCodes {
        path: PathBuf,
        tensor: String,
        /// The matrix to which the tensor belongs.
        matrix: String,
    },
    /// Scales of the inputs of a matrix.
    #[error(
        "`{}` holds `{tensor}`, by which the inputs of `{matrix}` are multiplied, which is not supported; take a version of the model without it (AWQ of ModelOpt writes it)",
        path.display()
    )]
    Inputs { path: PathBuf, tensor: String, matrix: String },
    /// A part of an adapter.
    #[error(
        "`{}` holds `{tensor}`, a part of an adapter; merge the adapter into the model first (peft: `merge_and_unload`, then `save_pretrained`), and use the result",
        path.display()
    )]
    Adapter { path: PathBuf, tensor: String },
    /// Packed codes whose groups have another number of columns than the configuration says.
    #[error(
        "`{}` gives a `group_size` of {}, and the scales `{tensor}` of shape {shape:?} are those of groups of {found} columns; download the file again, or correct the entry",
        path.display(),
        group_size(*said)
    )]
    Groups {
        path: PathBuf,
        tensor: String,
        /// Shape of the scales.
        shape: Vec<u64>,
        /// Number of columns per group, from the scales.
        found: u64,
        /// Number of columns per group in the configuration; a very large number if all columns
        /// form one group.
        said: u64,
    },
    /// A tensor that should stack the experts of a layer cannot be cut into them.
    #[error(
        "`{}` holds `{tensor}` of shape {shape:?}, which cannot be cut into experts; check that config.json belongs to these weights",
        path.display()
    )]
    NotStacked {
        path: PathBuf,
        tensor: String,
        /// Shape of the tensor.
        shape: Vec<u64>,
    },
}

impl CheckpointError {
    /// The error for a cause while `path` was read, for `map_err`.
    fn reading(path: &Path) -> impl Fn(io::Error) -> CheckpointError + Copy {
        move |cause| {
            let path = path.to_owned();
            match cause.kind() {
                io::ErrorKind::InvalidInput => CheckpointError::NotAFile { path },
                _ => CheckpointError::Read { path, cause },
            }
        }
    }
}

/// The group size as written in configurations.
fn group_size(columns: u64) -> String {
    if columns == u64::MAX { "-1".to_owned() } else { columns.to_string() }
}

fn check_distinct(dir: &Path, files: &[WeightFile]) -> Result<(), CheckpointError> {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for file in files {
        for tensor in &file.tensors {
            if let Some(other) = seen.insert(&tensor.name, &file.name) {
                return Err(CheckpointError::Twice {
                    path: dir.join(&file.name),
                    other: other.to_owned(),
                    tensor: tensor.name.clone(),
                });
            }
        }
    }
    Ok(())
}
