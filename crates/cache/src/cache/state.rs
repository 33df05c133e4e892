//! States of a slot.

use sws_store::PieceId;

/// One slot.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) len: usize,
    pub(super) state: State<T>,
    pub(super) demand: Demand,
}

/// Contents of a slot.
#[derive(Debug)]
pub(super) enum State<T> {
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
pub(super) enum Demand {
    /// The layer does not use it.
    None,
    /// The layer has still to compute with it.
    Needed,
    /// The layer has computed with it.
    Computed,
}

impl<T> Entry<T> {
    /// True if the piece may be evicted. `computed_too` includes experts that the running layer has
    /// computed with.
    pub(super) fn is_evictable(&self, computed_too: bool) -> bool {
        let demanded = match self.demand {
            Demand::None => false,
            Demand::Needed => true,
            Demand::Computed => !computed_too,
        };
        !demanded && matches!(self.state, State::Ready { pins: 0, .. })
    }
}

impl<T> State<T> {
    pub(super) fn piece(&self) -> Option<PieceId> {
        match self {
            State::Loading { piece } | State::Ready { piece, .. } => Some(*piece),
            State::Empty(_) | State::Gone => None,
        }
    }
}
