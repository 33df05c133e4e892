//! What can go wrong, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use sws_kernels::{EncodeError, Encoding};

use crate::{CheckpointError, ManifestError, PieceId, SmallFileError, remedy};

/// Why shards could not be made, verified or turned back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The operating system refused to let us read.
    #[error("`{}` cannot be read ({cause}); {}", path.display(),
            remedy(cause, "check that it is complete and that you may read it"))]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Its reason.
        cause: io::Error,
    },
    /// The operating system refused to let us write.
    #[error("`{}` cannot be written ({cause}); {}", path.display(),
            remedy(cause, "check that you may write there"))]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Its reason.
        cause: io::Error,
    },
    /// The disk became full.
    #[error(
        "`{}` cannot be written, the disk is full; make room and give the same command again, it goes on where it stopped",
        path.display()
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
    },
    /// The disk is too full to begin.
    #[error(
        "`{}` needs {} more and its disk has {} free; make room or choose another directory",
        dir.display(), bytes(*needed), bytes(*free)
    )]
    TooFull {
        /// The output directory.
        dir: PathBuf,
        /// What is needed.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// The system has no memory for a buffer.
    #[error("there is no memory for a buffer of {}; close other programs, or raise the limit of address space (`ulimit -v`)", bytes(*len as u64))]
    Memory {
        /// Its length.
        len: usize,
    },
    /// Threads could not be started.
    #[error(
        "threads cannot be started ({reason}); give a smaller --threads, or raise the limit of threads (`ulimit -u`) or of address space (`ulimit -v`)"
    )]
    Threads {
        /// The system's reason.
        reason: String,
    },
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A small file of the checkpoint cannot be used.
    #[error(transparent)]
    Small(#[from] SmallFileError),
    /// The shards cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The output would land in the input.
    #[error("`{}` lies in `{}`, from which it is made; choose a directory outside", out.display(), input.display())]
    Inside {
        /// The output directory.
        out: PathBuf,
        /// The input directory.
        input: PathBuf,
    },
    /// The output directory holds something else.
    #[error("`{}` holds other files (`{}`); choose an empty or new directory", dir.display(), name.escape_debug())]
    Foreign {
        /// The output directory.
        dir: PathBuf,
        /// One of its files.
        name: String,
    },
    /// The output directory was begun with something else.
    #[error(
        "`{}` holds what was made from another model or with other options; choose another directory, or delete this one to begin anew",
        dir.display()
    )]
    OtherJob {
        /// The output directory.
        dir: PathBuf,
    },
    /// Another process is at it.
    #[error("`{}` is being written by another sws; wait for it, or choose another directory", dir.display())]
    Busy {
        /// The output directory.
        dir: PathBuf,
    },
    /// Stand-ins that are no smaller than what they stand in for.
    #[error(
        "stand-ins in {stand_ins} are not smaller than experts in {encoding}; leave --stand-ins out"
    )]
    StandIns {
        /// What was asked for.
        stand_ins: Encoding,
        /// The encoding of the experts.
        encoding: Encoding,
    },
    /// Nothing that stand-ins could stand in for.
    #[error(
        "`{}` has no experts of which {stand_ins} would be a smaller copy; leave --stand-ins out", dir.display()
    )]
    NoExperts {
        /// The checkpoint.
        dir: PathBuf,
        /// What was asked for.
        stand_ins: Encoding,
    },
    /// A tensor's name collides with those of a shard.
    #[error(
        "the tensor `{tensor}` of {piece} has a name that shards need for themselves; rename it in the checkpoint"
    )]
    Name {
        /// Its piece.
        piece: PieceId,
        /// The tensor.
        tensor: String,
    },
    /// A weight that an encoding has no code for.
    #[error(
        "`{}` has a weight in row {row} of `{tensor}` that {encoding} cannot hold (infinite, NaN or too large); choose an exact encoding such as bf12 or f32",
        path.display()
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The row.
        row: u64,
        /// The encoding.
        encoding: Encoding,
    },
    /// A tensor cannot be encoded or had back.
    #[error("`{}` holds the tensor `{tensor}`: {cause}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Why.
        cause: EncodeError,
    },
    /// The shards do not have the checkpoint's bits any more.
    #[error(
        "`{}` holds `{tensor}` in {encoding}, which is not exactly what the checkpoint had; give --lossy to have it decoded, or take the original checkpoint",
        dir.display()
    )]
    Lossy {
        /// The shard directory.
        dir: PathBuf,
        /// The first such tensor.
        tensor: String,
        /// Its encoding.
        encoding: Encoding,
    },
    /// Bytes are not those that were written.
    #[error("`{}` is damaged: the bytes of `{tensor}` ({piece}) do not match their checksum; copy it again or make the shards again", path.display())]
    Damaged {
        /// The shard.
        path: PathBuf,
        /// The piece.
        piece: PieceId,
        /// The tensor.
        tensor: String,
    },
    /// A small file is not the one that was copied.
    #[error("`{}` {what}; copy it again or make the shards again", path.display())]
    DamagedCopy {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A small file that would be copied lies elsewhere.
    #[error(
        "`{}` is a link to `{}`, which is not of this checkpoint, and shards would carry a copy of it; put the file itself there, or take the link away",
        link.display(), target.display()
    )]
    Elsewhere {
        /// The link.
        link: PathBuf,
        /// What it leads to.
        target: PathBuf,
    },
    /// The manifest does not describe all of a checkpoint's tensor.
    #[error("`{}` has not all parts of `{tensor}`; make the shards again", dir.display())]
    Incomplete {
        /// The shard directory.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Another thread failed; its error is the one to tell.
    #[error("another thread failed")]
    Stopped,
}

impl ShardError {
    pub(super) fn reading(path: &Path, cause: io::Error) -> ShardError {
        ShardError::Read { path: path.to_owned(), cause }
    }

    pub(super) fn writing(path: &Path, cause: io::Error) -> ShardError {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ShardError::NoSpace { path }
            }
            _ => ShardError::Write { path, cause },
        }
    }
}

/// A number of bytes for people.
fn bytes(n: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| n >> shift > 0) {
        Some((shift, unit)) => format!("{:.1} {unit}", n as f64 / (1u64 << shift) as f64),
        None => format!("{n} bytes"),
    }
}
