//! A checkpoint as published: safetensors files and a `config.json`.

#[cfg(feature = "io")]
mod open;

use std::io;
use std::path::{Path, PathBuf};

use crate::header::{Header, HeaderError};
use crate::remedy;

/// A checkpoint whose headers have been read and found consistent with its files.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config_json: Vec<u8>,
    files: Vec<WeightFile>,
    fingerprint: String,
}

/// One safetensors file of a checkpoint.
#[derive(Clone, Debug)]
pub struct WeightFile {
    /// Its name in the directory.
    pub name: String,
    /// Its length.
    pub len: u64,
    /// Its tensors.
    pub header: Header,
}

impl Checkpoint {
    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The bytes of `config.json`.
    pub fn config_json(&self) -> &[u8] {
        &self.config_json
    }

    /// Its weights, sorted by name. No two files hold tensors of one name.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// What tells this checkpoint from every other: see `docs/format.md`.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Why a directory cannot be used as a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("`{}` cannot be read ({cause}); {}", path.display(),
            remedy(cause, "check that it exists and that you may read it"))]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Its reason.
        cause: io::Error,
    },
    /// A file where a directory should be.
    #[error("`{}` is a file; give the directory of the checkpoint", path.display())]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// There are no weights.
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
        /// One of them.
        path: PathBuf,
    },
    /// The weights are for llama.cpp.
    #[error("`{}` is a GGUF file, which is not read; download the safetensors checkpoint it was made from", path.display())]
    Gguf {
        /// One of them.
        path: PathBuf,
    },
    /// The directory is one of ours.
    #[error("`{}` is a shard directory, not a checkpoint; give the checkpoint it was made from, or use it as it is", dir.display())]
    Shards {
        /// The directory.
        dir: PathBuf,
    },
    /// A name that is a directory, a device or a pipe.
    #[error("`{}` is not a regular file; put the file itself there", path.display())]
    NotAFile {
        /// The name.
        path: PathBuf,
    },
    /// A file that should hold a little JSON is absurdly large.
    #[error("`{}` has {len} bytes where at most {limit} make sense; download it again", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        len: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A file changed while it was read.
    #[error("`{}` became shorter while it was read; try again when nothing writes to it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A weight file is damaged.
    #[error("`{}` is damaged: {reason}; download it again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: HeaderError,
    },
    /// The index is damaged.
    #[error("`{}` is damaged: {reason}; download it again", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that the index lists is not there.
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
    /// Two files hold tensors of one name.
    #[error("`{}` holds the tensor `{tensor}`, and so does `{other}`; remove the file that does not belong to the checkpoint", path.display())]
    Twice {
        /// One file.
        path: PathBuf,
        /// The other.
        other: String,
        /// The tensor.
        tensor: String,
    },
    /// More tensors than any model has.
    #[error("`{}` brings the checkpoint above {limit} tensors; this is no model that was ever published, download it again", path.display())]
    TooManyTensors {
        /// The file.
        path: PathBuf,
        /// The most that is accepted.
        limit: usize,
    },
    /// A tensor that should stack the experts of a layer does not.
    #[error(
        "`{}` holds `{tensor}` of shape {shape:?}, which cannot be cut into experts; check that config.json belongs to these weights",
        path.display()
    )]
    NotStacked {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
}
