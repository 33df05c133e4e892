//! What can go wrong on the way from the device to the pass.

use sws_model::{LoadError, Role, SourceError, WeightsError};
use sws_store::{FetchError, LayoutError, PieceId};

use crate::wait::WaitError;
use sws_cache::NoRoom;

/// Why weights are not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A read failed; it says which piece and which file.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The manifest is wrong.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// What was read can not be computed with.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The pass was given up.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// There is no slot for an expert.
    #[error("{0}; give more memory with --ram")]
    NoSlot(#[from] NoRoom),
    /// What flows through the ring is larger.
    #[error(
        "what streams needs at least {need} bytes to flow through and {have} are set aside for it; give a larger --ram"
    )]
    RingTooSmall {
        /// Bytes needed.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The system grants less memory than it has.
    #[error(
        "the system grants no {bytes} bytes of memory ({cause}); lower --ram, or raise the limit of address space (`ulimit -v`)"
    )]
    Memory {
        /// Asked for.
        bytes: usize,
        /// What it says.
        cause: std::io::Error,
    },
    /// The arena is smaller than its plan.
    #[error(
        "the plan asks for {need} bytes where {have} are free; this is a bug, please report it"
    )]
    NoRoom {
        /// Bytes asked for.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
}

impl StreamError {
    /// A source is asked for a matrix that it does not hold: a fault of ours.
    pub(crate) fn not_resident(piece: PieceId, role: Role) -> SourceError {
        format!(
            "{piece} is not in memory when its {role:?} is asked for; this is a bug, please report it"
        )
        .into()
    }
}

impl From<WeightsError> for StreamError {
    fn from(error: WeightsError) -> Self {
        StreamError::Load(error.into())
    }
}
