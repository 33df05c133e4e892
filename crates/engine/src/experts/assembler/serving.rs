//! The experts of a layer, computed as they become resident.

use sws_cache::NoRoom;
use sws_format::PieceId;
use sws_model::{PassSize, Ready, Routed, SourceError};

use super::DynamicAssembler;
use crate::error::StreamError;
use crate::experts::verifier::Presence;
use crate::experts::weights::StandInWeights;
use crate::reads::Computed;

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
        let experts = |layer| {
            let ids = 0..self.prefetcher.experts_of(layer);
            ids.map(move |expert| PieceId::expert(layer as u32, expert))
        };
        let mut all = (0..self.prefetcher.layers()).flat_map(experts);
        all.all(|id| self.run_ahead.stand_ins.contains(id))
    }

    /// Calls `ready` with the stand-ins of all experts that the router has chosen, whatever else is in
    /// memory: they are the fewest bytes.
    pub fn draft(&mut self, routed: &Routed, ready: Ready<'_>) -> Result<(), SourceError> {
        ready(&routed.distinct, &mut StandInWeights(&self.run_ahead.stand_ins))
    }

    /// Computes the layer's experts: resident ones first, the others as they arrive.
    fn serve(&mut self, ready: Ready<'_>) -> Result<(), SourceError> {
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
            ready(&now, &mut self.assembled())?;
            self.computed(&now);
        }
        if self.run_ahead.is_possible() {
            self.run_ahead.layer_done(self.moment());
        }
        self.cache.idle();
        self.prefetch();
        Ok(())
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
        let computed = self.reads.compute_arriving(layer, expert, ready)?;
        let Some(Computed { arrivals, result }) = computed else { return Ok(false) };
        let mut landed = Ok(());
        for arrival in arrivals {
            landed = landed.and(self.land(arrival));
        }
        result?;
        landed?;
        self.computed(&[expert]);
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
