//! Rows of an embedding that is not resident.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_kernels::Matrix;
use sws_model::{Held, LoadError, WeightsError, first_not_finite};
use sws_store::{
    Arena, Completion, Manifest, NVMeWeightStore, Parts, PieceId, PieceLayout, Priority, Read, Slot,
};

use super::ring_buffer::RingBuffer;
use crate::error::StreamError;
use crate::wait::Waiter;

/// Reads the rows of tokens, along with other rows under the same checksums.
#[derive(Debug)]
pub(crate) struct EmbeddingRows {
    held: Held,
    /// Table and patches of bf12 or bf11, which every row needs.
    rest: Option<(Slot, Arc<PieceLayout>)>,
    buffer: RingBuffer,
    reply: Sender<Completion>,
    arrived: Receiver<Completion>,
    /// By row: true at the first row of each block whose numbers have been checked.
    checked: Vec<bool>,
    /// Indices of the tokens, sorted by token.
    order: Vec<usize>,
    /// Reads of the current call.
    in_flight: usize,
}

/// Maximum number of rows read at once: more than a device needs to be busy.
const MAX_IN_FLIGHT: usize = 16;

impl EmbeddingRows {
    /// Bytes that it has taken.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes() + self.rest.as_ref().map_or(0, |(slot, _)| slot.len())
    }

    /// Minimum bytes that it takes.
    pub(crate) fn least(manifest: &Manifest, held: &Held) -> Result<usize, StreamError> {
        let rest = match held.encoding.has_patches() {
            true => {
                let read = read(held, 0..held.rows as u64, Parts::Rest);
                PieceLayout::new(manifest, read)?.slot_len()
            }
            false => 0,
        };
        Ok(rest + row_bytes(manifest, held)?)
    }

    /// Takes room for one row out of `arena`, and for as many more as fit into `share` bytes.
    pub(crate) fn new(
        store: &NVMeWeightStore,
        arena: &Arena,
        held: Held,
        share: usize,
    ) -> Result<EmbeddingRows, StreamError> {
        let rest = match held.encoding.has_patches() {
            true => {
                let done = store.read(read(&held, 0..held.rows as u64, Parts::Rest), arena)?;
                Some((done.slot, done.layout))
            }
            false => None,
        };
        let row = row_bytes(store.manifest(), &held)?;
        let rows = (1 + share / row).min(MAX_IN_FLIGHT);
        let have = arena.free_bytes();
        let buffer =
            arena.take(rows * row).ok_or(StreamError::NoRoom { need: rows * row, have })?;
        let (reply, arrived) = unbounded();
        Ok(EmbeddingRows {
            held,
            rest,
            buffer: RingBuffer::new(Some(buffer)),
            reply,
            arrived,
            checked: vec![false; held.rows],
            order: Vec::new(),
            in_flight: 0,
        })
    }

    /// Writes the embeddings of `tokens` to `rows`.
    pub(crate) fn embed(
        &mut self,
        store: &NVMeWeightStore,
        waiter: &Waiter,
        tokens: &[u32],
        rows: &mut [f32],
    ) -> Result<(), StreamError> {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(0..tokens.len());
        order.sort_unstable_by_key(|&place| tokens[place]);
        self.in_flight = 0;
        let mut result = self.read(store, waiter, tokens, &order, rows);
        while self.in_flight > 0
            && let Some(done) = waiter.settle(store, &self.arrived)
        {
            self.in_flight -= 1;
            self.buffer.give(done.slot);
            result = result.and(done.result.map_err(StreamError::from));
        }
        self.order = order;
        result
    }

    fn read(
        &mut self,
        store: &NVMeWeightStore,
        waiter: &Waiter,
        tokens: &[u32],
        order: &[usize],
        rows: &mut [f32],
    ) -> Result<(), StreamError> {
        let parts = if self.rest.is_some() { Parts::First } else { Parts::All };
        let mut waiting = order.iter().map(|&place| u64::from(tokens[place])).peekable();
        // All rows of tokens below this one have been requested.
        let mut requested = 0;
        loop {
            while let Some(&token) = waiting.peek() {
                if token >= requested {
                    let layout = store.layout(read(&self.held, token..token + 1, parts))?;
                    let need = layout.slot_len();
                    let Some(slot) = self.buffer.take(need) else {
                        if self.in_flight == 0 {
                            return Err(StreamError::NoRoom { need, have: self.buffer.bytes() });
                        }
                        break;
                    };
                    let end = layout.tensors()[0].range.end;
                    let reply = self.reply.clone();
                    match store.fetch_to(layout, Priority::Demanded, slot, reply) {
                        Ok(_) => self.in_flight += 1,
                        Err(refused) => {
                            self.buffer.give(refused.slot);
                            break;
                        }
                    }
                    requested = end;
                }
                waiting.next();
            }
            if self.in_flight == 0 {
                return Ok(());
            }
            let done = waiter.wait(store, &self.arrived)?;
            self.in_flight -= 1;
            let Completion { result, slot, layout, .. } = done;
            let decoded = result
                .map_err(StreamError::from)
                .and_then(|()| self.decode(&layout, &slot, tokens, order, rows));
            self.buffer.give(slot);
            decoded?;
        }
    }

    fn decode(
        &mut self,
        layout: &PieceLayout,
        slot: &Slot,
        tokens: &[u32],
        order: &[usize],
        rows: &mut [f32],
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
        let first = order.partition_point(|&place| (tokens[place] as usize) < range.start);
        for &place in &order[first..] {
            let row = tokens[place] as usize;
            if row >= range.end {
                break;
            }
            matrix.decode_row(row - range.start, &mut rows[place * cols..][..cols]);
        }
        Ok(())
    }
}

fn read(held: &Held, rows: std::ops::Range<u64>, parts: Parts) -> Read {
    Read::Rows { piece: PieceId::EMBED, tensor: held.index, rows, parts }
}

/// Maximum bytes of a slot for one row. Runs begin and end within pages, and are read together with
/// the bytes between them if these are few.
fn row_bytes(manifest: &Manifest, held: &Held) -> Result<usize, StreamError> {
    let parts = if held.encoding.has_patches() { Parts::First } else { Parts::All };
    let layout = PieceLayout::new(manifest, read(held, 0..1, parts))?;
    const BETWEEN: usize = 64 << 10;
    let runs = layout.tensors()[0].parts.iter().flatten().count();
    Ok(layout.slot_len() + 2 * sws_store::SLOT_ALIGN * runs + BETWEEN * (runs - 1))
}
