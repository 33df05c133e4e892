//! Order in which chunks are read. There are no threads and no I/O here; `store` runs it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::fetch::{Cancelled, Completion, FetchError, Priority, Ticket, Timing};
use crate::integrity::Transfer;
use crate::layout::PieceLayout;
use crate::stats::{StoreStats, Traffic};
use crate::{SLOT_ALIGN, Slot};

/// Largest speculative chunk. A demanded read waits for at most one of them.
pub(crate) const SPECULATIVE_CHUNK: usize = 1 << 20;

/// One read to perform.
pub(crate) struct ReadJob {
    pub(crate) ticket: Ticket,
    pub(crate) transfer: Arc<Transfer>,
    pub(crate) priority: Priority,
    pub(crate) file: u32,
    pub(crate) offset: u64,
    /// Destination in the slot.
    pub(crate) range: Range<usize>,
    /// Number of these bytes that the file has.
    pub(crate) present: usize,
}

/// Availability of a verified prefix of a fetch.
pub(crate) enum HeldPrefix {
    Now(Arc<Transfer>),
    Later,
    /// The fetch has ended, or will end with an error.
    Over,
}

/// The fetches in flight.
pub(crate) struct FetchQueue {
    entries: HashMap<Ticket, FetchEntry>,
    /// Fetches with reads still to be issued, in the order of service, by priority.
    lines: [VecDeque<Ticket>; 3],
    on_device: [usize; 3],
    busy_since: Duration,
    next_ticket: u64,
    chunk: usize,
    stats: StoreStats,
}

struct FetchEntry {
    transfer: Arc<Transfer>,
    slot: Slot,
    priority: Priority,
    /// Progress of issued reads: number of whole segments, and bytes of the next one.
    segment: usize,
    within: usize,
    /// Jobs issued and not finished, and borrowers of the bytes read so far.
    busy: usize,
    error: Option<FetchError>,
    timing: Timing,
    reply: Sender<Completion>,
}

impl FetchQueue {
    /// Creates a queue that cuts demanded reads into chunks of `chunk` bytes.
    pub(crate) fn new(chunk: usize) -> FetchQueue {
        FetchQueue {
            entries: HashMap::new(),
            lines: Default::default(),
            on_device: [0; 3],
            busy_since: Duration::ZERO,
            next_ticket: 0,
            chunk: chunk.next_multiple_of(SLOT_ALIGN).max(SLOT_ALIGN),
            stats: StoreStats::default(),
        }
    }

    pub(crate) fn push(
        &mut self,
        layout: Arc<PieceLayout>,
        mut slot: Slot,
        priority: Priority,
        reply: Sender<Completion>,
        now: Duration,
    ) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let empty = layout.segments().is_empty();
        let transfer = Arc::new(Transfer::new(layout, slot.memory()));
        let timing = Timing { submitted: now, ..Timing::default() };
        let entry = FetchEntry {
            transfer,
            slot,
            priority,
            segment: 0,
            within: 0,
            busy: 0,
            error: None,
            timing,
            reply,
        };
        self.entries.insert(ticket, entry);
        if empty {
            self.finish(ticket, now);
            return ticket;
        }
        self.line(priority).push_back(ticket);
        self.count_queued();
        self.stats.most_queued = self.stats.most_queued.max(self.stats.queued);
        ticket
    }

    /// Promotes a fetch to a demanded one, keeping the bytes read so far. False if it has ended.
    ///
    /// A fetch of priority [`Priority::Ahead`] goes before all others: it is due now, and nothing
    /// is computed until it is complete. A speculative one goes behind those already demanded.
    pub(crate) fn promote(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.entries.get_mut(&ticket) else { return false };
        let before = std::mem::replace(&mut entry.priority, Priority::Demanded);
        if before == Priority::Demanded {
            return true;
        }
        let line = self.line(before);
        if let Some(at) = line.iter().position(|&other| other == ticket) {
            line.remove(at);
            match before {
                Priority::Ahead => self.line(Priority::Demanded).push_front(ticket),
                _ => self.line(Priority::Demanded).push_back(ticket),
            }
        }
        self.stats.promoted += 1;
        true
    }

    /// True if a read of the fetch has been issued, or if the fetch has ended.
    pub(crate) fn begun(&self, ticket: Ticket) -> bool {
        self.entries.get(&ticket).is_none_or(|entry| entry.timing.started.is_some())
    }

    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Cancelled {
        let Some(entry) = self.entries.get_mut(&ticket) else { return Cancelled::Finished };
        let busy = entry.busy;
        let priority = entry.priority;
        if busy > 0 {
            entry.error.get_or_insert(FetchError::Cancelled);
        }
        self.line(priority).retain(|&other| other != ticket);
        self.count_queued();
        if busy > 0 {
            return Cancelled::Stopping;
        }
        match self.entries.remove(&ticket) {
            Some(entry) => {
                self.traffic(priority).cancelled += 1;
                Cancelled::Withdrawn(entry.slot)
            }
            None => Cancelled::Finished,
        }
    }

    /// Returns the next reads to issue, at most `most`; empty if there is nothing to do for now.
    ///
    /// Demanded fetches are served one after another, so that the first is complete as soon as
    /// possible. Fetches of priority [`Priority::Ahead`] follow. A speculative chunk is issued only
    /// when nothing else is queued or on the device, so a demand made a moment later waits for at
    /// most one chunk.
    pub(crate) fn take(&mut self, most: usize, now: Duration) -> Vec<ReadJob> {
        let mut jobs = Vec::new();
        while jobs.len() < most
            && let Some(&ticket) = self.lines[0].front().or_else(|| self.lines[1].front())
        {
            self.cut(ticket, self.chunk, now, &mut jobs);
        }
        if jobs.is_empty()
            && self.on_device == [0; 3]
            && let Some(&ticket) = self.lines[2].front()
        {
            self.cut(ticket, self.chunk.min(SPECULATIVE_CHUNK), now, &mut jobs);
        }
        self.count_queued();
        jobs
    }

    /// True if there are reads still to be issued.
    pub(crate) fn waits(&self) -> bool {
        self.lines.iter().any(|line| !line.is_empty())
    }

    /// Issues the next chunk of a fetch that stands first in its line.
    fn cut(&mut self, ticket: Ticket, chunk: usize, now: Duration, jobs: &mut Vec<ReadJob>) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let transfer = Arc::clone(&entry.transfer);
        let segments = transfer.layout.segments();
        let segment = &segments[entry.segment];
        let from = entry.within;
        let to = (from + chunk).min(segment.len);
        let priority = entry.priority;
        let job = ReadJob {
            ticket,
            priority,
            file: segment.file,
            offset: segment.offset + from as u64,
            range: segment.at + from..segment.at + to,
            present: segment.present.min(to).saturating_sub(from),
            transfer: Arc::clone(&transfer),
        };
        entry.busy += 1;
        entry.within = to;
        if to == segment.len {
            entry.segment += 1;
            entry.within = 0;
        }
        let exhausted = entry.segment == segments.len();
        let first = entry.timing.started.is_none();
        let waited = now.saturating_sub(entry.timing.submitted);
        entry.timing.started.get_or_insert(now);
        if exhausted {
            self.line(priority).pop_front();
        }
        if self.on_device == [0; 3] {
            self.busy_since = now;
        }
        self.on_device[priority as usize] += 1;
        let traffic = self.traffic(priority);
        traffic.reads += 1;
        traffic.bytes += job.present as u64;
        if first {
            traffic.waited += waited;
        }
        jobs.push(job);
    }

    /// Records that the device has finished a job that was issued at `started`.
    pub(crate) fn off_device(&mut self, priority: Priority, started: Duration, now: Duration) {
        self.on_device[priority as usize] -= 1;
        self.traffic(priority).on_device += now.saturating_sub(started);
        if self.on_device == [0; 3] {
            self.stats.busy += now.saturating_sub(self.busy_since);
        }
    }

    /// Lends the first `len` bytes of a fetch once they are verified. The fetch does not end before
    /// [`done`](Self::done) is called once more.
    pub(crate) fn hold(&mut self, ticket: Ticket, len: usize) -> HeldPrefix {
        let Some(entry) = self.entries.get_mut(&ticket).filter(|entry| entry.error.is_none())
        else {
            return HeldPrefix::Over;
        };
        if entry.transfer.verified() < len {
            return HeldPrefix::Later;
        }
        entry.busy += 1;
        HeldPrefix::Now(Arc::clone(&entry.transfer))
    }

    /// True unless [`hold`](Self::hold) would return [`HeldPrefix::Later`].
    pub(crate) fn has_landed(&self, ticket: Ticket, len: usize) -> bool {
        self.entries
            .get(&ticket)
            .is_none_or(|entry| entry.error.is_some() || entry.transfer.verified() >= len)
    }

    /// Records that a job is finished, including its checksums. The last job ends the fetch.
    pub(crate) fn done(&mut self, ticket: Ticket, result: Result<(), FetchError>, now: Duration) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        entry.busy -= 1;
        if let Err(error) = result {
            // A failure is more informative than a cancellation.
            match &mut entry.error {
                Some(first) if !matches!(first, FetchError::Cancelled) => {}
                slot => *slot = Some(error),
            }
            let priority = entry.priority;
            self.line(priority).retain(|&other| other != ticket);
        }
        let entry = &self.entries[&ticket];
        let exhausted = entry.segment == entry.transfer.layout.segments().len();
        if entry.busy == 0 && (exhausted || entry.error.is_some()) {
            self.finish(ticket, now);
        }
    }

    /// Cancels every fetch. Those being read end with their last job, all others now.
    pub(crate) fn close(&mut self, now: Duration) {
        self.lines = Default::default();
        let idle: Vec<Ticket> =
            self.entries.iter().filter(|(_, entry)| entry.busy == 0).map(|(t, _)| *t).collect();
        for entry in self.entries.values_mut() {
            entry.error.get_or_insert(FetchError::Cancelled);
        }
        for ticket in idle {
            self.finish(ticket, now);
        }
    }

    fn finish(&mut self, ticket: Ticket, now: Duration) {
        let Some(mut entry) = self.entries.remove(&ticket) else { return };
        entry.timing.finished = now;
        entry.timing.checksum = entry.transfer.spent();
        self.stats.checksum += entry.timing.checksum;
        let traffic = self.traffic(entry.priority);
        match &entry.error {
            None => traffic.completed += 1,
            Some(FetchError::Cancelled) => traffic.cancelled += 1,
            Some(_) => traffic.failed += 1,
        }
        let layout = Arc::clone(&entry.transfer.layout);
        let result = entry.error.map_or(Ok(()), Err);
        // If the receiver is gone, the slot returns to its arena.
        let _ = entry.reply.send(Completion {
            ticket,
            layout,
            slot: entry.slot,
            result,
            timing: entry.timing,
        });
    }

    pub(crate) fn stats(&self, now: Duration) -> StoreStats {
        let mut stats = self.stats.clone();
        stats.on_device = self.on_device.iter().sum();
        if stats.on_device > 0 {
            stats.busy += now.saturating_sub(self.busy_since);
        }
        stats
    }

    fn line(&mut self, priority: Priority) -> &mut VecDeque<Ticket> {
        &mut self.lines[priority as usize]
    }

    fn count_queued(&mut self) {
        self.stats.queued = self.lines.iter().map(VecDeque::len).sum();
    }

    fn traffic(&mut self, priority: Priority) -> &mut Traffic {
        match priority {
            Priority::Demanded => &mut self.stats.demanded,
            Priority::Ahead => &mut self.stats.ahead,
            Priority::Speculative => &mut self.stats.speculative,
        }
    }
}
