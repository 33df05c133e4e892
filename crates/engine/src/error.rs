//! Errors on the way of weights from the device to the pass.

use sws_format::PieceId;
use sws_model::{LoadError, Role, SourceError, WeightsError};
use sws_store::{Arena, FetchError, LayoutError};

use crate::wait::WaitError;
use sws_cache::NoRoom;

/// Reasons why weights are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum StreamError {
    /// A read failed. The error names the piece and the file.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The manifest is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The bytes read are not valid weights.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The wait for a read was cancelled, or the store was closed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// There is no slot for an expert.
    #[error("{0}; give more memory with --ram")]
    NoSlot(#[from] NoRoom),
    /// The ring is too short for the streamed weights.
    #[error(
        "streamed weights need a ring of at least {need} bytes and it has {have}; give a larger --ram"
    )]
    RingTooSmall { need: usize, have: usize },
    /// The system refused to grant memory.
    #[error(
        "the system grants no {bytes} bytes of memory ({cause}); lower --ram, or raise the limit of address space (`ulimit -v`)"
    )]
    Memory {
        bytes: usize,
        /// Cause reported by the system.
        cause: std::io::Error,
    },
    /// The arena is smaller than its plan.
    #[error(
        "the plan asks for {need} bytes where {have} are free; this is a bug, please report it"
    )]
    NoRoom { need: usize, have: usize },
}

impl StreamError {
    /// A source was asked for a matrix that it does not hold, which is a bug.
    pub(crate) fn not_resident(piece: PieceId, role: Role) -> SourceError {
        format!(
            "{piece} is not in memory when its {role:?} is asked for; this is a bug, please report it"
        )
        .into()
    }
}

/// An arena of this length.
pub(crate) fn arena_of(bytes: usize) -> Result<Arena, StreamError> {
    Arena::new(bytes).map_err(|cause| StreamError::Memory { bytes, cause })
}

impl From<WeightsError> for StreamError {
    fn from(error: WeightsError) -> Self {
        StreamError::Load(error.into())
    }
}
