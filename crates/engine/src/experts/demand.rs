//! Experts that the running layer still needs.

use std::collections::{HashSet, VecDeque};

use sws_format::PieceId;

use crate::reads::is_expert_of;

/// Demand of the layer whose router chose last.
#[derive(Debug, Default)]
pub(super) struct Demand {
    layer: u32,
    /// Tokens of the pass.
    tokens: usize,
    /// Experts that have not been computed.
    needed: Vec<u32>,
    /// Misses without a slot, in disk order.
    queue: VecDeque<PieceId>,
    /// Pieces whose read has failed once for this layer.
    failed: HashSet<PieceId>,
}

impl Demand {
    /// Starts the demand of a layer whose router has chosen these experts for `tokens` tokens.
    pub(super) fn begin(&mut self, layer: u32, tokens: usize, experts: &[u32]) {
        (self.layer, self.tokens) = (layer, tokens);
        self.needed.clear();
        self.needed.extend_from_slice(experts);
        self.queue.clear();
        self.failed.clear();
    }

    /// Number of the layer.
    pub(super) fn layer(&self) -> u32 {
        self.layer
    }

    /// Tokens for which the router has chosen.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Moves to a layer whose router has not chosen yet.
    pub(super) fn enter(&mut self, layer: u32) {
        self.layer = layer;
    }

    /// Needed experts that have not been computed.
    pub(super) fn needed(&self) -> &[u32] {
        &self.needed
    }

    /// True if the layer needs this piece and has not computed it yet.
    pub(super) fn needs(&self, id: PieceId) -> bool {
        is_expert_of(id, self.layer, &self.needed)
    }

    /// Removes computed experts.
    pub(super) fn computed(&mut self, done: impl Fn(u32) -> bool) {
        self.needed.retain(|&expert| !done(expert));
    }

    /// Queues misses behind earlier ones.
    pub(super) fn queue(&mut self, ids: impl IntoIterator<Item = PieceId>) {
        self.queue.extend(ids);
    }

    /// Queues a piece whose read has failed or was given up, ahead of all others.
    pub(super) fn queue_again(&mut self, id: PieceId) {
        if !self.queue.contains(&id) {
            self.queue.push_front(id);
        }
    }

    /// The next miss without a slot.
    pub(super) fn next(&self) -> Option<PieceId> {
        self.queue.front().copied()
    }

    /// Removes the next miss, which has its slot.
    pub(super) fn advance(&mut self) {
        self.queue.pop_front();
    }

    /// True while a miss has no slot.
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Number of needed experts that are resident or in flight.
    pub(super) fn in_hand(&self) -> usize {
        self.needed.len().saturating_sub(self.queue.len())
    }

    /// Records that a read of a needed piece has failed. True if it is the second time.
    pub(super) fn fails_again(&mut self, id: PieceId) -> bool {
        !self.failed.insert(id)
    }

    /// True if a read of this piece has failed in this layer.
    pub(super) fn has_failed(&self, id: PieceId) -> bool {
        self.failed.contains(&id)
    }

    /// Drops all demand when the pass ends.
    pub(super) fn clear(&mut self) {
        self.needed.clear();
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_wait_in_order_and_failures_come_first() {
        let id = |expert| PieceId::expert(3, expert);
        let mut demand = Demand::default();
        demand.begin(3, 1, &[1, 4, 7]);
        demand.queue([id(4), id(7)]);
        assert_eq!((demand.next(), demand.in_hand()), (Some(id(4)), 1));
        demand.advance();
        assert!(
            demand.needs(id(4)) && !demand.needs(id(5)) && !demand.needs(PieceId::expert(2, 4))
        );
        assert!(!demand.fails_again(id(4)) && demand.fails_again(id(4)));
        demand.queue_again(id(4));
        demand.queue_again(id(4));
        assert_eq!((demand.next(), demand.in_hand()), (Some(id(4)), 1));
        demand.advance();
        demand.advance();
        assert!(!demand.is_waiting());
        demand.computed(|expert| expert != 7);
        assert_eq!(demand.needed(), [7]);
        demand.begin(4, 1, &[2]);
        assert!(!demand.has_failed(id(4)), "failures are forgotten with their layer");
    }
}
