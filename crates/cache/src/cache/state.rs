//! What a slot can be.

use sws_store::PieceId;

/// One slot.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) len: usize,
    pub(super) state: State<T>,
    pub(super) demand: Demand,
}

/// What is in a slot.
#[derive(Debug)]
pub(super) enum State<T> {
    /// Nothing: here is its memory.
    Empty(T),
    /// Its memory is with whoever reads.
    Loading { piece: PieceId },
    /// A piece.
    Ready { piece: PieceId, payload: T, pins: u32 },
    /// The slot is no more; its memory was given up.
    Gone,
}

/// Whether the running layer uses what is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    None,
    /// It does, and has not yet.
    Needed,
    /// It has.
    Computed,
}

impl<T> Entry<T> {
    /// Whether another piece may take this one's place.
    pub(super) fn may_go(&self, computed_too: bool) -> bool {
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
