//! The experts of a layer, computed as they become resident.

use sws_cache::NoRoom;
use sws_format::PieceId;
use sws_model::{PassSize, Ready, Routed, SourceError};

use super::DynamicAssembler;
use crate::error::StreamError;
use crate::experts::tier::{OnTier, TierTensor};
use crate::experts::verifier::Presence;
use crate::experts::weights::StandInWeights;
use crate::reads::{Computed, expert_ids};
use crate::wait::Moment;

/// Maximum number of experts computed together while others of their layer wait for slots: few
/// enough to free a slot soon, enough for all threads.
const BATCH_WHILE_OTHERS_WAIT: usize = 4;

impl DynamicAssembler {
    /// Calls `ready` with the experts that the router has chosen, as they become resident.
    pub fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        if self.run_ahead.is_running() {
            let result = self.serve_with_stand_ins(routed, ready);
            return self.or_abandon(result);
        }
        debug_assert_eq!(
            (self.demand.layer() as usize, self.demand.needed().len()),
            (layer, routed.distinct.len())
        );
        if self.prefetcher.enabled {
            let at = self.moment();
            self.account.pace.experts(layer, routed.distinct.len(), at);
        }
        let result = self.serve(ready);
        if self.prefetcher.enabled && result.is_ok() {
            let at = self.moment();
            let unbooked = self.is_unbooked();
            self.account.done(layer, at, unbooked);
        }
        self.or_abandon(result)
    }

    /// True if stand-ins of all experts are in memory.
    pub fn can_draft(&self) -> bool {
        for layer in 0..self.prefetcher.layers() {
            let experts = self.prefetcher.experts_of(layer);
            if !self.run_ahead.stand_ins.covers(layer as u32, experts) {
                return false;
            }
        }
        true
    }

    /// Calls `ready` with the stand-ins of all experts that the router has chosen, whatever else is in
    /// memory: they are the fewest bytes.
    pub fn draft(&mut self, routed: &Routed, ready: Ready<'_>) -> Result<(), SourceError> {
        ready(&routed.distinct, &mut StandInWeights(&self.run_ahead.stand_ins))
    }

    /// Computes the layer's experts: resident ones first, the others as they arrive.
    fn serve(&mut self, ready: Ready<'_>) -> Result<(), SourceError> {
        let experts = self.demand.needed().len();
        let began = self.moment();
        self.judge(ready)?;
        let mut now = Vec::with_capacity(self.demand.needed().len());
        while !self.demand.needed().is_empty() {
            self.drain()?;
            self.verify_again();
            self.fallback_reassemble()?;
            self.prefetch();
            let needed = self.demand.needed();
            now.clear();
            now.extend(needed.iter().filter(|&&e| self.presence(e) == Presence::Exact));
            let held = !self.ablations.arrival_order && now.len() < needed.len();
            let coming = |&expert: &u32| self.presence(expert) == Presence::Coming;
            if now.is_empty() || held && needed.iter().any(coming) {
                if let (true, Some(piece)) = (self.reads.is_empty(), self.demand.next()) {
                    return Err(StreamError::from(NoRoom::InUse { piece }).into());
                }
                if !self.compute_arriving(ready)? {
                    let arrival = self.reads.wait()?;
                    self.land(arrival)?;
                }
                continue;
            }
            if self.demand.is_waiting() {
                now.truncate(BATCH_WHILE_OTHERS_WAIT);
            }
            self.serve_from_tier(&mut now, ready)?;
            if !now.is_empty() {
                let before = self.moment();
                ready(&now, &mut self.assembled())?;
                let took = self.moment().computing(before);
                self.computed(&now);
                self.promote(&now, took);
            }
        }
        self.end_layer_of_tier(experts, began);
        if self.run_ahead.is_possible() {
            self.run_ahead.layer_done(self.moment());
        }
        self.cache.idle();
        self.prefetch();
        Ok(())
    }

    /// Computes those of these experts that the tier holds, and removes them from the list. Experts that it
    /// could not compute are demanded like any other miss.
    fn serve_from_tier(&mut self, now: &mut Vec<u32>, ready: Ready<'_>) -> Result<(), SourceError> {
        let layer = self.demand.layer();
        let before = self.moment();
        let Some(placed) = &mut self.tier else { return Ok(()) };
        let there = now.extract_if(.., |expert| placed.holds(PieceId::expert(layer, *expert)));
        let mut there: Vec<u32> = there.collect();
        if there.is_empty() {
            return Ok(());
        }
        let mut on_tier = OnTier { tier: &mut *placed.tier, refused: Vec::new() };
        ready(&there, &mut on_tier)?;
        let refused = on_tier.refused;
        there.retain(|expert| !refused.contains(expert));
        let took = self.moment().computing(before);
        if let Some(placed) = &mut self.tier {
            placed.computed(there.len(), took);
            if !refused.is_empty() {
                placed.compare();
            }
        }
        self.computed(&there);
        Ok(())
    }

    /// Books experts that were computed on the CPU in so many nanoseconds. Copies those to the tier that should lie
    /// there, and frees their slots.
    fn promote(&mut self, experts: &[u32], took: f64) {
        let layer = self.demand.layer();
        let DynamicAssembler { tier, cache, inventory, run_ahead, reads, watch, .. } = self;
        let Some(tier) = tier else { return };
        let copies = tier.copies();
        tier.placement.computed_here(experts.len(), took);
        for id in expert_ids(layer, experts.iter().copied()) {
            let Some(slot) = cache.get(id) else { continue };
            let tensors = inventory.piece(id).iter().map(|held| {
                let parts = slot.parts(held, &run_ahead.stand_ins)?;
                Some(TierTensor { held: *held, parts })
            });
            let Some(tensors) = tensors.collect::<Option<Vec<TierTensor<'_>>>>() else { continue };
            if tier.promote(id, &tensors, &reads.waiter) {
                cache.release(id);
            }
        }
        // Others may have made room.
        if let Some(watch) = watch.as_ref().filter(|_| tier.copies() > copies) {
            watch.set_stale();
        }
    }

    /// Ends a layer with so many experts, which began at `began`.
    fn end_layer_of_tier(&mut self, experts: usize, began: Moment) {
        let at = self.moment();
        let Some(tier) = &mut self.tier else { return };
        let waited = at.waited.saturating_sub(began.waited);
        let was_on = tier.placement.is_on();
        for id in tier.layer_ends(experts, waited, at) {
            self.cache.release(id);
        }
        let is_left = was_on && !tier.placement.is_on();
        if let Some(watch) = &self.watch {
            watch.tier(|| self.tier_counts());
            if is_left {
                watch.set_stale();
            }
        }
    }

    /// True if the tier holds an expert.
    pub(super) fn is_on_tier(&self, id: PieceId) -> bool {
        matches!(&self.tier, Some(tier) if tier.holds(id))
    }

    /// Computes the layer's last missing expert while it arrives. False if that is not possible.
    fn compute_arriving(&mut self, ready: Ready<'_>) -> Result<bool, SourceError> {
        let (layer, &[expert]) = (self.demand.layer(), self.demand.needed()) else {
            return Ok(false);
        };
        // A matrix that arrives is multiplied with all tokens at once, which would take much memory.
        if self.demand.tokens() > PassSize::STRIP {
            return Ok(false);
        }
        if self.demand.has_failed(PieceId::expert(layer, expert)) {
            return Ok(false);
        }
        let before = self.moment();
        let computed = self.reads.compute_arriving(layer, expert, ready)?;
        let took = self.moment().computing(before);
        let Some(Computed { arrivals, result }) = computed else { return Ok(false) };
        let mut landed = Ok(());
        for arrival in arrivals {
            landed = landed.and(self.land(arrival));
        }
        result?;
        landed?;
        self.computed(&[expert]);
        self.promote(&[expert], took);
        Ok(true)
    }

    /// Marks experts of the layer as computed: their slots may be reused.
    pub(super) fn computed(&mut self, experts: &[u32]) {
        let layer = self.demand.layer();
        for &expert in experts {
            self.cache.computed(PieceId::expert(layer, expert));
        }
        self.demand.computed(|expert| experts.contains(&expert));
    }
}
