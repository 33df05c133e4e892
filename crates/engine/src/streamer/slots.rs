//! Slots in memory that nothing needs at the moment: lent, and taken back.

use sws_store::{Arena, Slot, release_freed_memory};

use super::{SpeculativeWeightStreamer, StreamerError};
use crate::budget::SlotClass;

impl SpeculativeWeightStreamer {
    /// Lowers the budget of a running model. Slots are given up; everything else stays.
    pub fn lower_budget(&mut self, ram: u64) -> Result<(), StreamerError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let plan = plan.shrink(ram)?;
        self.set_idle(0);
        self.take_back();
        if let Some(own) = self.structured.ended() {
            self.keep_slots(own);
        }
        let slots: u64 = plan.slots.iter().map(|class| class.bytes()).sum();
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

    /// Lends the memory of structured output while no text has one, behind the plan's slots. Those behind
    /// these are lent anew.
    pub(super) fn lend_structured_memory(&mut self) {
        let due = self.plan.as_ref().filter(|_| self.structured.is_due());
        let Some(lens) = due.map(|plan| SlotClass::each(&plan.structured_lent).collect::<Vec<_>>())
        else {
            return;
        };
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

    /// Lends the memory of contexts that is idle, behind the slots of plan and structured output and before
    /// those of a prompt's activations.
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

    /// Takes back what so many more tokens of the only sequence need. Of several, only their caller knows
    /// what else is kept.
    pub(super) fn settle_context(&mut self, tokens: usize) {
        let is_only = self.plan.as_ref().is_some_and(|plan| plan.sequences == 1);
        if !is_only || self.caller_keeps || !self.contexts.lends() {
            return;
        }
        let state = self.state();
        let growth = state.growth(&[(0, tokens)]);
        // Of a prompt that is too long nothing is computed.
        if growth == 0 || tokens > state.limit() - state.len(0) {
            return;
        }
        let room = state.room(self.sequences.model().spec());
        let held = state.held(&mut std::iter::empty());
        self.set_idle(room.saturating_sub(held + growth));
    }

    /// Takes the memory of contexts back beyond so many bytes that nothing needs.
    pub(super) fn set_idle(&mut self, bytes: u64) {
        if let Some(own) = self.contexts.set_idle(bytes) {
            self.keep_slots(own);
        }
    }

    /// Takes all but the first `own` slots back, with those in the memory of activations.
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

    /// Says how many bytes of the [room](sws_model::ForwardState::room) of contexts nothing needs until the next call;
    /// `None` if nothing is kept beside the sequences from now on. Returns the bytes of experts in memory, if
    /// experts get such bytes, and otherwise 0.
    pub fn lend_context(&mut self, idle: Option<u64>) -> u64 {
        self.caller_keeps = idle.is_some();
        self.set_idle(idle.unwrap_or(0));
        match self.sequences.source().assembler() {
            Some(assembler) if self.contexts.lends() => assembler.cache().capacity() as u64,
            _ => 0,
        }
    }

    /// Says that no text has structured output from now on, so that experts get the memory that was planned
    /// for structured output, or that some may have one, for which the memory is free when this returns.
    pub fn lend_structured(&mut self, is_idle: bool) {
        if let Some(own) = self.structured.set_idle(is_idle) {
            self.contexts.ended();
            self.keep_slots(own);
        }
    }
}

/// A mapping of so many bytes, cut into slots; `None` if there is no memory for it.
fn slots_of(bytes: usize, lens: impl Iterator<Item = usize>) -> Option<Vec<Slot>> {
    let arena = Arena::new(bytes).ok()?;
    Some(lens.filter_map(|len| arena.take(len)).collect())
}
