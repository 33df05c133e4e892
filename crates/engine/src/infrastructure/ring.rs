//! The ring: streamed weights, read in the order in which they are needed.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_format::PieceId;
use sws_kernels::{Encoding, Matrix};
use sws_model::{LoadError, Role, SourceError, WeightsError};
use sws_store::{
    Cancelled, Completion, LayoutError, NVMeWeightStore, PieceLayout, Priority, Slot, Ticket,
};

use super::of_rows;
use super::ring_buffer::RingBuffer;
use super::schedule::{NextRead, StreamSchedule, Streamed};
use crate::error::StreamError;
use crate::wait::Waiter;

/// Reads the matrices of a [`StreamSchedule`] ahead of the pass, as far as there is room, and lends
/// them to the pass block by block.
///
/// All scheduled reads are certain. They are therefore issued as far as there is room, in the order
/// in which they will be needed, but behind demand reads ([`Priority::Ahead`]). The read that the
/// pass waits for goes before all others.
#[derive(Debug)]
pub(crate) struct StreamRing {
    store: Arc<NVMeWeightStore>,
    waiter: Waiter,
    schedule: StreamSchedule,
    buffer: RingBuffer,
    /// Reads in flight or done, in the order in which they are needed.
    entries: VecDeque<RingEntry>,
    /// The next read, if the ring had no room for it.
    layout: Option<(NextRead, Arc<PieceLayout>)>,
    /// Number of cancelled reads whose slots have not been returned.
    stopping: usize,
    reply: Sender<Completion>,
    arrived: Receiver<Completion>,
    /// True for each block whose numbers have been checked.
    checked: Vec<bool>,
    /// True if the head was used since the pass began.
    head_used: bool,
}

#[derive(Debug)]
struct RingEntry {
    next: NextRead,
    ticket: Ticket,
    /// `None` while it is being read.
    done: Option<Completion>,
}

/// A completed read.
struct Fetched {
    slot: Slot,
    layout: Arc<PieceLayout>,
}

impl Fetched {
    /// The bytes of a part of its matrix.
    fn part(&self, number: usize) -> &[u8] {
        self.layout.tensors()[0].part(&self.slot, number).unwrap_or_default()
    }
}

impl StreamRing {
    pub(crate) fn new(
        store: Arc<NVMeWeightStore>,
        waiter: Waiter,
        schedule: StreamSchedule,
        buffer: RingBuffer,
    ) -> StreamRing {
        let (reply, arrived) = unbounded();
        let checked = vec![false; schedule.blocks()];
        StreamRing {
            store,
            waiter,
            schedule,
            buffer,
            entries: VecDeque::new(),
            layout: None,
            stopping: 0,
            reply,
            arrived,
            checked,
            head_used: true,
        }
    }

    /// Begins a pass. It is expected to use the head if the previous pass did. All passes use the
    /// head except those of a long prompt.
    pub(crate) fn begin(&mut self) -> Result<(), StreamError> {
        self.schedule.expects_head = std::mem::take(&mut self.head_used);
        self.fill()
    }

    /// Schedules the experts that a router has chosen.
    pub(crate) fn route(&mut self, layer: usize, experts: &[u32]) -> Result<(), StreamError> {
        self.schedule.route(layer, experts);
        self.fill()
    }

    /// Starts reads, as far as there is room.
    pub(crate) fn fill(&mut self) -> Result<(), StreamError> {
        while let Some(completion) = self.waiter.poll(&self.arrived)? {
            self.on_completion(completion);
        }
        while let Some(next) = self.schedule.next() {
            let layout = match self.layout.take() {
                Some((of, layout)) if of == next => layout,
                _ => self.store.layout(next.matrix.read(next.read))?,
            };
            let Some(slot) = self.buffer.take(layout.slot_len()) else {
                self.layout = Some((next, layout));
                break;
            };
            let reply = self.reply.clone();
            match self.store.fetch_to(layout, Priority::Ahead, slot, reply) {
                Ok(ticket) => self.entries.push_back(RingEntry { next, ticket, done: None }),
                Err(refused) => {
                    self.buffer.give(refused.slot);
                    break;
                }
            }
            self.schedule.advance();
        }
        Ok(())
    }

    /// Lends the blocks of a matrix, each with the number of its first row.
    pub(crate) fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        let lent = self.lend(piece, role, compute);
        if lent.is_err() {
            self.interrupt();
        }
        Ok(lent?)
    }

    fn lend(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), StreamError> {
        let matrix = self.seek(piece, role)?;
        self.head_used |= matches!(role, Role::Head | Role::Embedding);
        let rest = match matrix.has_rest() {
            true => Some(self.next()?),
            false => None,
        };
        let lent = self.lend_blocks(&matrix, rest.as_ref(), compute);
        if let Some(rest) = rest {
            self.buffer.give(rest.slot);
        }
        lent?;
        self.fill()
    }

    fn lend_blocks(
        &mut self,
        matrix: &Streamed,
        rest: Option<&Fetched>,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), StreamError> {
        for block in 0..matrix.blocks() {
            let fetched = self.next()?;
            let lent = self.view(matrix, block, &fetched, rest).map(|view| {
                compute(matrix.rows_of(block).start as usize, &view);
            });
            self.checked[matrix.first + block] |= lent.is_ok();
            self.buffer.give(fetched.slot);
            lent?;
            self.fill()?;
        }
        Ok(())
    }

    /// Unused bytes.
    pub(crate) fn free_bytes(&self) -> usize {
        self.buffer.free_bytes()
    }

    /// Cancels all reads and frees the whole buffer. The next pass may begin anywhere.
    pub(crate) fn interrupt(&mut self) {
        while let Some(entry) = self.entries.pop_back() {
            self.drop_entry(entry);
        }
        // Reads that are already on the device end soon, and delay no computation.
        while self.stopping > 0
            && let Some(completion) = self.waiter.settle(&self.store, &self.arrived)
        {
            self.on_completion(completion);
        }
        self.schedule.restart();
        self.layout = None;
    }

    /// Makes the first read of a matrix the next one.
    fn seek(&mut self, piece: PieceId, role: Role) -> Result<Streamed, StreamError> {
        match self.entries.iter().position(|entry| entry.next.begins(piece, role)) {
            Some(at) => {
                for _ in 0..at {
                    if let Some(entry) = self.entries.pop_front() {
                        self.drop_entry(entry);
                    }
                }
            }
            None => {
                while let Some(entry) = self.entries.pop_back() {
                    self.drop_entry(entry);
                }
            }
        }
        if let Some(entry) = self.entries.front() {
            return Ok(entry.next.matrix);
        }
        match self.schedule.next() {
            Some(next) if next.begins(piece, role) => Ok(next.matrix),
            _ => {
                let unknown = LayoutError::NoPiece(piece);
                self.schedule.seek(piece, role).ok_or(StreamError::Layout(unknown))
            }
        }
    }

    /// Waits for the first entry.
    fn next(&mut self) -> Result<Fetched, StreamError> {
        loop {
            if let Some(RingEntry { done: Some(_), .. }) = self.entries.front()
                && let Some(RingEntry { done: Some(done), .. }) = self.entries.pop_front()
            {
                let Completion { result, slot, layout, .. } = done;
                return match result {
                    Ok(()) => Ok(Fetched { slot, layout }),
                    Err(error) => {
                        self.buffer.give(slot);
                        Err(error.into())
                    }
                };
            }
            self.fill()?;
            match self.entries.front() {
                Some(RingEntry { done: None, ticket, .. }) => {
                    self.store.promote(*ticket);
                }
                Some(_) => continue,
                // Cancelled reads hold all of the memory.
                None if self.stopping > 0 => {}
                None => {
                    let need = match &self.layout {
                        Some((_, layout)) => layout.slot_len(),
                        None => 0,
                    };
                    return Err(StreamError::RingTooSmall { need, have: self.buffer.free_bytes() });
                }
            }
            let completion = self.waiter.wait(&self.store, &self.arrived)?;
            self.on_completion(completion);
        }
    }

    /// Records a completed read.
    fn on_completion(&mut self, completion: Completion) {
        match self.entries.iter_mut().find(|entry| entry.ticket == completion.ticket) {
            Some(entry) => entry.done = Some(completion),
            None => {
                self.stopping -= 1;
                self.buffer.give(completion.slot);
            }
        }
    }

    fn drop_entry(&mut self, entry: RingEntry) {
        if let Some(done) = entry.done {
            return self.buffer.give(done.slot);
        }
        match self.store.cancel(entry.ticket) {
            Cancelled::Withdrawn(slot) => self.buffer.give(slot),
            Cancelled::Stopping | Cancelled::Finished => self.stopping += 1,
        }
    }

    /// Returns a block as a matrix, after checking its numbers when it is first read.
    fn view<'a>(
        &self,
        matrix: &Streamed,
        block: usize,
        fetched: &'a Fetched,
        rest: Option<&'a Fetched>,
    ) -> Result<Matrix<'a>, StreamError> {
        let &Streamed { encoding, cols, .. } = matrix;
        let rows = matrix.rows_of(block);
        let mut parts: [&[u8]; Encoding::MOST_PARTS] = [&[]; Encoding::MOST_PARTS];
        for (number, (kind, part)) in encoding.parts().iter().zip(&mut parts).enumerate() {
            *part = match rest {
                Some(rest) if number > 0 => of_rows(kind, rows.clone(), cols, rest.part(number)),
                _ => fetched.part(number),
            };
        }
        let used = &parts[..encoding.parts().len()];
        let range = rows.start as usize..rows.end as usize;
        let name = &fetched.layout.tensors()[0].name;
        let view = Matrix::block(encoding, matrix.rows as usize, cols as usize, range, used);
        let view = match view {
            Ok(view) => view,
            Err(cause) => return Err(LoadError::Matrix { name: name.clone(), cause }.into()),
        };
        if !self.checked[matrix.first + block]
            && let Some((row, col, value)) = view.first_not_finite()
        {
            let row = row + rows.start as usize;
            let piece = fetched.layout.read().piece();
            let index = fetched.layout.tensors()[0].index;
            let name = name.clone();
            let piece = self.store.manifest().piece(piece);
            let file = piece.map(|piece| piece.tensors[index].source.clone());
            return Err(
                LoadError::from(WeightsError::NotFinite { name, file, value, row, col }).into()
            );
        }
        Ok(view)
    }
}

impl Drop for StreamRing {
    fn drop(&mut self) {
        self.interrupt();
    }
}
