//! What is too much to keep, read in the order in which it is needed.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_kernels::{Matrix, PartRows};
use sws_model::{LoadError, Role, SourceError, WeightsError, first_not_finite};
use sws_store::{
    Cancelled, Completion, LayoutError, NVMeWeightStore, PieceId, PieceLayout, Priority, Slot,
    Ticket,
};

use super::ring_buffer::RingBuffer;
use super::schedule::{Next, StreamSchedule, Streamed};
use crate::error::StreamError;
use crate::wait::Waiter;

/// Reads the matrices of a [`StreamSchedule`] ahead of the pass, as far as there is room, and lends them to
/// it block by block.
///
/// All reads of a course are certain, so the device is asked for everything that there is room for,
/// in the order in which it will be needed, but behind whatever is demanded now
/// ([`Priority::Ahead`]). What the pass waits for goes before everything.
#[derive(Debug)]
pub(crate) struct Ring {
    store: Arc<NVMeWeightStore>,
    waiter: Waiter,
    course: StreamSchedule,
    room: RingBuffer,
    /// Under way or here, in the order in which they are needed.
    entries: VecDeque<Entry>,
    /// What comes behind them, for which there was no room.
    layout: Option<(Next, Arc<PieceLayout>)>,
    /// Reads given up whose slots are still to come.
    stopping: usize,
    reply: Sender<Completion>,
    arrived: Receiver<Completion>,
    /// Blocks whose numbers have been looked at.
    seen: Vec<bool>,
    /// Whether the head was asked for since the pass began.
    had_head: bool,
}

#[derive(Debug)]
struct Entry {
    next: Next,
    ticket: Ticket,
    /// None while it is being read.
    done: Option<Completion>,
}

/// A read that is there.
struct Here {
    slot: Slot,
    layout: Arc<PieceLayout>,
}

impl Ring {
    pub(crate) fn new(
        store: Arc<NVMeWeightStore>,
        waiter: Waiter,
        course: StreamSchedule,
        room: RingBuffer,
    ) -> Ring {
        let (reply, arrived) = unbounded();
        let seen = vec![false; course.blocks()];
        Ring {
            store,
            waiter,
            course,
            room,
            entries: VecDeque::new(),
            layout: None,
            stopping: 0,
            reply,
            arrived,
            seen,
            had_head: true,
        }
    }

    /// A pass begins. Whether the last one asked for the head is the best guess whether this one
    /// will: all do but those of a long prompt.
    pub(crate) fn begin(&mut self) -> Result<(), StreamError> {
        self.course.to_head = std::mem::take(&mut self.had_head);
        self.fill()
    }

    /// The router has chosen.
    pub(crate) fn route(&mut self, layer: usize, experts: &[u32]) -> Result<(), StreamError> {
        self.course.route(layer, experts);
        self.fill()
    }

    /// Reads on, as far as there is room.
    pub(crate) fn fill(&mut self) -> Result<(), StreamError> {
        while let Some(completion) = self.waiter.poll(&self.arrived)? {
            self.land(completion);
        }
        while let Some(next) = self.course.next() {
            let layout = match self.layout.take() {
                Some((of, layout)) if of == next => layout,
                _ => self.store.layout(next.matrix.read(next.read))?,
            };
            let Some(slot) = self.room.take(layout.slot_len()) else {
                self.layout = Some((next, layout));
                break;
            };
            let reply = self.reply.clone();
            match self.store.fetch_to(layout, Priority::Ahead, slot, reply) {
                Ok(ticket) => self.entries.push_back(Entry { next, ticket, done: None }),
                Err(refused) => {
                    self.room.give(refused.slot);
                    break;
                }
            }
            self.course.advance();
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
        let matrix = self.turn_to(piece, role)?;
        self.had_head |= matches!(role, Role::Head | Role::Embedding);
        let rest = match matrix.has_rest() {
            true => Some(self.next()?),
            false => None,
        };
        for block in 0..matrix.blocks() {
            let here = self.next()?;
            let lent = self.view(&matrix, block, &here, rest.as_ref()).map(|view| {
                compute(matrix.rows_of(block).start as usize, &view);
            });
            self.seen[matrix.first + block] |= lent.is_ok();
            self.room.give(here.slot);
            lent?;
            self.fill()?;
        }
        if let Some(rest) = rest {
            self.room.give(rest.slot);
            self.fill()?;
        }
        Ok(())
    }

    /// The bytes that hold nothing.
    pub(crate) fn free_bytes(&self) -> usize {
        self.room.free_bytes()
    }

    /// Gives up all that is being read ahead; the room is whole again. The next pass may begin
    /// anywhere.
    pub(crate) fn interrupt(&mut self) {
        while let Some(entry) = self.entries.pop_back() {
            self.drop_entry(entry);
        }
        // What was on the device is there in a moment; nobody computes meanwhile.
        while self.stopping > 0
            && let Some(completion) = self.waiter.settle(&self.store, &self.arrived)
        {
            self.land(completion);
        }
        self.course.restart();
        self.layout = None;
    }

    /// Makes the first read of this matrix the next one.
    fn turn_to(&mut self, piece: PieceId, role: Role) -> Result<Streamed, StreamError> {
        let is =
            |next: &Next| next.matrix.piece == piece && next.matrix.role == role && next.read == 0;
        match self.entries.iter().position(|entry| is(&entry.next)) {
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
        match self.course.next() {
            Some(next) if is(&next) => Ok(next.matrix),
            _ => {
                let unknown = LayoutError::NoPiece(piece);
                self.course.seek(piece, role).ok_or(StreamError::Layout(unknown))
            }
        }
    }

    /// Waits for the entry that stands first.
    fn next(&mut self) -> Result<Here, StreamError> {
        loop {
            if let Some(Entry { done: Some(_), .. }) = self.entries.front()
                && let Some(Entry { done: Some(done), .. }) = self.entries.pop_front()
            {
                let Completion { result, slot, layout, .. } = done;
                return match result {
                    Ok(()) => Ok(Here { slot, layout }),
                    Err(error) => {
                        self.room.give(slot);
                        Err(error.into())
                    }
                };
            }
            self.fill()?;
            match self.entries.front() {
                Some(Entry { done: None, ticket, .. }) => {
                    self.store.promote(*ticket);
                }
                Some(_) => continue,
                // All there is is being given back.
                None if self.stopping > 0 => {}
                None => {
                    let need = self.layout.as_ref().map_or(0, |(_, layout)| layout.slot_len());
                    return Err(StreamError::RingTooSmall { need, have: self.room.free_bytes() });
                }
            }
            let completion = self.waiter.wait(&self.store, &self.arrived)?;
            self.land(completion);
        }
    }

    /// Notes what has arrived.
    fn land(&mut self, completion: Completion) {
        match self.entries.iter_mut().find(|entry| entry.ticket == completion.ticket) {
            Some(entry) => entry.done = Some(completion),
            None => {
                self.stopping -= 1;
                self.room.give(completion.slot);
            }
        }
    }

    fn drop_entry(&mut self, entry: Entry) {
        if let Some(done) = entry.done {
            return self.room.give(done.slot);
        }
        match self.store.cancel(entry.ticket) {
            Cancelled::Withdrawn(slot) => self.room.give(slot),
            Cancelled::Stopping | Cancelled::Finished => self.stopping += 1,
        }
    }

    /// A block as a matrix, every number in it looked at once.
    fn view<'a>(
        &self,
        matrix: &Streamed,
        block: usize,
        here: &'a Here,
        rest: Option<&'a Here>,
    ) -> Result<Matrix<'a>, StreamError> {
        let &Streamed { encoding, cols, .. } = matrix;
        let rows = matrix.rows_of(block);
        let mut parts: [&[u8]; 3] = [&[]; 3];
        for (number, (kind, part)) in encoding.parts().iter().zip(&mut parts).enumerate() {
            let from = match rest {
                Some(rest) if number > 0 => rest,
                _ => here,
            };
            let tensor = &from.layout.tensors()[0];
            let bytes = tensor.part(&from.slot, number).unwrap_or_default();
            // What was read apart has all rows.
            *part = match kind.rows(rows.clone(), cols) {
                Some(PartRows::Bytes(range)) if rest.is_some() && number > 0 => {
                    bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
                }
                _ => bytes,
            };
        }
        let used = &parts[..encoding.parts().len()];
        let size = |n: u64| n as usize;
        let range = size(rows.start)..size(rows.end);
        let name = || here.layout.tensors()[0].name.clone();
        let view = Matrix::block(encoding, size(matrix.rows), size(cols), range, used)
            .map_err(|cause| LoadError::Matrix { name: name(), cause })?;
        if !self.seen[matrix.first + block]
            && let Some((row, col, value)) = first_not_finite(&view, &parts)
        {
            let row = row + rows.start as usize;
            return Err(
                LoadError::from(WeightsError::NotFinite { name: name(), value, row, col }).into()
            );
        }
        Ok(view)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.interrupt();
    }
}
