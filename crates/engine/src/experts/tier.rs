//! A further tier of experts: copies that lie outside memory, and are computed there.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sws_cache::placement::{Placement, TierChange, TierPlace};
use sws_format::PieceId;
use sws_kernels::{Encoding, Matrix};
use sws_model::{ExpertBatch, ExpertExecutor, HeldTensor, Role, SourceError, Weights};

use crate::error::StreamError;
use crate::reads::no_vector;
use crate::speculation::nanos;
use crate::wait::{Moment, Waiter};

/// Copies of experts outside memory, for example on a graphics card, with the executor that computes them.
///
/// A tier that fails holds no expert any more. What it was asked for is then read from the drive like any
/// other miss, so no result changes.
pub trait ExpertTier: fmt::Debug + Send {
    /// True if an expert is held.
    fn holds(&self, expert: PieceId) -> bool;

    /// True if another expert may be held.
    fn has_room(&self) -> bool;

    /// True if an expert of such tensors may be copied.
    fn takes(&self, tensors: &[TierTensor<'_>]) -> bool;

    /// Copies an expert, whose bytes are verified. True if it is held afterwards.
    fn promote(&mut self, expert: PieceId, tensors: &[TierTensor<'_>]) -> bool;

    /// Forgets an expert, whose room is free then.
    fn demote(&mut self, expert: PieceId);

    /// The executor of the experts that are held. It returns the experts that it could not compute.
    fn executor(&mut self) -> &mut dyn ExpertExecutor;

    /// Its memory in use, and its state.
    fn usage(&self) -> TierUsage;
}

/// The memory of a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierUsage {
    /// Experts that it holds.
    pub held: u64,
    /// Experts that it has room for.
    pub slots: u64,
    /// Bytes of the experts that it holds.
    pub bytes: u64,
    /// Limit of all its bytes.
    pub limit: u64,
    /// The reason in one sentence why it is not used any more.
    pub failure: Option<String>,
}

/// Counts of a tier since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierCounts {
    /// Its memory, and its state.
    #[serde(flatten)]
    pub usage: TierUsage,
    /// True if experts move to it; false while it is tried, or idle because it is slower.
    pub is_on: bool,
    /// Experts that were computed on it.
    pub hits: u64,
    /// Experts that were copied to it.
    pub copies: u64,
}

/// A tier with the decisions about it.
#[derive(Debug)]
pub(super) struct PlacedTier {
    pub(super) tier: Box<dyn ExpertTier>,
    pub(super) placement: Placement,
    hits: u64,
    copies: u64,
    /// Experts of the running layer that were computed on the tier.
    there: usize,
    /// The end of the last layer, or the beginning of the pass.
    last: Moment,
}

impl PlacedTier {
    pub(super) fn new(tier: Box<dyn ExpertTier>, governed: bool) -> PlacedTier {
        let placement = Placement::new(governed);
        let last = Moment::default();
        PlacedTier { tier, placement, hits: 0, copies: 0, there: 0, last }
    }

    /// True if an expert is to be computed on the tier.
    pub(super) fn holds(&self, expert: PieceId) -> bool {
        self.placement.is_used() && self.tier.holds(expert)
    }

    /// The experts that are held.
    pub(super) fn pieces(&self) -> impl Iterator<Item = PieceId> {
        self.placement.held().iter().copied()
    }

    /// Starts a pass.
    pub(super) fn pass_begins(&mut self, at: Moment) {
        self.placement.pass_begins();
        self.last = at;
    }

    /// Starts a layer of a pass of so many tokens.
    pub(super) fn layer_begins(&mut self, tokens: usize) {
        self.placement.layer_begins(tokens);
        self.there = 0;
    }

    /// Books experts that were computed on the tier in so many nanoseconds.
    pub(super) fn computed(&mut self, experts: usize, time: f64) {
        self.placement.computed_there(experts, time);
        self.there += experts;
        self.hits += experts as u64;
    }

    /// Copies an expert that was computed on the CPU, if it is used enough. True if its slot is not needed then.
    pub(super) fn promote(
        &mut self,
        expert: PieceId,
        tensors: &[TierTensor<'_>],
        waiter: &Waiter,
    ) -> bool {
        if self.tier.holds(expert) || !self.tier.takes(tensors) {
            return false;
        }
        let has_room = self.tier.has_room();
        let Some(place) = self.placement.place(expert, has_room) else { return false };
        if let TierPlace::Of(victim) = place {
            self.tier.demote(victim);
        }
        let before = waiter.moment();
        let is_held = self.tier.promote(expert, tensors);
        if is_held {
            self.copies += 1;
            self.placement.copied(expert, place, waiter.moment().computing(before));
        }
        self.compare();
        is_held && self.placement.is_on()
    }

    /// Forgets experts that the tier has lost, or demoted for one that it refused.
    pub(super) fn compare(&mut self) {
        let PlacedTier { tier, placement, .. } = self;
        placement.keep(|expert| tier.holds(expert));
    }

    /// Ends a layer with so many experts, for which the pass has waited so long. Returns the experts that need no slots
    /// any more.
    pub(super) fn layer_ends(
        &mut self,
        experts: usize,
        waited: Duration,
        at: Moment,
    ) -> Vec<PieceId> {
        let elapsed = nanos(at.now.saturating_sub(self.last.now));
        self.last = at;
        let here = experts.saturating_sub(self.there);
        match self.placement.layer_ends(here, nanos(waited), elapsed) {
            None => Vec::new(),
            Some(TierChange::Free) => self.pieces().collect(),
            Some(TierChange::Forget) => {
                for &expert in self.placement.held() {
                    self.tier.demote(expert);
                }
                self.placement.forget();
                Vec::new()
            }
        }
    }

    /// Experts that were copied.
    pub(super) fn copies(&self) -> u64 {
        self.copies
    }

    /// Counts since the start.
    pub(super) fn counts(&self) -> TierCounts {
        let PlacedTier { hits, copies, .. } = *self;
        let usage = self.tier.usage();
        let is_on = self.placement.is_on() && usage.failure.is_none();
        TierCounts { usage, is_on, hits, copies }
    }
}

/// A tensor of an expert.
#[derive(Clone, Copy, Debug)]
pub struct TierTensor<'a> {
    /// Its role, encoding and shape.
    pub held: HeldTensor,
    /// Its parts; those that its encoding lacks are empty.
    pub parts: [&'a [u8]; Encoding::MOST_PARTS],
}

/// Experts of the tier, as the forward pass sees them: through their executor alone.
pub(super) struct OnTier<'a> {
    pub(super) tier: &'a mut dyn ExpertTier,
    /// Experts that it could not compute.
    pub(super) refused: Vec<u32>,
}

impl Weights for OnTier<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        no_vector(piece, role)
    }

    fn matrix(&self, _: PieceId, _: Role) -> Option<Matrix<'_>> {
        None
    }

    fn executor(&mut self) -> Option<&mut dyn ExpertExecutor> {
        Some(self)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        _: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        Err(StreamError::not_resident(piece, role))
    }
}

impl ExpertExecutor for OnTier<'_> {
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        let refused = self.tier.executor().compute(batch, outputs)?;
        self.refused.extend(&refused);
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use sws_format::Clock;

    use super::*;

    /// A tier with room for one expert, which may refuse copies.
    #[derive(Debug)]
    struct OneExpert {
        held: Option<PieceId>,
        refuses: Arc<AtomicBool>,
    }

    impl ExpertTier for OneExpert {
        fn holds(&self, expert: PieceId) -> bool {
            self.held == Some(expert)
        }

        fn has_room(&self) -> bool {
            self.held.is_none()
        }

        fn takes(&self, _: &[TierTensor<'_>]) -> bool {
            true
        }

        fn promote(&mut self, expert: PieceId, _: &[TierTensor<'_>]) -> bool {
            let takes = !self.refuses.load(Ordering::Relaxed);
            if takes {
                self.held = Some(expert);
            }
            takes
        }

        fn demote(&mut self, expert: PieceId) {
            self.held.take_if(|held| *held == expert);
        }

        fn executor(&mut self) -> &mut dyn ExpertExecutor {
            unreachable!("nothing is computed")
        }

        fn usage(&self) -> TierUsage {
            TierUsage { held: self.held.iter().count() as u64, slots: 1, ..TierUsage::default() }
        }
    }

    #[test]
    fn a_victim_whose_replacement_was_refused_is_not_held() {
        let refuses = Arc::new(AtomicBool::new(false));
        let tier = OneExpert { held: None, refuses: Arc::clone(&refuses) };
        let mut placed = PlacedTier::new(Box::new(tier), true);
        let waiter = Waiter::new(Clock::simulated());
        let mut at = Moment::default();
        // A pass whose router chooses one expert, which takes a tenth of the time on the tier.
        let mut pass = |placed: &mut PlacedTier, expert: u32| {
            placed.pass_begins(at);
            placed.layer_begins(1);
            placed.placement.chosen(0, &[expert], &[]);
            let id = PieceId::expert(0, expert);
            match placed.holds(id) {
                true => placed.computed(1, 1e4),
                false => {
                    placed.placement.computed_here(1, 1e5);
                    placed.promote(id, &[], &waiter);
                }
            }
            at.now += Duration::from_millis(1);
            placed.layer_ends(1, Duration::ZERO, at);
            let is_held = placed.placement.held().iter().all(|&id| placed.tier.holds(id));
            assert!(is_held, "{placed:?}");
            placed.tier.usage().held
        };
        for number in 0..1000 {
            pass(&mut placed, number % 2);
        }
        assert_eq!(placed.placement.held().len(), 1);
        refuses.store(true, Ordering::Relaxed);
        // Uses of the new one outgrow those of the held one, which makes room.
        let demoted = (0..10_000).find(|_| pass(&mut placed, 2) == 0);
        assert!(demoted.is_some(), "{placed:?}");
        assert_eq!(placed.placement.held(), []);
    }
}
