//! Fills free slots while the disk is idle. Pieces are chosen by the expert usage of earlier runs,
//! the most probable ones first.

use std::collections::VecDeque;

use sws_format::PieceId;

/// Horizon in tokens of the probability by which pieces are chosen.
pub(crate) const WITHIN: usize = 64;

/// Pieces to fill free slots with.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum WarmFill {
    /// No pieces: there is no usage of earlier runs, no slot is free, or all pieces are resident.
    #[default]
    Off,
    /// Pieces to be chosen after the first prompt, which is not over yet.
    AfterFirstPrompt,
    /// Remaining pieces, the most probable first.
    Pending(VecDeque<PieceId>),
}

impl WarmFill {
    /// Begins after the first prompt, with absent pieces and the probability of their use.
    pub(crate) fn begin(&mut self, mut absent: Vec<(f32, PieceId)>) {
        absent.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        *self = WarmFill::Pending(absent.into_iter().map(|(_, id)| id).collect());
    }

    /// Returns the next absent piece, or `None` if there is nothing to fill. Ends filling when no
    /// piece is left.
    pub(crate) fn next(&mut self, is_resident: impl Fn(PieceId) -> bool) -> Option<PieceId> {
        let WarmFill::Pending(pieces) = self else { return None };
        while let Some(&id) = pieces.front()
            && is_resident(id)
        {
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
