//! A checkpoint as published: safetensors files and a `config.json`.

#[cfg(feature = "io")]
mod open;

use std::io;
use std::path::{Path, PathBuf};

use crate::header::{Header, HeaderError};
use crate::{Configuration, remedy};

/// A checkpoint whose headers have been read and found consistent with its files.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: Configuration,
    files: Vec<WeightFile>,
    fingerprint: String,
}

/// One safetensors file of a checkpoint.
#[derive(Clone, Debug)]
pub struct WeightFile {
    /// File name in the directory of the checkpoint.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// Parsed header, which lists the tensors.
    pub header: Header,
}

impl Checkpoint {
    /// Directory of the checkpoint.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The configuration.
    pub fn config(&self) -> &Configuration {
        &self.config
    }

    /// Weight files, sorted by name. Tensor names are unique across files.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// Fingerprint that identifies this checkpoint; see `docs/format.md`.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Reason that a directory cannot be used as a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    #[error("`{}` is a file; give the directory of the checkpoint", path.display())]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// The directory holds no weights.
    #[error(
        "`{}` holds neither model.safetensors nor model.safetensors.index.json; give the directory of a complete Hugging Face checkpoint",
        dir.display()
    )]
    NoWeights {
        /// The directory.
        dir: PathBuf,
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
    /// The weights are in llama.cpp's format.
    #[error("`{}` is a GGUF file, which is not read; download the safetensors checkpoint it was made from", path.display())]
    Gguf {
        /// One of the GGUF files.
        path: PathBuf,
    },
    /// The directory holds shards, not a checkpoint.
    #[error("`{}` is a shard directory, not a checkpoint; give the checkpoint it was made from, or use it as it is", dir.display())]
    Shards {
        /// The directory.
        dir: PathBuf,
    },
    /// A path that should be a regular file is a directory, a device or a pipe.
    #[error("`{}` is not a regular file; put the file itself there", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A JSON file is implausibly large.
    #[error("`{}` has {len} bytes where at most {limit} make sense; download it again", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Length in bytes.
        len: u64,
        /// Largest accepted length.
        limit: u64,
    },
    /// A file changed while it was read.
    #[error("`{}` became shorter while it was read; try again when nothing writes to it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The configuration is damaged.
    #[error("`{}` is damaged ({reason}); download it again", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A weight file is damaged.
    #[error("`{}` is damaged: {reason}; download it again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        reason: HeaderError,
    },
    /// The index is damaged.
    #[error("`{}` is damaged: {reason}; download it again", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A file that the index lists is missing.
    #[error("`{}` is missing, though `{index}` lists it; download the rest of the checkpoint", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The index.
        index: String,
    },
    /// A tensor that the index lists is not in its file.
    #[error("`{}` lacks the tensor `{tensor}`, though `{index}` lists it there; download both again", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The index.
        index: String,
    },
    /// Two files hold a tensor of the same name.
    #[error("`{}` holds the tensor `{tensor}`, and so does `{other}`; remove the file that does not belong to the checkpoint", path.display())]
    Twice {
        /// One file.
        path: PathBuf,
        /// The other.
        other: String,
        /// The tensor.
        tensor: String,
    },
    /// The checkpoint has more tensors than any model.
    #[error("`{}` brings the checkpoint above {limit} tensors; this is no model that was ever published, download it again", path.display())]
    TooManyTensors {
        /// The file.
        path: PathBuf,
        /// Largest accepted number of tensors.
        limit: usize,
    },
    /// A tensor that should stack the experts of a layer cannot be cut into them.
    #[error(
        "`{}` holds `{tensor}` of shape {shape:?}, which cannot be cut into experts; check that config.json belongs to these weights",
        path.display()
    )]
    NotStacked {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape of the tensor.
        shape: Vec<u64>,
    },
}
