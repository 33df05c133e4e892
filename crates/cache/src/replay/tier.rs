//! A tier of experts beside the cache of a replay.

use std::collections::HashSet;

use sws_format::PieceId;

use crate::PredictiveCache;
use crate::placement::{Placement, TierChange, TierPlace};

/// A tier of experts, which are placed there as by an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayTier {
    /// Number of experts that it has room for.
    pub slots: usize,
    /// True to use it only where it is faster, by `times`.
    pub governed: bool,
    /// Times by which experts are placed.
    pub times: AssumedTimes,
}

/// Assumed times in nanoseconds: a replay neither reads nor computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AssumedTimes {
    /// Computing an expert on the CPU.
    pub here: f64,
    /// Computing an expert on the tier.
    pub there: f64,
    /// Waiting for an expert that is read.
    pub read: f64,
    /// Copying an expert to the tier.
    pub copy: f64,
    /// A layer besides its experts.
    pub layer: f64,
}

/// Counts of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierOutcome {
    /// Experts that were computed on it.
    pub hits: u64,
    /// Experts that were copied to it.
    pub copies: u64,
}

/// A tier without memory.
#[derive(Debug)]
pub(super) struct TierPlayer {
    tier: ReplayTier,
    placement: Placement,
    held: HashSet<PieceId>,
    pub(super) counts: TierOutcome,
}

impl TierPlayer {
    pub(super) fn new(tier: ReplayTier) -> TierPlayer {
        let placement = Placement::new(tier.governed);
        TierPlayer { tier, placement, held: HashSet::new(), counts: TierOutcome::default() }
    }

    pub(super) fn pass_begins(&mut self) {
        self.placement.pass_begins();
    }

    pub(super) fn layer_begins(&mut self, tokens: usize) {
        self.placement.layer_begins(tokens);
    }

    /// True if an expert is computed on the tier.
    pub(super) fn holds(&self, expert: PieceId) -> bool {
        self.placement.is_used() && self.held.contains(&expert)
    }

    /// Takes the choice of a layer, of which `missing` have to be read.
    pub(super) fn chosen(&mut self, layer: u32, experts: &[u32], missing: &[u32]) {
        self.placement.chosen(layer, experts, missing);
    }

    /// Computes the experts of a layer: those that are `missing` last. Experts that move to the tier leave the cache.
    pub(super) fn layer_ends(
        &mut self,
        cache: &mut PredictiveCache<()>,
        layer: u32,
        experts: &[u32],
        missing: &[u32],
    ) {
        let AssumedTimes { here, there, read, copy, layer: other } = self.tier.times;
        let ids = experts.iter().map(|&expert| PieceId::expert(layer, expert));
        let on_tier = ids.filter(|id| self.holds(*id)).count();
        let on_cpu: Vec<u32> = {
            let is_here = |expert: &&u32| !self.holds(PieceId::expert(layer, **expert));
            let hits = experts.iter().filter(|expert| !missing.contains(expert)).filter(is_here);
            hits.chain(missing).copied().collect()
        };
        if on_tier > 0 {
            self.placement.computed_there(on_tier, on_tier as f64 * there);
            self.counts.hits += on_tier as u64;
        }
        if !on_cpu.is_empty() {
            self.placement.computed_here(on_cpu.len(), on_cpu.len() as f64 * here);
        }
        let mut copies = 0;
        for id in on_cpu.iter().map(|&expert| PieceId::expert(layer, expert)) {
            cache.computed(id);
            copies += u64::from(self.promote(cache, id));
        }
        self.counts.copies += copies;
        let waited = missing.len() as f64 * read;
        let elapsed = other
            + waited
            + on_tier as f64 * there
            + on_cpu.len() as f64 * here
            + copies as f64 * copy;
        match self.placement.layer_ends(on_cpu.len(), waited, elapsed) {
            None => {}
            Some(TierChange::Forget) => {
                self.placement.forget();
                self.held.clear();
            }
            Some(TierChange::Free) => {
                for expert in self.placement.held() {
                    cache.release(*expert);
                }
            }
        }
    }

    /// True if an expert of the cache is copied.
    fn promote(&mut self, cache: &mut PredictiveCache<()>, expert: PieceId) -> bool {
        if self.held.contains(&expert) || !cache.contains(expert) {
            return false;
        }
        let has_room = self.held.len() < self.tier.slots;
        let Some(place) = self.placement.place(expert, has_room) else { return false };
        if let TierPlace::Of(victim) = place {
            self.held.remove(&victim);
        }
        self.held.insert(expert);
        self.placement.copied(expert, place, self.tier.times.copy);
        if self.placement.is_on() {
            cache.release(expert);
        }
        true
    }
}
