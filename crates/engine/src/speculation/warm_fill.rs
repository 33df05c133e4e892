//! Fills free slots with what earlier runs have learned, while the disk has nothing else to do.

use std::collections::VecDeque;

use sws_store::PieceId;

/// Tokens within which a piece has to be probable.
pub(crate) const WITHIN: usize = 64;

/// The pieces that free slots are filled with.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum WarmFill {
    /// None: nothing was learned, or no slot is free any more.
    #[default]
    Off,
    /// Those that are probable after the first prompt, which is not through yet.
    AfterFirstPrompt,
    /// These, the most probable first.
    Pending(VecDeque<PieceId>),
}

impl WarmFill {
    /// The first prompt is through: pieces that are not resident, with the probability of their use.
    pub(crate) fn begin(&mut self, mut absent: Vec<(f32, PieceId)>) {
        absent.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        *self = WarmFill::Pending(absent.into_iter().map(|(_, id)| id).collect());
    }

    /// The next piece that is not resident; none if filling is off, or now over.
    pub(crate) fn next(&mut self, is_resident: impl Fn(PieceId) -> bool) -> Option<PieceId> {
        let WarmFill::Pending(pieces) = self else { return None };
        while pieces.front().is_some_and(|&id| is_resident(id)) {
            pieces.pop_front();
        }
        let next = pieces.front().copied();
        if next.is_none() {
            *self = WarmFill::Off;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_absent_piece_is_next() {
        let id = |expert| PieceId::expert(0, expert);
        let mut fill = WarmFill::AfterFirstPrompt;
        assert_eq!(fill.next(|_| false), None, "the first prompt is not through");
        fill.begin(vec![(0.1, id(1)), (0.7, id(2)), (0.7, id(0)), (0.3, id(3))]);
        assert_eq!(fill.next(|_| false), Some(id(0)));
        assert_eq!(fill.next(|piece| piece == id(0)), Some(id(2)));
        assert_eq!(fill.next(|piece| piece != id(1)), Some(id(1)));
        assert_eq!(fill.next(|_| true), None);
        assert_eq!(fill, WarmFill::Off);
    }
}
