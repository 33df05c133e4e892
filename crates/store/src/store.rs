//! The store: fetches pieces from the device in the background.

#[cfg(test)]
mod handover;
mod landed;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use sws_format::{Clock, Manifest, ShardReader};

use crate::drives::{Drives, Mirror};
use crate::fetch::{Cancelled, Completion, FetchError, Priority, SlotTooSmall, Ticket};
use crate::integrity::FileVerifier;
use crate::layout::{LayoutError, PieceLayout, Read};
use crate::reader::ReaderKind;
use crate::scheduler::FetchQueue;
use crate::shared::{StoreShared, StoreState};
use crate::simulation::{SimulatedDisk, Simulation};
use crate::stats::StoreStats;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};
use crate::{Arena, Slot};

pub use landed::{Landed, NotLanded};

/// Stack size of a reading thread.
const STACK: usize = 256 << 10;

/// Options of a store.
#[derive(Clone)]
pub struct StoreOptions {
    /// Reader to use; `None` for `direct`.
    pub reader: Option<Arc<dyn ShardReader>>,
    /// Further copies of the files on other drives, over which reads are spread.
    pub mirrors: Vec<Mirror>,
    /// Receiver of a sentence about each drive that is left out, as it fails or has wrong bytes. It is
    /// called by a thread that reads.
    pub notice: fn(&str),
    /// Number of reads in flight on each drive.
    pub depth: usize,
    /// Bytes per demanded read. A speculative read has the same number, but at most 1 MiB.
    pub chunk: usize,
    /// Folder that keeps first-read checksums between processes, for files without checksums;
    /// `None` keeps them in memory only.
    pub cache: Option<PathBuf>,
    /// Source of time.
    pub clock: Clock,
    /// Disk to simulate. The store then has no threads: reads take virtual time, on a clock made
    /// with [`Clock::simulated`], and progress when a caller [`wait`](NVMeWeightStore::wait)s for
    /// them or [`spend`](NVMeWeightStore::spend)s time. The order of all events is deterministic.
    pub simulated: Option<SimulatedDisk>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            reader: None,
            mirrors: Vec::new(),
            notice: |_| (),
            depth: 4,
            chunk: 1 << 20,
            cache: user_cache(),
            clock: Clock::real(),
            simulated: None,
        }
    }
}

/// Folder for `sws` in the user's cache directory, for data that can be recreated.
pub fn user_cache() -> Option<PathBuf> {
    let caches = sws_os::places::of_user(|name| std::env::var_os(name), "XDG_CACHE_HOME", ".cache");
    Some(caches?.join("sws"))
}

/// Pieces of a model on a device, fetched into slots that the caller owns.
///
/// Reads happen on the store's own threads. A fetch takes over its slot. The completion returns the
/// slot, with every byte verified. A failed fetch names the piece and the file; the store stays
/// usable.
pub struct NVMeWeightStore {
    chunk: usize,
    shared: Arc<StoreShared>,
    manifest: Arc<Manifest>,
    dir: PathBuf,
    completions: Receiver<Completion>,
    reply: Sender<Completion>,
    lanes: Vec<JoinHandle<()>>,
    simulation: Option<Simulation>,
}

impl NVMeWeightStore {
    /// Opens a store of the pieces of `manifest`, whose files lie below `dir`. Files are opened
    /// when they are first read.
    pub fn open(
        manifest: Arc<Manifest>,
        dir: &Path,
        options: StoreOptions,
    ) -> std::io::Result<NVMeWeightStore> {
        let StoreOptions { reader, mirrors, notice, depth, chunk, cache, clock, simulated } =
            options;
        let depth = depth.max(1);
        let reader = match reader {
            Some(reader) => reader,
            None => ReaderKind::Direct.open(&manifest, dir, depth)?,
        };
        let batch = reader.batch().clamp(1, depth);
        let lanes = depth.div_ceil(batch) * (1 + mirrors.len());
        let simulation = match simulated {
            Some(disk) => {
                let mut disks = vec![disk];
                for mirror in &mirrors {
                    disks.push(mirror.simulated.unwrap_or(disk));
                }
                Some(Simulation::new(disks, depth))
            }
            None => None,
        };
        let drives = Drives::new(&manifest, dir, reader, mirrors, notice, clock.clone());
        let verifier = FileVerifier::new(&manifest, dir, drives, clock, cache);
        let queue = FetchQueue::new(chunk);
        let state = StoreState { queue, closing: false, begun: 0, idle: 0, watched: Vec::new() };
        let queue = Mutex::new(state);
        let work = Condvar::new();
        let progress = Condvar::new();
        let shared = Arc::new(StoreShared { queue, work, progress, verifier });
        let (reply, completions) = unbounded();
        let threads = if simulation.is_some() { 0 } else { lanes };
        let mut store = NVMeWeightStore {
            chunk: chunk.max(1),
            shared,
            manifest,
            dir: dir.to_owned(),
            completions,
            reply,
            lanes: Vec::new(),
            simulation,
        };
        for _ in 0..threads {
            store.start_lane(batch)?;
        }
        Ok(store)
    }

    /// Starts a reading thread, and waits until it has begun.
    fn start_lane(&mut self, batch: usize) -> std::io::Result<()> {
        // A thread allocates some memory before it runs, and ends the process if it fails. Threads
        // start one by one, as another one could take the memory that was seen to be free.
        drop(Arena::new(2 * STACK)?);
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new()
            .name(format!("sws-read-{}", self.lanes.len()))
            .stack_size(STACK)
            .spawn(move || shared.run_lane(batch))?;
        self.lanes.push(thread);
        let mut state = self.shared.lock();
        while state.begun < self.lanes.len() {
            state = self.shared.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Bytes per demanded read.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Directory of the store's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Clock of the store.
    pub fn clock(&self) -> &Clock {
        &self.shared.verifier.clock
    }

    /// The manifest it was opened with.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the layout of a read. It includes the length of the slot to use.
    pub fn layout(&self, read: Read) -> Result<Arc<PieceLayout>, LayoutError> {
        PieceLayout::new(&self.manifest, read).map(Arc::new)
    }

    /// Starts to read into `slot`. The completion arrives in [`completions`](Self::completions).
    pub fn fetch(
        &self,
        layout: Arc<PieceLayout>,
        priority: Priority,
        slot: Slot,
    ) -> Result<Ticket, SlotTooSmall> {
        self.fetch_to(layout, priority, slot, self.reply.clone())
    }

    /// Like [`fetch`](Self::fetch), but the completion is sent to `reply`.
    pub fn fetch_to(
        &self,
        layout: Arc<PieceLayout>,
        priority: Priority,
        slot: Slot,
        reply: Sender<Completion>,
    ) -> Result<Ticket, SlotTooSmall> {
        if slot.len() < layout.slot_len() {
            return Err(SlotTooSmall { need: layout.slot_len(), have: slot.len(), slot });
        }
        let now = self.shared.verifier.clock.now();
        let reads: usize = layout.segments().iter().map(|s| s.len.div_ceil(self.chunk)).sum();
        let (ticket, idle) = {
            let mut state = self.shared.lock();
            (state.queue.push(layout, slot, priority, reply, now), state.idle)
        };
        // Waking a thread takes longer than anything else here, so lanes without work stay asleep.
        match reads.min(idle) {
            0 => {}
            1 => self.shared.work.notify_one(),
            _ => self.shared.work.notify_all(),
        }
        Ok(ticket)
    }

    /// Receiver of the completions of [`fetch`](Self::fetch).
    pub fn completions(&self) -> &Receiver<Completion> {
        &self.completions
    }

    /// Waits for the next completion in `from`. Returns `None` if no more can arrive.
    pub fn wait(&self, from: &Receiver<Completion>) -> Option<Completion> {
        match &self.simulation {
            Some(simulation) => self.simulate(simulation, from),
            None => from.recv().ok(),
        }
    }

    /// Like [`wait`](Self::wait), with a timeout in real time. With a simulated disk there is no
    /// timeout.
    pub fn wait_timeout(
        &self,
        from: &Receiver<Completion>,
        timeout: Duration,
    ) -> Result<Completion, RecvTimeoutError> {
        match &self.simulation {
            Some(simulation) => {
                self.simulate(simulation, from).ok_or(RecvTimeoutError::Disconnected)
            }
            None => from.recv_timeout(timeout),
        }
    }

    fn simulate(&self, simulation: &Simulation, from: &Receiver<Completion>) -> Option<Completion> {
        loop {
            match from.try_recv() {
                Ok(completion) => return Some(completion),
                Err(_) if simulation.step(&self.shared) => {}
                Err(_) => return None,
            }
        }
    }

    /// Advances a virtual clock by `time`, for a computation during which the simulated disk
    /// continues to read. Real time passes by itself.
    pub fn spend(&self, time: Duration) {
        if let Some(simulation) = &self.simulation {
            simulation.advance(&self.shared, time);
        }
    }

    /// Promotes a fetch to a demanded one. A speculative fetch becomes the last of these; one of
    /// priority [`Priority::Ahead`] becomes the next, as it is needed now. Nothing is read twice.
    /// False if the fetch has ended.
    pub fn promote(&self, ticket: Ticket) -> bool {
        let known = self.shared.lock().queue.promote(ticket);
        self.shared.work.notify_all();
        known
    }

    /// True if any part of a fetch has been read or is being read, or if the fetch has ended.
    pub fn begun(&self, ticket: Ticket) -> bool {
        self.shared.lock().queue.begun(ticket)
    }

    /// Cancels a fetch. If no part of it is being read, this costs nothing.
    pub fn cancel(&self, ticket: Ticket) -> Cancelled {
        let cancelled = self.shared.lock().queue.cancel(ticket);
        self.shared.work.notify_all();
        cancelled
    }

    /// Performs one read and waits for it.
    pub fn read(&self, read: Read, arena: &Arena) -> Result<Completion, FetchError> {
        let mut done = None;
        self.extract_pieces(&[read], arena, |completion| done = Some(completion))?;
        let mut completion = done.ok_or(FetchError::Cancelled)?;
        std::mem::replace(&mut completion.result, Ok(()))?;
        Ok(completion)
    }

    /// Reads a selection in the order of the disk, as demanded reads, into slots of `arena`. Calls
    /// `each` with every completion as it arrives.
    ///
    /// The arena need not have room for all: reading continues as `each` drops slots. It is an
    /// error if there is no room for the next read and none is in flight.
    pub fn extract_pieces(
        &self,
        selection: &[Read],
        arena: &Arena,
        mut each: impl FnMut(Completion),
    ) -> Result<(), FetchError> {
        self.extract_while(selection, arena, |completion| {
            each(completion);
            ControlFlow::Continue(())
        })
    }

    /// Like [`extract_pieces`](Self::extract_pieces) until `each` breaks: reads in flight are then
    /// cancelled, and no others are started.
    pub fn extract_while(
        &self,
        selection: &[Read],
        arena: &Arena,
        mut each: impl FnMut(Completion) -> ControlFlow<()>,
    ) -> Result<(), FetchError> {
        let mut layouts = Vec::with_capacity(selection.len());
        for read in selection {
            layouts.push(self.layout(read.clone())?);
        }
        layouts.sort_by_key(|layout| layout.segments().first().map(|s| (s.file, s.offset)));
        let (reply, arrived) = unbounded();
        let mut under_way: Vec<Ticket> = Vec::new();
        let mut waiting = layouts.into_iter().peekable();
        let mut no_room = None;
        loop {
            while no_room.is_none()
                && let Some(layout) = waiting.peek()
            {
                let need = layout.slot_len();
                let piece = layout.read().piece();
                let Some(slot) = arena.take(need) else {
                    if under_way.is_empty() {
                        no_room = Some(FetchError::NoSlot { piece, need });
                    }
                    break;
                };
                let Some(layout) = waiting.next() else { break };
                match self.fetch_to(layout, Priority::Demanded, slot, reply.clone()) {
                    Ok(ticket) => under_way.push(ticket),
                    Err(_) => no_room = Some(FetchError::NoSlot { piece, need }),
                }
            }
            if under_way.is_empty() {
                return no_room.map_or(Ok(()), Err);
            }
            let Some(completion) = self.wait(&arrived) else { return Err(FetchError::Cancelled) };
            under_way.retain(|&ticket| ticket != completion.ticket);
            if each(completion).is_break() {
                for ticket in under_way {
                    self.cancel(ticket);
                }
                return Ok(());
            }
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> StoreStats {
        let verifier = &self.shared.verifier;
        let mut stats = self.shared.lock().queue.stats(verifier.clock.now());
        stats.mismatches = verifier.mismatches.load(Ordering::Relaxed);
        stats.corrected = verifier.corrected.load(Ordering::Relaxed);
        stats.drives = verifier.drives.stats();
        stats
    }
}

impl Drop for NVMeWeightStore {
    /// Waits for the chunks that are being read, and cancels all other reads.
    fn drop(&mut self) {
        let now = self.shared.verifier.clock.now();
        {
            let mut state = self.shared.lock();
            state.closing = true;
            state.queue.close(now);
        }
        self.shared.work.notify_all();
        for lane in self.lanes.drain(..) {
            let _ = lane.join();
        }
        if let Some(simulation) = &self.simulation {
            while simulation.step(&self.shared) {}
        }
    }
}

impl std::fmt::Debug for NVMeWeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NVMeWeightStore")
            .field("reader", &self.shared.verifier.drives.reader_name())
            .field("lanes", &self.lanes.len())
            .finish_non_exhaustive()
    }
}
