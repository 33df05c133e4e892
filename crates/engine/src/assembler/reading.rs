//! Reads under way: begun into slots of the cache, and landed there.

use std::sync::Arc;

use sws_store::{Cancelled, Completion, FetchError, PieceId, PieceLayout, Priority, Ticket};

use super::{DynamicAssembler, Loaded};
use crate::error::StreamError;
use sws_cache::{Need, NoRoom};

/// Slots through which the experts of a layer go in turn, while what later layers need stays: enough
/// for one to be computed with while others are read.
const IN_TURN: usize = 8;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) ticket: Ticket,
    /// Whether somebody waits for it.
    pub(super) demanded: bool,
    /// Whether it has been given up and will end soon.
    pub(super) ending: bool,
    /// Whether it was begun for what a draft has said.
    pub(super) speculative: bool,
    /// Whether it fills a slot that was free, whatever the layers before its own choose.
    pub(super) filling: bool,
    pub(super) bytes: usize,
}

impl Reading {
    /// Whether a draft alone is the reason for it.
    pub(super) fn unasked(&self) -> bool {
        self.speculative && !self.demanded && !self.ending
    }
}

impl DynamicAssembler {
    /// Demands what is wanted, as far as there is room.
    pub(super) fn fallback_reassemble(&mut self) -> Result<(), StreamError> {
        while let Some(&id) = self.wanted.front() {
            let layout = self.layout(id)?;
            match self.cache.begin(self.layer, id, layout.slot_len(), Need::Now) {
                Ok(claim) => {
                    self.note_begun(id, false, claim.evicted);
                    self.fetch(id, layout, claim.payload, Priority::Demanded, false)?;
                }
                // It was given up and has not ended yet. When it has, it is wanted again.
                Err(NoRoom::Present { .. }) => {}
                Err(NoRoom::InUse { .. }) if !self.can_wait() && self.give_way() => continue,
                Err(NoRoom::InUse { .. }) => break,
                Err(error) => return Err(error.into()),
            }
            self.wanted.pop_front();
        }
        Ok(())
    }

    pub(super) fn fetch(
        &mut self,
        id: PieceId,
        layout: Arc<PieceLayout>,
        memory: Loaded,
        priority: Priority,
        speculative: bool,
    ) -> Result<(), StreamError> {
        let bytes = layout.slot_len();
        let reply = self.reply.clone();
        self.reads(layout.slot_len());
        match self.store.fetch_to(layout, priority, memory.slot, reply) {
            Ok(ticket) => {
                let demanded = priority == Priority::Demanded;
                let (ending, filling) = (false, false);
                let reading = Reading { ticket, demanded, ending, speculative, filling, bytes };
                self.reading.insert(id, reading);
                Ok(())
            }
            Err(small) => {
                let len = small.need;
                self.cache.failed(id, Loaded::empty(small.slot));
                Err(NoRoom::TooLarge { piece: id, len }.into())
            }
        }
    }

    /// Takes in what has arrived.
    pub(super) fn drain(&mut self) -> Result<(), StreamError> {
        while let Some(completion) = self.waiter.poll(&self.arrived)? {
            self.land(completion)?;
        }
        Ok(())
    }

    /// Takes in a read that has ended. A failure is one only if the piece is needed now, and the
    /// second time.
    pub(super) fn land(&mut self, completion: Completion) -> Result<(), StreamError> {
        let Completion { layout, slot, result, timing, .. } = completion;
        let id = layout.read().piece();
        let reading = self.reading.remove(&id);
        let unasked = reading.as_ref().is_some_and(Reading::unasked);
        if let (Some(reading), Ok(())) = (&reading, &result) {
            self.speculating.ended(reading, &timing);
        }
        if let (Some(reading), true, true) = (&reading, unasked, result.is_err()) {
            self.note_given_up(id, true, reading.bytes);
        }
        let error = match result {
            Ok(()) => {
                let loaded = Loaded { slot, layout: Some(layout) };
                match self.look_at(id, &loaded) {
                    Ok(()) => {
                        self.cache.ready(id, loaded);
                        match reading {
                            Some(reading) if unasked => {
                                self.speculating.governor.issued(reading.bytes);
                                if self.inexact.has_foreseen(id) {
                                    self.promise(id);
                                }
                            }
                            Some(reading) if !reading.demanded => self.promise(id),
                            _ => {}
                        }
                        return Ok(());
                    }
                    Err(error) => {
                        self.cache.failed(id, Loaded::empty(loaded.slot));
                        error.into()
                    }
                }
            }
            Err(error) => {
                self.cache.failed(id, Loaded::empty(slot));
                StreamError::from(error)
            }
        };
        let needed = id.layer() == Some(self.layer)
            && self.needed.iter().any(|&expert| PieceId::expert(self.layer, expert) == id);
        match error {
            StreamError::Fetch(FetchError::Cancelled) => Ok(()),
            error if needed && !self.failed.insert(id) => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives up a read under way, whose slot is then empty or soon will be.
    pub(super) fn give_up(&mut self, id: PieceId) {
        let Some(&reading) = self.reading.get(&id) else { return };
        if reading.unasked() {
            self.note_given_up(id, self.store.begun(reading.ticket), reading.bytes);
        }
        self.reading.insert(id, Reading { ending: true, ..reading });
        if let Cancelled::Withdrawn(slot) = self.store.cancel(reading.ticket) {
            self.reading.remove(&id);
            self.cache.failed(id, Loaded::empty(slot));
        }
    }

    /// Whether enough of this layer is in hand that its slots, each free as soon as it has been
    /// computed with, will do for the others.
    fn can_wait(&self) -> bool {
        self.sweeping && self.needed.len() - self.wanted.len().min(self.needed.len()) >= IN_TURN
    }

    /// Gives up what was expected latest, so that what is needed now finds room. False if nothing
    /// can be given up at once.
    fn give_way(&mut self) -> bool {
        if let Some(id) = self.promised.pop_last() {
            self.cache.unpin(id);
            return true;
        }
        let idle = |r: &Reading| !r.demanded && !r.ending;
        let latest = self.reading.iter().filter(|(_, r)| idle(r)).map(|(id, _)| *id).max();
        let Some(id) = latest else { return false };
        self.give_up(id);
        true
    }
}
