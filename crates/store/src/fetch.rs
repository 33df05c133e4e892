//! What a fetch is called, how it ends, and what can go wrong.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::layout::{LayoutError, PieceLayout};
use crate::{PieceId, Slot, remedy};

/// The name of a fetch under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// Who waits for a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody: it is next after those that were demanded before.
    Demanded,
    /// Somebody later, for certain: it is read while nothing demanded waits.
    Ahead,
    /// Perhaps somebody later: it is read while nothing else is waiting or being read, in
    /// chunks of at most 1 MiB, of which one is under way at any time.
    Speculative,
}

/// How a fetch ended. The slot is the caller's again.
#[derive(Debug)]
pub struct Completion {
    /// Which fetch.
    pub ticket: Ticket,
    /// What was read and where it lies in the slot.
    pub layout: Arc<PieceLayout>,
    /// The slot. After an error its contents mean nothing.
    pub slot: Slot,
    /// Whether every byte was read and agrees with its checksum.
    pub result: Result<(), FetchError>,
    /// When.
    pub timing: Timing,
}

/// When a fetch made progress, in the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// When it was asked for.
    pub submitted: Duration,
    /// When its first byte was asked of the device; none if it never was.
    pub started: Option<Duration>,
    /// When it was complete and verified.
    pub finished: Duration,
    /// How long its checksums took.
    pub checksum: Duration,
}

/// What became of a fetch that is no longer wanted.
#[derive(Debug)]
pub enum Cancelled {
    /// Nothing of it was being read: here is the slot, and no completion will come.
    Withdrawn(Slot),
    /// It ends after the chunk being read, with a completion that says [`FetchError::Cancelled`].
    Stopping,
    /// It was over before; its completion is in the channel or was.
    Finished,
}

/// A fetch that was not begun.
#[derive(Debug, thiserror::Error)]
#[error("the slot has {have} bytes and the read needs {need}")]
pub struct SlotTooSmall {
    /// The slot, unused.
    pub slot: Slot,
    /// Bytes needed.
    pub need: usize,
    /// Bytes there are.
    pub have: usize,
}

/// Why a fetch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// There is nothing to read.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device or the file system refused.
    #[error("{}: piece `{piece}` can not be read: {source}; {}", file.display(),
            remedy(source, "check the disk, then the files with `sws verify`"))]
    Read {
        /// The piece.
        piece: PieceId,
        /// The file.
        file: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Fewer bytes came than the file should have.
    #[error("{}: piece `{piece}` needs {wanted} bytes at {offset} and {got} came; the file was cut \
             short: make or copy it again", file.display())]
    Short {
        /// The piece.
        piece: PieceId,
        /// The file.
        file: PathBuf,
        /// Where the read began.
        offset: u64,
        /// Bytes there should have been.
        wanted: usize,
        /// Bytes there were.
        got: usize,
    },
    /// The bytes are not those that were written, and a second reading did not help.
    #[error("{}: the bytes of {tensor} (piece `{piece}`) at {offset} do not agree with their \
             checksum; find all such with `sws verify` and shard again what it names",
            file.display())]
    Corrupt {
        /// The piece.
        piece: PieceId,
        /// The tensor.
        tensor: String,
        /// The file.
        file: PathBuf,
        /// Where the run of bytes begins that the checksum covers.
        offset: u64,
    },
    /// The bytes of a file without checksums are not those that were read the first time.
    #[error("{}: the bytes of {tensor} (piece `{piece}`) at {offset} are not those read before; the \
             file was changed or the disk fails: copy it again, or shard the checkpoint, which adds \
             checksums", file.display())]
    Changed {
        /// The piece.
        piece: PieceId,
        /// The tensor.
        tensor: String,
        /// The file.
        file: PathBuf,
        /// Where the run of bytes begins.
        offset: u64,
    },
    /// Checking its bytes ended in a panic.
    #[error(
        "piece `{piece}` was not verified, as the program failed while it was checking it; this \
             is a bug, please report it"
    )]
    Unverified {
        /// The piece.
        piece: PieceId,
    },
    /// There is no memory for a slot.
    #[error("piece `{piece}` needs a slot of {need} bytes and the arena has none")]
    NoSlot {
        /// The piece.
        piece: PieceId,
        /// Bytes needed.
        need: usize,
    },
    /// It was cancelled, or the store was closed.
    #[error("the read was cancelled")]
    Cancelled,
}
