//! Tickets, priorities, completions and errors of fetches.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sws_format::{PieceId, with_remedy};

use crate::Slot;
use crate::layout::{LayoutError, PieceLayout};

/// Identifier of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// Urgency of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Needed now. Demanded fetches are served first, in the order of the demands.
    Demanded,
    /// Certain to be needed later. It is read while no demanded fetch is queued.
    Ahead,
    /// Possibly needed later. It is read while nothing else is queued or on the device, in chunks
    /// of at most 1 MiB, one at a time.
    Speculative,
}

/// End of a fetch, which returns the slot to the caller.
#[derive(Debug)]
pub struct Completion {
    /// The fetch that ended.
    pub ticket: Ticket,
    /// The bytes that were read and their places in the slot.
    pub layout: Arc<PieceLayout>,
    /// The slot. After an error its contents are unspecified.
    pub slot: Slot,
    /// `Ok` if every byte was read and agrees with its checksum.
    pub result: Result<(), FetchError>,
    /// Times of the fetch.
    pub timing: Timing,
}

/// Times of a fetch, by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Time of the request.
    pub submitted: Duration,
    /// Time at which its first read was issued; `None` if none was.
    pub started: Option<Duration>,
    /// Time at which it was complete and verified, or had failed.
    pub finished: Duration,
    /// Time spent on its checksums.
    pub checksum: Duration,
}

/// Outcome of cancelling a fetch.
#[derive(Debug)]
pub enum Cancelled {
    /// No part of the fetch was being read. The slot is returned, and no completion follows.
    Withdrawn(Slot),
    /// The fetch ends after the chunks being read, with a completion whose error is
    /// [`FetchError::Cancelled`].
    Stopping,
    /// The fetch had already ended, and its completion was sent.
    Finished,
}

/// The slot is too small for the read, which was not started.
#[derive(Debug, thiserror::Error)]
#[error("the slot has {have} bytes and the read needs {need}")]
#[allow(missing_docs)]
pub struct SlotTooSmall {
    pub slot: Slot,
    pub need: usize,
    /// Bytes in the slot.
    pub have: usize,
}

/// Reason that a fetch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FetchError {
    /// The read could not be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device or the file system reported an error.
    #[error("{}: piece `{piece}` can not be read: {}", file.display(),
            with_remedy(source, "check the disk, then the files with `sws verify`"))]
    Read {
        piece: PieceId,
        file: PathBuf,
        /// Cause reported by the operating system.
        source: io::Error,
    },
    /// The file is shorter than the manifest says.
    #[error("{}: piece `{piece}` needs {wanted} bytes at {offset} and {got} came; the file was cut \
             short: make or copy it again", file.display())]
    Short {
        piece: PieceId,
        file: PathBuf,
        /// Offset of the read in the file.
        offset: u64,
        /// Number of bytes expected.
        wanted: usize,
        /// Number of bytes read.
        got: usize,
    },
    /// The bytes do not agree with their checksum, even after a second read.
    #[error("{}: the bytes of {tensor} (piece `{piece}`) at {offset} do not agree with their \
             checksum; find all such with `sws verify` and shard again what it names",
            file.display())]
    Corrupt {
        piece: PieceId,
        tensor: String,
        file: PathBuf,
        /// Offset of the block that the checksum covers.
        offset: u64,
    },
    /// The bytes of a file without checksums differ from those of the first read.
    #[error("{}: the bytes of {tensor} (piece `{piece}`) at {offset} are not those read before; the \
             file was changed or the disk fails: copy it again, or shard the checkpoint, which adds \
             checksums", file.display())]
    Changed {
        piece: PieceId,
        tensor: String,
        file: PathBuf,
        /// Offset of the block.
        offset: u64,
    },
    /// Verification of the bytes panicked.
    #[error(
        "piece `{piece}` was not verified, as the program failed while it was checking it; this \
             is a bug, please report it"
    )]
    Unverified { piece: PieceId },
    /// The arena has no room for a slot.
    #[error("piece `{piece}` needs a slot of {need} bytes and the arena has none")]
    NoSlot { piece: PieceId, need: usize },
    /// The fetch was cancelled, or the store was closed.
    #[error("the read was cancelled")]
    Cancelled,
}
