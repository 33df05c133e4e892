//! Work of the assembler ahead of the routers: prefetches, pins, and runs ahead on stand-ins.

use std::time::Duration;

use sws_cache::NoRoom;
use sws_cache::policy::Policy;
use sws_format::PieceId;
use sws_model::{Ready, Routed, SourceError};
use sws_store::Priority;

use super::DynamicAssembler;
use crate::error::StreamError;
use crate::experts::verifier::Presence;
use crate::reads::{ReadOrigin, expert_ids, is_expert_of};
use crate::speculation::{
    ExpectedPiece, LIKELY_VICTIM_STEPS, Prefetch, PrefetchOutcome, WarmFill, warm_fill,
};
use crate::stand_ins::Wait;

impl DynamicAssembler {
    /// Books the time since `started`, in which the draft has run.
    pub(super) fn draft_ran(&mut self, started: Duration) {
        let took = self.now().saturating_sub(started);
        if self.forecaster.computes() {
            self.account.draft_took(took);
        }
        self.account.forecast_took(took);
    }

    /// Books a query of the draft that began at `started`, and follows its forecast, if there is a
    /// new one.
    pub(super) fn forecast(&mut self, started: Duration, is_new: bool) {
        let queried = self.now().saturating_sub(started);
        if self.forecaster.computes() {
            self.account.draft_took(queried);
        }
        if is_new {
            self.assemble_from_blueprint();
        }
        let took = self.now().saturating_sub(started);
        self.account.forecast_took(took);
    }

    /// Applies the draft's blueprint: protects resident experts, and prefetches missing ones when
    /// profitable. It replaces earlier forecasts of the same layers. Prefetches that have not begun
    /// are cancelled and scored again.
    fn assemble_from_blueprint(&mut self) {
        if !self.account.governor.on() {
            return;
        }
        for layer in &self.forecaster.blueprint().layers {
            self.prefetcher.follow(layer, |id, probability| self.cache.foresee(id, probability));
        }
        self.withdraw_prefetches();
        self.prefetch();
    }

    /// Issues the prefetches that the prefetcher proposes, once every demanded piece has its slot.
    pub(super) fn prefetch(&mut self) {
        if self.demand.is_waiting() {
            return;
        }
        let most = match self.run_ahead.is_possible() {
            true => self.run_ahead.reads_until_next_poll(self.reads.seconds_per_expert()),
            false => None,
        };
        let at = self.moment();
        let load = self.reads.load();
        let mut round = self.prefetcher.round(&self.account, at, load, most);
        loop {
            let DynamicAssembler { prefetcher, account, cache, reads, tier, .. } = self;
            let is_on_tier = |id| matches!(&*tier, Some(tier) if tier.holds(id));
            let slot_len = |id| reads.slot_len(id);
            let next = prefetcher.next(&mut round, account, cache, is_on_tier, slot_len);
            let Some(prefetch) = next else { return };
            let tried = self.try_prefetch(&prefetch);
            self.prefetcher.tried(&mut round, &self.account, &prefetch, tried);
        }
    }

    /// Issues a prefetch, if it finds a slot or a victim.
    fn try_prefetch(&mut self, prefetch: &Prefetch) -> PrefetchOutcome {
        let &Prefetch { id, bytes, need, priority, origin, .. } = prefetch;
        let worth = |policy: &mut dyn Policy, old: PieceId| {
            prefetch.is_worth(f64::from(policy.use_probability(old, LIKELY_VICTIM_STEPS)))
        };
        match self.cache.begin_if(self.demand.layer(), id, bytes, need, worth) {
            Ok(claim) => {
                // A failed prefetch is harmless: the piece is read once a router demands it.
                let _ = self.issue(id, claim, priority, origin);
                PrefetchOutcome::Issued
            }
            Err(NoRoom::InUse { .. }) => PrefetchOutcome::InUse,
            Err(NoRoom::ExpectedSooner { .. }) => PrefetchOutcome::ExpectedSooner,
            Err(_) => PrefetchOutcome::Refused,
        }
    }

    /// Cancels prefetches of forecasts that the device has not begun. Prefetches of layers computed
    /// ahead stay, as they are more reliable than a draft, and so do prefetches of known experts.
    pub(super) fn withdraw_prefetches(&mut self) {
        for id in self.reads.not_begun() {
            if !self.run_ahead.has_foreseen(id) && !self.prefetcher.is_known(id) {
                self.give_up(id);
            }
        }
    }

    /// Pins a resident piece until its layer's router has chosen.
    pub(super) fn pin(&mut self, id: PieceId) {
        if !self.prefetcher.is_pinned(id) && self.cache.pin(id) {
            self.prefetcher.pinned(id);
        }
    }

    /// Pins the resident experts of later layers. A sweep uses all of them once and in order, so
    /// computed experts are evicted instead.
    pub(super) fn pin_later_layers(&mut self, layer: usize) {
        for later in layer + 1..self.prefetcher.layers() {
            for expert in 0..self.prefetcher.experts_of(later) {
                self.pin(PieceId::expert(later as u32, expert));
            }
        }
    }

    /// Prefetches the next layer of a long prompt, which uses nearly all of its experts.
    pub(super) fn expect_next_layer(&mut self, tokens: usize) {
        let next = self.prefetcher.next_layer(self.demand.layer(), tokens);
        let Some((layer, probability, priority)) = next else { return };
        let experts = 0..self.prefetcher.experts_of(layer);
        for id in self.reads.in_disk_order(expert_ids(layer as u32, experts)) {
            self.pin(id);
            self.prefetcher.expect([ExpectedPiece { id, probability, priority }]);
        }
        self.prefetch();
    }

    /// Handles the experts of a later layer that follow from the tokens of a pass. Resident ones
    /// are pinned, and the others are prefetched.
    pub fn expect_known(&mut self, layer: usize, experts: &[u32]) {
        if !self.prefetcher.enabled {
            return;
        }
        let ids = expert_ids(layer as u32, experts.iter().copied());
        for id in self.reads.in_disk_order(ids) {
            self.pin(id);
            self.prefetcher.expect_known(id);
        }
        self.prefetch();
    }

    /// Ends the forecasts of the running layer and of those before it, now that its router has
    /// chosen. Reads in flight that it needs become demanded; the others are given up, except those
    /// that fill free slots.
    pub(super) fn settle_forecast(&mut self, distinct: &[u32]) {
        let layer = self.demand.layer();
        while let Some(id) = self.prefetcher.unpin_up_to(layer) {
            self.cache.unpin(id);
        }
        self.prefetcher.settle(layer);
        let over = self.reads.ids().into_iter().filter(|id| id.layer() <= Some(layer));
        for id in self.reads.in_disk_order(over.collect::<Vec<_>>()) {
            let read = self.reads.get(id);
            if is_expert_of(id, layer, distinct) {
                self.reads.demand(id, self.ablations.promotion);
            } else if !matches!(read, Some(read) if read.origin == ReadOrigin::WarmFill) {
                self.give_up(id);
            }
        }
    }

    /// Begins to fill free slots after the first pass, whose experts are resident by now, with the
    /// experts most likely to be used next.
    pub(super) fn begin_warm_fill(&mut self) {
        if self.prefetcher.fill != WarmFill::AfterFirstPrompt {
            return;
        }
        let mut absent = Vec::new();
        for layer in 0..self.prefetcher.layers() {
            for expert in 0..self.prefetcher.experts_of(layer) {
                let id = PieceId::expert(layer as u32, expert);
                if !self.cache.contains(id) {
                    absent
                        .push((self.cache.policy_mut().use_probability(id, warm_fill::WITHIN), id));
                }
            }
        }
        self.prefetcher.fill.begin(absent);
    }

    /// Serves a layer computed ahead from resident experts, and from stand-ins for the rest.
    pub(super) fn serve_with_stand_ins(
        &mut self,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let mut weights = self.assembled();
        weights.inexact = true;
        ready(&routed.distinct, &mut weights)
    }

    /// Computes the stand-ins that may count, and demands the experts of those that are too
    /// inaccurate.
    pub(super) fn judge(&mut self, ready: Ready<'_>) -> Result<(), SourceError> {
        let to_judge = std::mem::take(&mut self.run_ahead.to_judge);
        if to_judge.is_empty() {
            return Ok(());
        }
        let mut weights = self.assembled();
        weights.inexact = true;
        weights.verifier = Some(&self.verifier);
        ready(&to_judge, &mut weights)?;
        let refused = weights.refused;
        self.verifier.caught += refused.len() as u64;
        let layer = self.demand.layer();
        let counts = |expert: &u32| !refused.contains(&PieceId::expert(layer, *expert));
        let counted: Vec<u32> = to_judge.into_iter().filter(counts).collect();
        self.computed(&counted);
        let refused = self.reads.in_disk_order(refused);
        self.demand.queue(refused);
        Ok(self.fallback_reassemble()?)
    }

    /// Handles the choice of a layer computed ahead, as far as it is reliable: resident experts are
    /// pinned, and the others are prefetched.
    pub(super) fn foresee(&mut self, layer: usize, routed: &Routed) -> Result<(), StreamError> {
        self.drain()?;
        let probability = self.run_ahead.foresee(layer as u32, routed);
        let ids = expert_ids(layer as u32, routed.distinct.iter().copied());
        for id in self.reads.in_disk_order(ids) {
            self.pin(id);
            let priority = Priority::Speculative;
            self.prefetcher.expect([ExpectedPiece { id, probability, priority }]);
        }
        self.prefetch();
        Ok(())
    }

    /// Starts a run ahead if it is worth it, and only if no prefetch is pending: otherwise known
    /// experts of later layers are already being read.
    pub(super) fn start_run_ahead(&mut self, layer: usize) -> Result<bool, StreamError> {
        if !self.run_ahead.can_start(layer) || !self.account.governor.on() {
            return Ok(false);
        }
        if !self.prefetcher.is_idle() || self.reads.load().prefetches > 0 {
            return Ok(false);
        }
        self.drain()?;
        self.fallback_reassemble()?;
        let wait =
            Wait { missing: self.missing(), seconds_per_expert: self.reads.seconds_per_expert() };
        let starts = self.run_ahead.is_worth_running(self.demand.layer() as usize, wait);
        if starts {
            self.account.runs_ahead();
            self.run_ahead.start(layer);
        }
        Ok(starts)
    }

    /// Continues a run ahead while the experts of the layer where it began are awaited, and
    /// stand-ins cover this one.
    pub(super) fn continue_run_ahead(&mut self, layer: usize) -> Result<bool, StreamError> {
        self.reads.waiter.check()?;
        self.drain()?;
        Ok(self.run_ahead.can_continue(layer) && self.missing() > 0)
    }

    /// Number of the layer's needed experts that are not resident.
    fn missing(&self) -> usize {
        let mut missing = 0;
        for &expert in self.demand.needed() {
            missing += usize::from(self.presence(expert) != Presence::Exact);
        }
        missing
    }
}
