//! Rows of a table that is not resident: the embedding, or what tokens give to layers.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_kernels::Matrix;
use sws_model::{Held, LoadError, TakeRow, WeightsError, first_not_finite};
use sws_store::{
    Arena, Completion, Manifest, NVMeWeightStore, Parts, PieceId, PieceLayout, Priority, Read, Slot,
};

use super::ring_buffer::RingBuffer;
use crate::error::StreamError;
use crate::wait::Waiter;

/// Reads the rows of tokens, along with other rows under the same checksums.
#[derive(Debug)]
pub(crate) struct TableRows {
    piece: PieceId,
    held: Held,
    /// Table and patches of bf12 or bf11, which every row needs.
    rest: Option<(Slot, Arc<PieceLayout>)>,
    buffer: RingBuffer,
    reply: Sender<Completion>,
    arrived: Receiver<Completion>,
    /// By row: true at the first row of each block whose numbers have been checked.
    checked: Vec<bool>,
    /// The tokens whose rows are being read.
    tokens: Vec<u32>,
    /// Their indices, sorted by token.
    order: Vec<usize>,
    /// Number of those in `order` whose rows have been requested.
    next: usize,
    /// The end of the rows that have been requested: rows of larger tokens have not been.
    requested: u64,
    /// Reads of these rows.
    in_flight: usize,
    /// A decoded row.
    row: Vec<f32>,
}

/// Maximum number of rows read at once: more than a device needs to be busy.
const MAX_IN_FLIGHT: usize = 16;

impl TableRows {
    /// Bytes that it has taken.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes() + self.rest.as_ref().map_or(0, |(slot, _)| slot.len())
    }

    /// The table that it reads.
    pub(crate) fn piece(&self) -> PieceId {
        self.piece
    }

    /// Minimum bytes that it takes.
    pub(crate) fn least(
        manifest: &Manifest,
        piece: PieceId,
        held: &Held,
    ) -> Result<usize, StreamError> {
        let rest = match held.encoding.has_patches() {
            true => {
                let read = read(piece, held, 0..held.rows as u64, Parts::Rest);
                PieceLayout::new(manifest, read)?.slot_len()
            }
            false => 0,
        };
        Ok(rest + row_bytes(manifest, piece, held)?)
    }

    /// Takes room for one row out of `arena`, and for as many more as fit into `share` bytes.
    pub(crate) fn new(
        store: &NVMeWeightStore,
        arena: &Arena,
        (piece, held): (PieceId, Held),
        share: usize,
    ) -> Result<TableRows, StreamError> {
        let rest = match held.encoding.has_patches() {
            true => {
                let read = read(piece, &held, 0..held.rows as u64, Parts::Rest);
                let done = store.read(read, arena)?;
                Some((done.slot, done.layout))
            }
            false => None,
        };
        let row = row_bytes(store.manifest(), piece, &held)?;
        let rows = (1 + share / row).min(MAX_IN_FLIGHT);
        let have = arena.free_bytes();
        let buffer =
            arena.take(rows * row).ok_or(StreamError::NoRoom { need: rows * row, have })?;
        let (reply, arrived) = unbounded();
        Ok(TableRows {
            piece,
            held,
            rest,
            buffer: RingBuffer::new(Some(buffer)),
            reply,
            arrived,
            checked: vec![false; held.rows],
            tokens: Vec::new(),
            order: Vec::new(),
            next: 0,
            requested: 0,
            in_flight: 0,
            row: vec![0.0; held.cols],
        })
    }

    /// Begins to read the rows of `tokens`, as far as there is room.
    pub(crate) fn begin(
        &mut self,
        store: &NVMeWeightStore,
        waiter: &Waiter,
        tokens: &[u32],
    ) -> Result<(), StreamError> {
        self.settle(store, waiter);
        self.tokens.extend_from_slice(tokens);
        self.order.extend(0..tokens.len());
        self.order.sort_unstable_by_key(|&place| tokens[place]);
        self.request(store)
    }

    /// Calls `take` with the place and the row of each of `tokens`. They are read now, unless
    /// [`begin`](Self::begin) was last called with them.
    pub(crate) fn finish(
        &mut self,
        store: &NVMeWeightStore,
        waiter: &Waiter,
        tokens: &[u32],
        take: TakeRow<'_>,
    ) -> Result<(), StreamError> {
        if self.tokens != tokens {
            self.begin(store, waiter, tokens)?;
        }
        while self.in_flight > 0 {
            let done = waiter.wait(store, &self.arrived)?;
            self.in_flight -= 1;
            let Completion { result, slot, layout, .. } = done;
            let decoded =
                result.map_err(StreamError::from).and_then(|()| self.decode(&layout, &slot, take));
            self.buffer.give(slot);
            decoded?;
            self.request(store)?;
        }
        self.forget();
        Ok(())
    }

    /// Waits for the reads that were begun, and drops their rows.
    pub(crate) fn settle(&mut self, store: &NVMeWeightStore, waiter: &Waiter) {
        while self.in_flight > 0
            && let Some(done) = waiter.settle(store, &self.arrived)
        {
            self.in_flight -= 1;
            self.buffer.give(done.slot);
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.tokens.clear();
        self.order.clear();
        (self.next, self.requested) = (0, 0);
    }

    /// Starts reads as far as there is room.
    fn request(&mut self, store: &NVMeWeightStore) -> Result<(), StreamError> {
        let parts = if self.rest.is_some() { Parts::First } else { Parts::All };
        while let Some(&place) = self.order.get(self.next) {
            let token = u64::from(self.tokens[place]);
            if token >= self.requested {
                let read = read(self.piece, &self.held, token..token + 1, parts);
                let layout = store.layout(read)?;
                let need = layout.slot_len();
                let Some(slot) = self.buffer.take(need) else {
                    let have = self.buffer.bytes();
                    let waits = self.in_flight > 0;
                    return if waits { Ok(()) } else { Err(StreamError::NoRoom { need, have }) };
                };
                let end = layout.tensors()[0].range.end;
                let reply = self.reply.clone();
                match store.fetch_to(layout, Priority::Demanded, slot, reply) {
                    Ok(_) => self.in_flight += 1,
                    Err(refused) => {
                        self.buffer.give(refused.slot);
                        let have = self.buffer.bytes();
                        return Err(StreamError::NoRoom { need, have });
                    }
                }
                self.requested = end;
            }
            self.next += 1;
        }
        Ok(())
    }

    fn decode(
        &mut self,
        layout: &PieceLayout,
        slot: &Slot,
        take: TakeRow<'_>,
    ) -> Result<(), StreamError> {
        let tensor = &layout.tensors()[0];
        let Held { encoding, rows: all, cols, .. } = self.held;
        let mut parts: [&[u8]; 3] = [&[]; 3];
        for (number, part) in parts.iter_mut().enumerate().take(encoding.parts().len()) {
            let from = match &self.rest {
                Some((slot, layout)) if number > 0 => layout.tensors()[0].part(slot, number),
                _ => tensor.part(slot, number),
            };
            *part = from.unwrap_or_default();
        }
        let range = tensor.range.start as usize..tensor.range.end as usize;
        let used = &parts[..encoding.parts().len()];
        let name = || tensor.name.clone();
        let matrix = Matrix::block(encoding, all, cols, range.clone(), used)
            .map_err(|cause| LoadError::Matrix { name: name(), cause })?;
        if !self.checked[range.start] {
            if let Some((row, col, value)) = first_not_finite(&matrix, &parts) {
                return Err(WeightsError::NotFinite {
                    name: name(),
                    value,
                    row: row + range.start,
                    col,
                }
                .into());
            }
            self.checked[range.start] = true;
        }
        let TableRows { tokens, order, row, .. } = self;
        // Rows before those that the read was for were in an earlier one, if they are wanted.
        let from = match layout.read() {
            Read::Rows { rows, .. } => rows.start,
            _ => tensor.range.start,
        };
        let first = order.partition_point(|&place| u64::from(tokens[place]) < from);
        for &place in &order[first..] {
            let token = tokens[place] as usize;
            if token >= range.end {
                break;
            }
            matrix.decode_row(token - range.start, row);
            take(place, row);
        }
        Ok(())
    }
}

fn read(piece: PieceId, held: &Held, rows: std::ops::Range<u64>, parts: Parts) -> Read {
    Read::Rows { piece, tensor: held.index, rows, parts }
}

/// Maximum bytes of a slot for one row. Runs begin and end within pages, and are read together with
/// the bytes between them if these are few.
fn row_bytes(manifest: &Manifest, piece: PieceId, held: &Held) -> Result<usize, StreamError> {
    let parts = if held.encoding.has_patches() { Parts::First } else { Parts::All };
    let layout = PieceLayout::new(manifest, read(piece, held, 0..1, parts))?;
    const BETWEEN: usize = 64 << 10;
    let runs = layout.tensors()[0].parts.iter().flatten().count();
    Ok(layout.slot_len() + 2 * sws_store::SLOT_ALIGN * runs + BETWEEN * (runs - 1))
}
