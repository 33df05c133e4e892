//! States of a slot.

use sws_format::PieceId;

/// One slot.
#[derive(Debug)]
pub(super) struct SlotEntry<T> {
    pub(super) len: usize,
    pub(super) state: SlotState<T>,
    pub(super) demand: SlotDemand,
}

/// Contents of a slot.
#[derive(Debug)]
pub(super) enum SlotState<T> {
    /// No piece.
    Empty(T),
    /// A piece that is being read. The reader has the payload.
    Loading { piece: PieceId },
    /// A piece in memory.
    Ready { piece: PieceId, payload: T, pins: u32 },
    /// The slot was removed and its payload returned.
    Gone,
}

/// Use of a slot's piece by the running layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotDemand {
    /// The layer does not use the piece.
    None,
    /// The layer needs the piece, and has not computed with it yet.
    Needed,
    /// The layer has computed with the piece.
    Computed,
}

impl<T> SlotEntry<T> {
    /// True if the piece may be evicted. `computed_too` includes experts that the running layer has
    /// computed with.
    pub(super) fn is_evictable(&self, computed_too: bool) -> bool {
        let demanded = match self.demand {
            SlotDemand::None => false,
            SlotDemand::Needed => true,
            SlotDemand::Computed => !computed_too,
        };
        !demanded && matches!(self.state, SlotState::Ready { pins: 0, .. })
    }
}

impl<T> SlotState<T> {
    pub(super) fn piece(&self) -> Option<PieceId> {
        match self {
            SlotState::Loading { piece } | SlotState::Ready { piece, .. } => Some(*piece),
            SlotState::Empty(_) | SlotState::Gone => None,
        }
    }
}
