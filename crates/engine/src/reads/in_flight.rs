//! Reads of experts: issued to the store, in flight, verified as they land.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_cache::NoRoom;
use sws_format::{PieceId, Tensor};
use sws_kernels::Matrix;
use sws_model::{Inventory, LoadError, WeightsError};
use sws_store::{
    Cancelled, Completion, LayoutError, NVMeWeightStore, PieceLayout, Priority, Ticket, Timing,
};

use super::layouts::Layouts;
use super::loaded::LoadedSlot;
use crate::error::StreamError;
use crate::stand_ins::StandIns;
use crate::wait::{Waiter, bytes_read};

/// Reads of experts from a store into slots. It does not know the cache that owns the slots.
#[derive(Debug)]
pub(crate) struct ReadsInFlight {
    pub(crate) store: Arc<NVMeWeightStore>,
    pub(super) inventory: Arc<Inventory>,
    /// Stand-ins in memory, set before the first read. Tensors shared with a stand-in are not read
    /// again.
    pub(crate) stand_ins: Arc<StandIns>,
    pub(crate) waiter: Waiter,
    pub(super) reply: Sender<Completion>,
    pub(super) arrived: Receiver<Completion>,
    pub(super) in_flight: HashMap<PieceId, ReadInFlight>,
    layouts: Layouts,
    /// Pieces checked for non-finite numbers. Checksums guarantee that later reads are identical.
    checked: HashSet<PieceId>,
    /// Length of the last piece requested.
    last_len: Option<usize>,
}

/// A read in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadInFlight {
    pub(super) ticket: Ticket,
    pub(crate) origin: ReadOrigin,
    /// True once a router has selected the piece.
    pub(crate) demanded: bool,
    /// True once the read has been given up. Its slot returns when the store lets go of it.
    pub(crate) ending: bool,
    pub(crate) bytes: usize,
}

/// The reason why a read was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOrigin {
    /// The choice of a router.
    Demand,
    /// The sweep of a long prompt, which uses nearly all experts.
    Sweep,
    /// A forecast.
    Forecast,
    /// A free slot, filled with a piece that earlier runs have used often. No router's choice ends
    /// it.
    WarmFill,
}

impl ReadOrigin {
    /// True if the read is based on a guess.
    pub(crate) fn is_speculative(self) -> bool {
        matches!(self, ReadOrigin::Forecast | ReadOrigin::WarmFill)
    }
}

impl ReadInFlight {
    /// True while speculation is the only reason for the read.
    pub(crate) fn is_unasked(&self) -> bool {
        self.origin.is_speculative() && !self.demanded && !self.ending
    }
}

/// Number of reads in flight, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Bytes of demanded reads.
    pub(crate) demanded: usize,
    /// Bytes of all other reads.
    pub(crate) prefetched: usize,
    /// Number of reads that are not demanded.
    pub(crate) prefetches: usize,
    /// Number of reads.
    pub(crate) reads: usize,
}

/// A read that has ended.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) id: PieceId,
    /// The read as it was in flight, if known.
    pub(crate) read: Option<ReadInFlight>,
    pub(crate) timing: Timing,
    /// The piece, verified; or the empty slot and the reason.
    pub(crate) result: Result<LoadedSlot, (LoadedSlot, StreamError)>,
}

/// A read that has been given up.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(crate) read: ReadInFlight,
    /// True if the device had begun to read it.
    pub(crate) begun: bool,
    /// The empty slot, unless the device still writes to it.
    pub(crate) slot: Option<LoadedSlot>,
}

impl ReadsInFlight {
    pub(crate) fn new(
        store: Arc<NVMeWeightStore>,
        inventory: Arc<Inventory>,
        waiter: Waiter,
    ) -> ReadsInFlight {
        let (reply, arrived) = unbounded();
        ReadsInFlight {
            store,
            inventory,
            stand_ins: Arc::default(),
            waiter,
            reply,
            arrived,
            in_flight: HashMap::new(),
            layouts: Layouts::default(),
            checked: HashSet::new(),
            last_len: None,
        }
    }

    /// Layout of a piece in its slot.
    pub(crate) fn layout(&mut self, id: PieceId) -> Result<Arc<PieceLayout>, LayoutError> {
        self.layouts.of(&self.store, &self.stand_ins, id).cloned()
    }

    /// Length of a piece's slot; `None` if the manifest has no such piece.
    pub(crate) fn slot_len(&mut self, id: PieceId) -> Option<usize> {
        Some(self.layouts.of(&self.store, &self.stand_ins, id).ok()?.slot_len())
    }

    /// Returns pieces sorted by their position on the disk.
    pub(crate) fn in_disk_order(&mut self, ids: impl IntoIterator<Item = PieceId>) -> Vec<PieceId> {
        let mut ids: Vec<PieceId> = ids.into_iter().collect();
        self.layouts.sort(&self.store, &self.stand_ins, &mut ids);
        ids
    }

    /// Issues a read into `memory`. On failure returns the memory with the error.
    pub(crate) fn issue(
        &mut self,
        id: PieceId,
        memory: LoadedSlot,
        priority: Priority,
        origin: ReadOrigin,
    ) -> Result<(), (LoadedSlot, StreamError)> {
        let layout = match self.layout(id) {
            Ok(layout) => layout,
            Err(error) => return Err((memory, error.into())),
        };
        let bytes = layout.slot_len();
        self.last_len = Some(bytes);
        match self.store.fetch_to(layout, priority, memory.slot, self.reply.clone()) {
            Ok(ticket) => {
                let demanded = priority == Priority::Demanded;
                let read = ReadInFlight { ticket, origin, demanded, ending: false, bytes };
                self.in_flight.insert(id, read);
                Ok(())
            }
            Err(small) => {
                let error = NoRoom::TooLarge { piece: id, len: small.need };
                Err((LoadedSlot::empty(small.slot), error.into()))
            }
        }
    }

    /// Marks a read in flight as demanded by a router. `promote` moves it ahead of other reads.
    pub(crate) fn demand(&mut self, id: PieceId, promote: bool) {
        if let Some(read) = self.in_flight.get_mut(&id)
            && !read.demanded
        {
            if promote {
                self.store.promote(read.ticket);
            }
            read.demanded = true;
        }
    }

    /// Gives up a read. `None` if the piece is not in flight.
    pub(crate) fn give_up(&mut self, id: PieceId) -> Option<GivenUp> {
        let read = *self.in_flight.get(&id)?;
        let begun = self.store.begun(read.ticket);
        self.in_flight.insert(id, ReadInFlight { ending: true, ..read });
        let slot = match self.store.cancel(read.ticket) {
            Cancelled::Withdrawn(slot) => {
                self.in_flight.remove(&id);
                Some(LoadedSlot::empty(slot))
            }
            _ => None,
        };
        Some(GivenUp { read, begun, slot })
    }

    /// Returns the next read that has ended, if any, without waiting.
    pub(crate) fn poll(&mut self) -> Result<Option<Arrival>, StreamError> {
        let Some(completion) = self.waiter.poll(&self.arrived)? else { return Ok(None) };
        Ok(Some(self.landed(completion)))
    }

    /// Waits for a read to end.
    pub(crate) fn wait(&mut self) -> Result<Arrival, StreamError> {
        let completion = self.waiter.wait(&self.store, &self.arrived)?;
        Ok(self.landed(completion))
    }

    /// Waits for a read to end, even after cancellation, and without counting a stall. `None` if
    /// nothing is in flight.
    pub(crate) fn settle(&mut self) -> Option<Arrival> {
        if self.in_flight.is_empty() {
            return None;
        }
        let completion = self.waiter.settle(&self.store, &self.arrived)?;
        Some(self.landed(completion))
    }

    /// Ends a read: verifies a piece that lands for the first time, or returns its empty slot.
    pub(crate) fn landed(&mut self, completion: Completion) -> Arrival {
        let Completion { layout, slot, result, timing, .. } = completion;
        let id = layout.read().piece();
        let read = self.in_flight.remove(&id);
        let result = match result {
            Err(error) => Err((LoadedSlot::empty(slot), StreamError::from(error))),
            Ok(()) => {
                let loaded = LoadedSlot { slot, layout: Some(layout) };
                match self.check(id, &loaded) {
                    Ok(()) => Ok(loaded),
                    Err(error) => Err((LoadedSlot::empty(loaded.slot), error.into())),
                }
            }
        };
        Arrival { id, read, timing, result }
    }

    /// Checks that all numbers of a piece are finite when it lands for the first time. Checksums
    /// guarantee that the bytes are the same every other time.
    fn check(&mut self, id: PieceId, loaded: &LoadedSlot) -> Result<(), LoadError> {
        if self.is_checked(id) {
            return Ok(());
        }
        for held in self.inventory.piece(id) {
            let parts = loaded.parts(held, &self.stand_ins).unwrap_or_default();
            let parts = &parts[..held.encoding.parts().len()];
            let matrix = match Matrix::new(held.encoding, held.rows, held.cols, parts) {
                Ok(matrix) => matrix,
                Err(cause) => {
                    let (name, _) = self.name_and_file(id, held.index);
                    return Err(LoadError::Matrix { name, cause });
                }
            };
            if let Some((row, col, value)) = matrix.first_not_finite() {
                let (name, file) = self.name_and_file(id, held.index);
                return Err(WeightsError::NotFinite { name, file, value, row, col }.into());
            }
        }
        self.checked.insert(id);
        Ok(())
    }

    /// The name of a tensor of a piece, and of the file that it came from.
    fn name_and_file(&self, piece: PieceId, tensor: usize) -> (String, Option<String>) {
        let Some(piece) = self.store.manifest().piece(piece) else { return Default::default() };
        let Tensor { name, source, .. } = &piece.tensors[tensor];
        (name.clone(), Some(source.clone()))
    }

    /// True if all numbers of a piece are known to be finite.
    pub(crate) fn is_checked(&self, id: PieceId) -> bool {
        self.checked.contains(&id)
    }

    /// True if a read of this piece is in flight.
    pub(crate) fn contains(&self, id: PieceId) -> bool {
        self.in_flight.contains_key(&id)
    }

    /// True if nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Pieces in flight.
    pub(crate) fn ids(&self) -> Vec<PieceId> {
        self.in_flight.keys().copied().collect()
    }

    /// The read of a piece, if it is in flight.
    pub(crate) fn get(&self, id: PieceId) -> Option<ReadInFlight> {
        self.in_flight.get(&id).copied()
    }

    /// The prefetched piece that a pass needs last, of those neither demanded nor given up.
    pub(crate) fn latest_prefetch(&self) -> Option<PieceId> {
        let mut latest: Option<PieceId> = None;
        for (id, read) in &self.in_flight {
            if !read.demanded && !read.ending {
                latest = latest.max(Some(*id));
            }
        }
        latest
    }

    /// Pieces prefetched for a forecast whose reads the device has not begun, ascending.
    pub(crate) fn not_begun(&self) -> Vec<PieceId> {
        let mut idle = Vec::new();
        for (id, read) in &self.in_flight {
            if read.is_unasked()
                && read.origin == ReadOrigin::Forecast
                && !self.store.begun(read.ticket)
            {
                idle.push(*id);
            }
        }
        idle.sort_unstable();
        idle
    }

    /// Speculative reads that the device has begun and no router has selected, with their bytes.
    pub(crate) fn speculative_begun(&self) -> Vec<(PieceId, usize)> {
        let mut begun = Vec::new();
        for (id, read) in &self.in_flight {
            if read.is_unasked() && self.store.begun(read.ticket) {
                begun.push((*id, read.bytes));
            }
        }
        begun
    }

    /// Number of reads in flight, and their bytes.
    pub(crate) fn load(&self) -> Load {
        let mut load = Load { reads: self.in_flight.len(), ..Load::default() };
        for read in self.in_flight.values() {
            match read.demanded {
                true => load.demanded += read.bytes,
                false => {
                    load.prefetched += read.bytes;
                    load.prefetches += 1;
                }
            }
        }
        load
    }

    /// Estimated seconds to read one expert, from all reads so far; `None` before the first read.
    pub(crate) fn seconds_per_expert(&self) -> Option<f64> {
        let stats = self.store.stats();
        let read = bytes_read(&stats);
        if read == 0 {
            return None;
        }
        let expert = self.last_len?;
        Some(stats.busy.as_secs_f64() * expert as f64 / read as f64)
    }
}

impl Drop for ReadsInFlight {
    /// Cancels the reads in flight. Their slots return to the arena by themselves.
    fn drop(&mut self) {
        for read in self.in_flight.values() {
            let _ = self.store.cancel(read.ticket);
        }
    }
}
