//! Reads of the assembler: issued into slots of the cache, landed there, or given up.

use sws_cache::{Claim, Need, NoRoom};
use sws_format::PieceId;
use sws_store::{FetchError, Priority};

use super::DynamicAssembler;
use crate::error::StreamError;
use crate::reads::{Arrival, GivenUp, LoadedSlot, ReadOrigin};
use crate::watch::ExpertPlace;

/// Number of slots that the experts of a layer share in turn during a sweep, so that experts of
/// later layers stay resident: enough to compute one while others are read.
const IN_TURN: usize = 8;

impl DynamicAssembler {
    /// Issues reads of the layer's misses, as far as there is room.
    pub(super) fn fallback_reassemble(&mut self) -> Result<(), StreamError> {
        while let Some(id) = self.demand.next() {
            let len = self.reads.layout(id)?.slot_len();
            match self.cache.begin(self.demand.layer(), id, len, Need::Now) {
                Ok(claim) => {
                    self.issue(id, claim, Priority::Demanded, ReadOrigin::Demand)?;
                }
                // The read of this expert was given up but has not ended yet. The expert is
                // demanded again once it has.
                Err(NoRoom::Present { .. }) => {}
                Err(NoRoom::InUse { .. }) if !self.can_wait() && self.give_way() => continue,
                Err(NoRoom::InUse { .. }) => break,
                Err(error) => return Err(error.into()),
            }
            self.demand.advance();
        }
        Ok(())
    }

    /// Issues a read into a claimed slot.
    pub(super) fn issue(
        &mut self,
        id: PieceId,
        claim: Claim<LoadedSlot>,
        priority: Priority,
        origin: ReadOrigin,
    ) -> Result<(), StreamError> {
        let Claim { payload, evicted, .. } = claim;
        self.account.issued(id, origin.is_speculative(), evicted, &self.cache);
        if let Some(evicted) = evicted {
            self.moved(evicted, ExpertPlace::Disk);
        }
        self.moved(id, ExpertPlace::Reading);
        if let Err((memory, error)) = self.reads.issue(id, payload, priority, origin) {
            self.failed(id, memory);
            return Err(error);
        }
        Ok(())
    }

    /// Handles all reads that have ended.
    pub(super) fn drain(&mut self) -> Result<(), StreamError> {
        while let Some(arrival) = self.reads.poll()? {
            self.land(arrival)?;
        }
        Ok(())
    }

    /// Handles a read that has ended. A failure is an error only if the piece is needed now and has
    /// failed before.
    pub(super) fn land(&mut self, arrival: Arrival) -> Result<(), StreamError> {
        let Arrival { id, read, timing, result } = arrival;
        match (&read, &result) {
            (Some(read), Ok(_)) => {
                let demanded = read.demanded && !read.origin.is_speculative();
                self.account.landed(read.bytes, demanded, &timing);
            }
            (Some(read), Err(_)) if read.is_unasked() => {
                self.account.given_up(id, true, read.bytes);
            }
            _ => {}
        }
        match result {
            Ok(loaded) => {
                self.cache.ready(id, loaded);
                self.moved(id, ExpertPlace::Memory);
                match read {
                    Some(read) if read.is_unasked() => {
                        self.account.landed_unasked(read.bytes);
                        if self.run_ahead.has_foreseen(id) {
                            self.pin(id);
                        }
                    }
                    Some(read) if !read.demanded && !read.ending => self.pin(id),
                    _ => {}
                }
                Ok(())
            }
            Err((memory, error)) => {
                self.failed(id, memory);
                match error {
                    StreamError::Fetch(FetchError::Cancelled) => Ok(()),
                    error if self.demand.needs(id) && self.demand.fails_again(id) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Gives up a read in flight. Its slot becomes empty now, or when the device has finished
    /// writing to it.
    pub(super) fn give_up(&mut self, id: PieceId) {
        let Some(GivenUp { read, begun, slot }) = self.reads.give_up(id) else { return };
        if read.is_unasked() {
            self.account.given_up(id, begun, read.bytes);
        }
        if let Some(slot) = slot {
            self.failed(id, slot);
        }
    }

    /// Empties the slot of a piece whose read has failed.
    fn failed(&mut self, id: PieceId, memory: LoadedSlot) {
        self.cache.failed(id, memory);
        self.moved(id, ExpertPlace::Disk);
    }

    /// Reports the new place of a piece.
    fn moved(&self, id: PieceId, place: ExpertPlace) {
        if let Some(watch) = &self.watch {
            watch.moved(id, place);
        }
    }

    /// True if enough experts of this layer are resident or in flight for the rest to reuse their
    /// slots, each free once its expert is computed.
    fn can_wait(&self) -> bool {
        self.prefetcher.is_sweeping() && self.demand.in_hand() >= IN_TURN
    }

    /// Makes room for a demanded piece: unpins the pinned piece whose layer comes last, or else
    /// gives up the last prefetch. False if there is neither.
    fn give_way(&mut self) -> bool {
        if let Some(id) = self.prefetcher.unpin_last() {
            self.cache.unpin(id);
            return true;
        }
        let Some(id) = self.reads.latest_prefetch() else { return false };
        self.give_up(id);
        true
    }
}
