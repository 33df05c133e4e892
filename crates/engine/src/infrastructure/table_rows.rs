//! Rows of a table that is not resident: the embedding, or that of a layer.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_format::{Manifest, PieceId};
use sws_kernels::{Encoding, Matrix};
use sws_model::{HeldTensor, LoadError, TakeRow, WeightsError};
use sws_store::{Arena, Completion, NVMeWeightStore, Parts, PieceLayout, Priority, Read, Slot};

use super::of_rows;
use super::ring_buffer::RingBuffer;
use crate::error::StreamError;
use crate::wait::Waiter;

/// A part of a table, whose rows follow those of the part before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablePart {
    pub(crate) piece: PieceId,
    pub(crate) held: HeldTensor,
    /// The number of its first row in the table.
    pub(crate) first: u64,
}

/// Reads table rows by number, along with other rows under the same checksums.
#[derive(Debug)]
pub(crate) struct TableRows {
    /// Parts of the table, in the order of their rows; at least one.
    parts: Vec<TablePart>,
    /// For each part, the decoding table and patches of bf12 or bf11, which every row needs.
    rest: Vec<Option<(Slot, Arc<PieceLayout>)>>,
    buffer: RingBuffer,
    reply: Sender<Completion>,
    arrived: Receiver<Completion>,
    /// The numbers of the rows that are being read.
    numbers: Vec<u64>,
    /// Indices into `numbers`, sorted by number.
    order: Vec<usize>,
    /// Number of entries in `order` whose rows have been requested.
    next: usize,
    /// End of the requested rows. Rows with larger numbers have not been requested.
    requested: u64,
    /// Number of reads in flight.
    in_flight: usize,
    /// A decoded row.
    row: Vec<f32>,
}

/// Maximum number of rows read at once: more than a device needs to be busy.
const MAX_IN_FLIGHT: usize = 16;

impl TableRows {
    /// Bytes taken from the arena.
    pub(crate) fn bytes(&self) -> usize {
        let rest = self.rest.iter().flatten().map(|(slot, _)| slot.len());
        self.buffer.bytes() + rest.sum::<usize>()
    }

    /// The first part of the table.
    pub(crate) fn piece(&self) -> PieceId {
        self.parts[0].piece
    }

    /// Minimum bytes taken from the arena.
    pub(crate) fn least(manifest: &Manifest, parts: &[TablePart]) -> Result<usize, StreamError> {
        let mut bytes = row_bytes(manifest, parts)?;
        for read in parts.iter().filter_map(TablePart::rest) {
            bytes += PieceLayout::new(manifest, read)?.slot_len();
        }
        Ok(bytes)
    }

    /// Takes memory for one row out of `arena`, and for as many more rows as fit into `share`
    /// bytes.
    pub(crate) fn new(
        store: &NVMeWeightStore,
        arena: &Arena,
        parts: Vec<TablePart>,
        share: usize,
    ) -> Result<TableRows, StreamError> {
        let mut rest = Vec::with_capacity(parts.len());
        for part in &parts {
            rest.push(match part.rest() {
                Some(read) => {
                    let Completion { slot, layout, .. } = store.read(read, arena)?;
                    Some((slot, layout))
                }
                None => None,
            });
        }
        let row = row_bytes(store.manifest(), &parts)?;
        let rows = (1 + share / row).min(MAX_IN_FLIGHT);
        let have = arena.free_bytes();
        let buffer =
            arena.take(rows * row).ok_or(StreamError::NoRoom { need: rows * row, have })?;
        let (reply, arrived) = unbounded();
        let cols = parts[0].held.cols;
        Ok(TableRows {
            parts,
            rest,
            buffer: RingBuffer::new(Some(buffer)),
            reply,
            arrived,
            numbers: Vec::new(),
            order: Vec::new(),
            next: 0,
            requested: 0,
            in_flight: 0,
            row: vec![0.0; cols],
        })
    }

    /// Starts reading the rows with these numbers, as far as there is room.
    pub(crate) fn begin(
        &mut self,
        store: &NVMeWeightStore,
        waiter: &Waiter,
        numbers: &[u64],
    ) -> Result<(), StreamError> {
        self.settle(store, waiter);
        // The capacity is exact, because the budget relies on it.
        self.numbers.reserve_exact(numbers.len());
        self.numbers.extend_from_slice(numbers);
        self.order.reserve_exact(numbers.len());
        self.order.extend(0..numbers.len());
        self.order.sort_unstable_by_key(|&place| numbers[place]);
        self.request(store)
    }

    /// Calls `take` with the place and the row of each of these numbers. Reads them now, unless
    /// [`begin`](Self::begin) was last called with the same numbers.
    pub(crate) fn finish(
        &mut self,
        store: &NVMeWeightStore,
        waiter: &Waiter,
        numbers: &[u64],
        take: TakeRow<'_>,
    ) -> Result<(), StreamError> {
        if self.numbers != numbers {
            self.begin(store, waiter, numbers)?;
        }
        while self.in_flight > 0 {
            let done = waiter.wait(store, &self.arrived)?;
            self.in_flight -= 1;
            let Completion { result, slot, layout, .. } = done;
            let decoded = match result {
                Ok(()) => self.decode(&layout, &slot, take),
                Err(error) => Err(error.into()),
            };
            self.buffer.give(slot);
            decoded?;
            self.request(store)?;
        }
        self.forget();
        Ok(())
    }

    /// Waits for reads in flight, and drops their rows.
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
        self.numbers.clear();
        self.order.clear();
        (self.next, self.requested) = (0, 0);
    }

    /// Starts reads as far as there is room.
    fn request(&mut self, store: &NVMeWeightStore) -> Result<(), StreamError> {
        while let Some(&place) = self.order.get(self.next) {
            let number = self.numbers[place];
            if number >= self.requested {
                let part = self.parts[self.parts.partition_point(|part| part.first <= number) - 1];
                let row = number - part.first;
                let layout = store.layout(part.read(row..row + 1, part.own()))?;
                let need = layout.slot_len();
                let Some(slot) = self.buffer.take(need) else {
                    let have = self.buffer.bytes();
                    let waits = self.in_flight > 0;
                    return if waits { Ok(()) } else { Err(StreamError::NoRoom { need, have }) };
                };
                let end = part.first + layout.tensors()[0].range.end;
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
        let TableRows { parts: all, rest, numbers, order, row, .. } = self;
        let tensor = &layout.tensors()[0];
        let name = &tensor.name;
        let piece = layout.read().piece();
        let Some(at) = all.iter().position(|part| part.piece == piece) else { return Ok(()) };
        let TablePart { held: HeldTensor { encoding, rows, cols, .. }, first: before, .. } =
            all[at];
        let mut parts: [&[u8]; Encoding::MOST_PARTS] = [&[]; Encoding::MOST_PARTS];
        for (number, (kind, part)) in encoding.parts().iter().zip(&mut parts).enumerate() {
            *part = match &rest[at] {
                Some((slot, layout)) if number > 0 => {
                    let all = layout.tensors()[0].part(slot, number).unwrap_or_default();
                    of_rows(kind, tensor.range.clone(), cols as u64, all)
                }
                _ => tensor.part(slot, number).unwrap_or_default(),
            };
        }
        let range = tensor.range.start as usize..tensor.range.end as usize;
        let used = &parts[..encoding.parts().len()];
        let matrix = match Matrix::block(encoding, rows, cols, range.clone(), used) {
            Ok(matrix) => matrix,
            Err(cause) => return Err(LoadError::Matrix { name: name.clone(), cause }.into()),
        };
        // A read may start with rows before the requested ones. If those are wanted too, they were
        // part of an earlier read.
        let from = match layout.read() {
            Read::Rows { rows, .. } => rows.start,
            _ => tensor.range.start,
        };
        let first = order.partition_point(|&place| numbers[place] < before + from);
        for &place in &order[first..] {
            let number = (numbers[place] - before) as usize;
            if number >= range.end {
                break;
            }
            matrix.decode_row(number - range.start, row);
            if let Some(col) = row.iter().position(|value| !value.is_finite()) {
                let name = name.clone();
                let file = None;
                let value = row[col];
                return Err(WeightsError::NotFinite { name, file, value, row: number, col }.into());
            }
            take(place, row);
        }
        Ok(())
    }
}

impl TablePart {
    fn read(&self, rows: std::ops::Range<u64>, parts: Parts) -> Read {
        Read::Rows { piece: self.piece, tensor: self.held.index, rows, parts }
    }

    /// The parts that are read for each row.
    fn own(&self) -> Parts {
        if self.held.encoding.has_patches() { Parts::First } else { Parts::All }
    }

    /// The read of the parts that all rows need, if there are any.
    fn rest(&self) -> Option<Read> {
        if !self.held.encoding.has_patches() {
            return None;
        }
        Some(self.read(0..self.held.rows as u64, Parts::Rest))
    }
}

/// Maximum bytes of a slot for one row. Checksum runs start and end in the middle of pages. They
/// are read in one go if the bytes between them are few.
fn row_bytes(manifest: &Manifest, parts: &[TablePart]) -> Result<usize, StreamError> {
    const BETWEEN: usize = 64 << 10;
    let mut most = 0;
    for part in parts {
        let layout = PieceLayout::new(manifest, part.read(0..1, part.own()))?;
        let runs = layout.tensors()[0].parts.iter().flatten().count();
        let edges = 2 * sws_store::SLOT_ALIGN * runs;
        most = most.max(layout.slot_len() + edges + BETWEEN * (runs - 1));
    }
    Ok(most)
}
