//! Slots of the cache that are lent, taken back and given up.

use sws_format::PieceId;
use sws_store::Slot;

use super::DynamicAssembler;
use crate::reads::LoadedSlot;

impl DynamicAssembler {
    /// Gives up slots until at most `bytes` are left. Slots in use stay until a later call. Their
    /// memory returns to the arena.
    pub fn trim_to_budget(&mut self, bytes: usize) {
        drop(self.cache.trim_to_budget(bytes));
        self.slots_changed();
    }

    /// Adds slots, until they are [taken back](Self::take_back). Returns the number of slots
    /// before.
    pub fn lend(&mut self, slots: impl IntoIterator<Item = Slot>) -> usize {
        self.account.slots_changed();
        self.cache.extend(slots.into_iter().map(LoadedSlot::with_len))
    }

    /// Gives up all but the first `slots` slots, between passes. Reads into the others go on.
    pub fn take_back(&mut self, slots: usize) {
        let loading: Vec<PieceId> = self.cache.loading_beyond(slots).collect();
        for &id in &loading {
            self.give_up(id);
        }
        while loading.iter().any(|&id| self.reads.contains(id))
            && let Some(arrival) = self.reads.settle()
        {
            // No layer needs the piece now, so a failure is harmless.
            let _ = self.land(arrival);
        }
        // The other slots have lost their pieces, and no pass is running, so no pin is needed.
        while let Some(id) = self.prefetcher.unpin_any() {
            self.cache.unpin(id);
        }
        drop(self.cache.truncate(slots));
        self.slots_changed();
    }

    fn slots_changed(&mut self) {
        self.account.slots_changed();
        if let Some(watch) = &self.watch {
            watch.set_stale();
        }
    }
}
