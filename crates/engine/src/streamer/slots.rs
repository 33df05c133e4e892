//! Slots in unused memory: lending them, and taking them back.

use sws_os::process::release_freed_memory;
use sws_store::{Arena, Slot};

use super::{SpeculativeWeightStreamer, StreamerError};
use crate::budget::SlotClass;

impl SpeculativeWeightStreamer {
    /// Lowers the budget of a running model. Only slots are given up.
    pub fn lower_budget(&mut self, ram: u64) -> Result<(), StreamerError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let plan = plan.shrink(ram)?;
        self.set_idle(0);
        self.take_back();
        if let Some(own) = self.structured.ended() {
            self.keep_slots(own);
        }
        let slots: u64 = plan.slots.iter().map(SlotClass::bytes).sum();
        if let Some(assembler) = self.sequences.source().assembler() {
            // Reads in flight would keep their slots.
            assembler.abandon();
            assembler.trim_to_budget(slots as usize);
        }
        self.plan = Some(plan);
        self.give_back();
        Ok(())
    }

    /// Returns the memory of released slots to the system.
    pub(super) fn give_back(&self) {
        if let Some(arena) = &self.arena {
            // Best effort: on failure the pages stay mapped but unused.
            let _ = arena.release_free();
        }
    }

    /// Lends the memory of a prompt's activations to slots, as long as each sequence gets at most a
    /// token per pass.
    pub(super) fn lend(&mut self) {
        if !self.lending.small() {
            return;
        }
        let Some(plan) = &self.plan else { return };
        let bytes = plan.lent_bytes();
        let cut = SlotClass::each(&plan.lent);
        if bytes == 0 {
            return;
        }
        self.sequences.state_mut().release_work();
        release_freed_memory();
        // On failure the run is slower, but otherwise the same.
        let slots = slots_of(bytes, cut).unwrap_or_default();
        if let Some(assembler) = self.sequences.source().assembler() {
            self.lending.lent(assembler.lend(slots));
        }
    }

    /// Lends the memory of structured output while no text uses it. These slots follow those of the
    /// plan. Slots lent after them are lent again later.
    pub(super) fn lend_structured_memory(&mut self) {
        if !self.structured.is_due() {
            return;
        }
        let Some(plan) = &self.plan else { return };
        let lens: Vec<usize> = SlotClass::each(&plan.structured_lent).collect();
        if let Some(own) = self.contexts.ended().or(self.lending.own()) {
            self.keep_slots(own);
        }
        release_freed_memory();
        // On failure the run is slower, but otherwise the same.
        let slots = slots_of(lens.iter().sum(), lens.into_iter()).unwrap_or_default();
        if let Some(assembler) = self.sequences.source().assembler() {
            self.structured.lent(assembler.lend(slots));
        }
    }

    /// Lends the unused memory of contexts. These slots come after those of the plan and of
    /// structured output, and before those of a prompt's activations.
    pub(super) fn lend_contexts(&mut self) {
        if !self.contexts.has_more(self.lending.has_lent()) {
            return;
        }
        if let Some(own) = self.lending.own() {
            self.keep_slots(own);
        }
        release_freed_memory();
        while let Some(next) = self.contexts.next() {
            let slots = slots_of(next.iter().sum(), next.iter().copied());
            match (slots, self.sequences.source().assembler()) {
                (Some(slots), Some(assembler)) => self.contexts.lent(assembler.lend(slots)),
                _ => self.contexts.stop(),
            }
        }
    }

    /// Takes back the memory that this many more tokens of the only sequence need. With several
    /// sequences only the caller knows the memory of kept prefixes.
    pub(super) fn settle_context(&mut self, tokens: usize) {
        let is_only = matches!(&self.plan, Some(plan) if plan.sequences == 1);
        if !is_only || self.caller_keeps || !self.contexts.lends() {
            return;
        }
        let state = self.state();
        let growth = state.growth(&[(0, tokens)]);
        // A prompt that is too long is refused, and needs no memory.
        if growth == 0 || tokens > state.limit() - state.len(0) {
            return;
        }
        let room = state.room(self.sequences.model().spec());
        let held = state.held(&mut std::iter::empty());
        self.set_idle(room.saturating_sub(held + growth));
    }

    /// Sets the unused bytes of contexts, and takes lent memory back as far as it exceeds them.
    pub(super) fn set_idle(&mut self, bytes: u64) {
        if let Some(own) = self.contexts.set_idle(bytes) {
            self.keep_slots(own);
        }
    }

    /// Takes back all slots after the first `own`, including those in the memory of activations.
    pub(super) fn keep_slots(&mut self, own: usize) {
        self.lending.ended();
        if let Some(assembler) = self.sequences.source().assembler() {
            assembler.take_back(own);
        }
    }

    /// Takes lent slots back before a prompt, which needs the memory for its activations.
    pub(super) fn take_back(&mut self) {
        if let Some(own) = self.lending.large() {
            self.keep_slots(own);
        }
    }

    /// Sets the bytes of the [room](sws_model::ForwardState::room) of contexts that stay unused
    /// until the next call, or `None` if the caller keeps nothing besides the sequences any more.
    /// Returns the bytes of all expert slots if unused bytes are lent to them, and otherwise 0.
    pub fn lend_context(&mut self, idle: Option<u64>) -> u64 {
        self.caller_keeps = idle.is_some();
        self.set_idle(idle.unwrap_or(0));
        match self.sequences.source().assembler() {
            Some(assembler) if self.contexts.lends() => assembler.cache().capacity() as u64,
            _ => 0,
        }
    }

    /// Lends the memory planned for structured output to experts, as no text has structured output
    /// from now on (`is_idle`), or takes it back, as some may. The memory is free when this
    /// returns.
    pub fn lend_structured(&mut self, is_idle: bool) {
        if let Some(own) = self.structured.set_idle(is_idle) {
            self.contexts.ended();
            self.keep_slots(own);
        }
    }
}

/// A mapping of this length, cut into slots; `None` if the system grants no memory for it.
fn slots_of(bytes: usize, lens: impl Iterator<Item = usize>) -> Option<Vec<Slot>> {
    let arena = Arena::new(bytes).ok()?;
    Some(lens.filter_map(|len| arena.take(len)).collect())
}
