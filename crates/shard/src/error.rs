//! Errors of sharding, verifying and unsharding, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

use sws_kernels::{EncodeError, Encoding};

use sws_format::{CheckpointError, ManifestError, PieceId, SmallFileError, remedy};

/// Errors of [`shard`](super::shard()), [`verify`](super::verify()),
/// [`unshard`](super::unshard()) and [`mirror`](super::mirror()).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ShardError {
    /// The operating system refused a read.
    #[error("`{}` cannot be read ({cause}); {}", path.display(),
            remedy(cause, "check that it is complete and that you may read it"))]
    Read {
        /// The file or directory.
        path: PathBuf,
        cause: io::Error,
    },
    /// The operating system refused a write.
    #[error("`{}` cannot be written ({cause}); {}", path.display(),
            remedy(cause, "check that you may write there"))]
    Write {
        /// The file or directory.
        path: PathBuf,
        cause: io::Error,
    },
    /// The disk became full.
    #[error(
        "`{}` cannot be written, the disk is full; make room and give the same command again, it goes on where it stopped",
        path.display()
    )]
    NoSpace { path: PathBuf },
    /// The disk does not have enough room to begin.
    #[error(
        "`{}` needs {} more and its disk has {} free; make room or choose another directory",
        dir.display(), bytes(*needed), bytes(*free)
    )]
    TooFull { dir: PathBuf, needed: u64, free: u64 },
    /// A copy of this size has no room for a single shard.
    #[error(
        "a copy of {} has no room for a single shard; give --size {}MiB or more",
        bytes(*most), needed.div_ceil(1 << 20)
    )]
    NoRoom { most: u64, needed: u64 },
    /// The system has no memory for a buffer.
    #[error("there is no memory for a buffer of {}; close other programs, or raise the limit of address space (`ulimit -v`)", bytes(*len as u64))]
    Memory {
        /// Bytes of the buffer.
        len: usize,
    },
    /// Threads could not be started.
    #[error(
        "threads cannot be started ({reason}); give a smaller --threads, or raise the limit of threads (`ulimit -u`) or of address space (`ulimit -v`)"
    )]
    Threads { reason: String },
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A small file of the checkpoint cannot be used.
    #[error(transparent)]
    Small(#[from] SmallFileError),
    /// The shards were made from a format that cannot be written.
    #[error("`{}` was made from the GGUF file `{file}`, and GGUF files are not written; download that file again", dir.display())]
    FromGguf {
        /// The directory of the shards.
        dir: PathBuf,
        file: String,
    },
    /// The shards cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The output directory lies in the input directory.
    #[error("`{}` lies in `{}`, from which it is made; choose a directory outside", out.display(), input.display())]
    Inside { out: PathBuf, input: PathBuf },
    /// The output directory holds unrelated files.
    #[error("`{}` holds other files (`{}`); choose an empty or new directory", dir.display(), name.escape_debug())]
    Foreign {
        dir: PathBuf,
        /// One of its files.
        name: String,
    },
    /// The output directory belongs to a job with another model or other options.
    #[error(
        "`{}` holds what was made from another model or with other options; choose another directory, or delete this one to begin anew",
        dir.display()
    )]
    OtherJob { dir: PathBuf },
    /// Another process is writing to the output directory.
    #[error("`{}` is being written by another sws; wait for it, or choose another directory", dir.display())]
    Busy { dir: PathBuf },
    /// The stand-ins would not be smaller than the experts.
    #[error(
        "stand-ins in {stand_ins} are not smaller than experts in {encoding}; leave --stand-ins out"
    )]
    StandIns {
        /// The requested encoding of the stand-ins.
        stand_ins: Encoding,
        /// The encoding of the experts.
        encoding: Encoding,
    },
    /// Stand-ins are requested, but nested experts have their own.
    #[error("experts in nested hold their own stand-ins; leave --stand-ins out")]
    Nested,
    /// The checkpoint has no experts that stand-ins could replace.
    #[error(
        "`{}` has no experts of which {stand_ins} would be a smaller copy; leave --stand-ins out", dir.display()
    )]
    NoExperts {
        dir: PathBuf,
        /// The requested encoding of the stand-ins.
        stand_ins: Encoding,
    },
    /// A tensor's name collides with names that shards use.
    #[error(
        "the tensor `{tensor}` of {piece} has a name that shards need for themselves; rename it in the checkpoint"
    )]
    Name {
        /// The piece of the tensor.
        piece: PieceId,
        tensor: String,
    },
    /// An encoding cannot represent a weight.
    #[error(
        "`{}` has a weight in row {row} of `{tensor}` that {encoding} cannot hold (infinite, NaN or too large); choose an exact encoding such as bf12 or f32",
        path.display()
    )]
    NotFinite { path: PathBuf, tensor: String, row: u64, encoding: Encoding },
    /// A tensor of a packed matrix does not fit the others.
    #[error("`{}` holds `{tensor}`, {reason}; download it again", path.display())]
    Packed {
        path: PathBuf,
        tensor: String,
        /// Description of the mismatch.
        reason: String,
    },
    /// A tensor cannot be encoded or decoded.
    #[error("`{}` holds the tensor `{tensor}`: {cause}", path.display())]
    Encode { path: PathBuf, tensor: String, cause: EncodeError },
    /// The shards no longer have the checkpoint's exact bits.
    #[error(
        "`{}` holds `{tensor}` in {encoding}, which is not exactly what the checkpoint had; give --lossy to have it decoded, or take the original checkpoint",
        dir.display()
    )]
    Lossy {
        dir: PathBuf,
        /// The first such tensor.
        tensor: String,
        encoding: Encoding,
    },
    /// Bytes differ from those that were written.
    #[error("`{}` is damaged: the bytes of `{tensor}` ({piece}) do not match their checksum; copy it again or make the shards again", path.display())]
    Damaged { path: PathBuf, piece: PieceId, tensor: String },
    /// A small file differs from the one that was copied.
    #[error("`{}` {what}; copy it again or make the shards again", path.display())]
    DamagedCopy {
        path: PathBuf,
        /// Description of the damage, as the end of a sentence that begins with the file.
        what: String,
    },
    /// The manifest lacks a part of a tensor of the checkpoint.
    #[error("`{}` has not all parts of `{tensor}`; make the shards again", dir.display())]
    Incomplete { dir: PathBuf, tensor: String },
    /// Another thread failed; its error is the one reported.
    #[error("another thread failed")]
    Stopped,
}

impl ShardError {
    /// The error for a cause while `path` was read, for `map_err`.
    pub(super) fn reading(path: &Path) -> impl Fn(io::Error) -> ShardError + Copy {
        move |cause| ShardError::Read { path: path.to_owned(), cause }
    }

    /// The error for a cause while `path` was written, for `map_err`.
    pub(super) fn writing(path: &Path) -> impl Fn(io::Error) -> ShardError + Copy {
        move |cause| {
            let path = path.to_owned();
            match cause.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    ShardError::NoSpace { path }
                }
                _ => ShardError::Write { path, cause },
            }
        }
    }
}

/// Formats a number of bytes with a binary unit.
fn bytes(n: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in units {
        if n >> shift > 0 {
            return format!("{:.1} {unit}", n as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{n} bytes")
}
