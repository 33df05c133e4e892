//! Keys and values of one layer of one sequence, in pages.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use sws_kernels::functional::{CacheLayout, CacheMut, KvCache, KvData, Page, store};

use super::KvPrecision;
use super::blocks::{BLOCKS, INDEXER, IndexKeys};
use super::bytes::{read_len, read_rows, write_numbers, write_rows};
use super::pages::{
    SharedPage, bytes, drop_shared, each_page, grow, growth, positions_held, positions_per_page,
};
use crate::spec::AttentionSpec;

/// Additional positions in the ring of a layer with a window, plus one. At most this many tokens
/// are stored before they are attended with; longer chunks are split.
const RING_CHUNK: usize = 64;

/// Keys and values. Pages are allocated as positions arrive, and shared with sequences that have a
/// common prefix. Memory that is never written to is not backed by physical pages on systems that
/// hand out fresh zero pages.
#[derive(Clone, Debug)]
pub(crate) struct KvState {
    data: KvRows,
    /// The layouts of keys and of values, whose head sizes may differ.
    keys: CacheLayout,
    values: CacheLayout,
    /// Number of tokens that can be stored before they are attended with.
    pub(crate) chunk: usize,
    /// True if later positions overwrite earlier ones.
    is_ring: bool,
    /// End of the positions written to a ring. Positions a ring's length before it are overwritten,
    /// even if later positions were dropped.
    written: usize,
    journal: KvJournal,
    /// The keys of the layer's indexer, if it has one. Such a layer has no window.
    index: Option<IndexKeys>,
}

/// A snapshot: the length of the journal, and the end of the positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvMark {
    rows: usize,
    written: usize,
}

#[derive(Clone, Debug)]
enum KvRows {
    F32 { keys: Vec<Page<f32>>, values: Vec<Page<f32>> },
    Bf16 { keys: Vec<Page<u16>>, values: Vec<Page<u16>> },
    Q8 { keys: Vec<Page<u8>>, values: Vec<Page<u8>> },
}

/// Rows that a ring has overwritten since the first snapshot, for restoring it.
#[derive(Clone, Debug, Default)]
struct KvJournal {
    snapshots: usize,
    positions: Vec<usize>,
    f32: Vec<f32>,
    bf16: Vec<u16>,
    q8: Vec<u8>,
}

impl KvState {
    /// A cache for positions below `limit`, in pages of `page`; none is allocated yet.
    pub(super) fn new(
        spec: &AttentionSpec,
        limit: usize,
        precision: KvPrecision,
        page_bytes: usize,
    ) -> Self {
        let (capacity, chunk) = shape(spec, limit);
        let page = positions_per_page(page_bytes);
        let data = match precision {
            KvPrecision::F32 => KvRows::F32 { keys: Vec::new(), values: Vec::new() },
            KvPrecision::Bf16 => KvRows::Bf16 { keys: Vec::new(), values: Vec::new() },
            KvPrecision::Q8 => KvRows::Q8 { keys: Vec::new(), values: Vec::new() },
        };
        let journal = KvJournal::default();
        let blocks = spec.extras.blocks;
        let index = blocks.map(|blocks| IndexKeys::new(blocks, limit, precision, page_bytes));
        let dim = precision.row(spec.head_dim);
        let keys = CacheLayout { capacity, page, heads: spec.kv_heads, dim };
        let values = CacheLayout { dim: precision.row(spec.value_dim), ..keys };
        let is_ring = capacity < limit;
        KvState { data, keys, values, chunk, is_ring, written: 0, journal, index }
    }

    /// The maximum size in bytes of `limit` positions in pages of `page`.
    pub(super) fn bytes_for(
        spec: &AttentionSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        let rows = positions_held(shape(spec, limit).0, page);
        let mut bytes = rows as u64 * KvState::row_bytes(spec, precision);
        if let Some(blocks) = spec.extras.blocks {
            bytes += IndexKeys::bytes_for(blocks, limit, precision, page);
        }
        bytes
    }

    /// Number of positions that the KV cache keeps of this many.
    pub(crate) fn kept(spec: &AttentionSpec, positions: usize) -> usize {
        shape(spec, positions).0
    }

    /// Bytes of a position in the KV cache.
    pub(super) fn row_bytes(spec: &AttentionSpec, precision: KvPrecision) -> u64 {
        let of_head = precision.row_bytes(spec.head_dim) + precision.row_bytes(spec.value_dim);
        (spec.kv_heads * of_head) as u64
    }

    /// Bytes held, including shared pages but not the journal.
    pub(super) fn bytes(&self) -> u64 {
        let data = match &self.data {
            KvRows::F32 { keys, values } => bytes(keys) + bytes(values),
            KvRows::Bf16 { keys, values } => bytes(keys) + bytes(values),
            KvRows::Q8 { keys, values } => bytes(keys) + bytes(values),
        };
        data + self.index.as_ref().map_or(0, IndexKeys::bytes)
    }

    /// Makes room for the positions below `end`.
    pub(super) fn reserve(&mut self, end: usize) {
        let needed = self.keys.pages(end);
        let [of_keys, of_values] = self.page_lens();
        if let Some(index) = &mut self.index {
            index.reserve(end);
        }
        match &mut self.data {
            KvRows::F32 { keys, values } => {
                grow(keys, needed, of_keys);
                grow(values, needed, of_values);
            }
            KvRows::Bf16 { keys, values } => {
                grow(keys, needed, of_keys);
                grow(values, needed, of_values);
            }
            KvRows::Q8 { keys, values } => {
                grow(keys, needed, of_keys);
                grow(values, needed, of_values);
            }
        }
    }

    /// Empties the cache and keeps its memory, except for shared pages, which are left to the other
    /// sequence.
    pub(super) fn clear(&mut self) {
        self.written = 0;
        self.index.iter_mut().for_each(IndexKeys::clear);
        fn own<E>(keys: &mut Vec<Page<E>>, values: &mut Vec<Page<E>>) {
            for pages in [&mut *keys, &mut *values] {
                drop_shared(pages);
            }
            let both = keys.len().min(values.len());
            keys.truncate(both);
            values.truncate(both);
        }
        match &mut self.data {
            KvRows::F32 { keys, values } => own(keys, values),
            KvRows::Bf16 { keys, values } => own(keys, values),
            KvRows::Q8 { keys, values } => own(keys, values),
        }
    }

    /// True if later positions overwrite earlier ones.
    pub(super) fn is_ring(&self) -> bool {
        self.is_ring
    }

    /// Drops the pages that `len` positions do not need.
    pub(super) fn trim(&mut self, len: usize) {
        let needed = self.keys.pages(len);
        if let Some(index) = &mut self.index {
            index.trim(len);
        }
        match &mut self.data {
            KvRows::F32 { keys, values } => {
                keys.truncate(needed);
                values.truncate(needed);
            }
            KvRows::Bf16 { keys, values } => {
                keys.truncate(needed);
                values.truncate(needed);
            }
            KvRows::Q8 { keys, values } => {
                keys.truncate(needed);
                values.truncate(needed);
            }
        }
    }

    /// Bytes that the positions from `len` to `end` take.
    pub(super) fn growth(&self, len: usize, end: usize) -> u64 {
        fn of<E>(state: &KvState, keys: &[Page<E>], values: &[Page<E>], at: [usize; 2]) -> u64 {
            let [len, end] = at;
            growth(keys, &state.keys, len, end) + growth(values, &state.values, len, end)
        }
        let mut bytes = match &self.data {
            KvRows::F32 { keys, values } => of(self, keys, values, [len, end]),
            KvRows::Bf16 { keys, values } => of(self, keys, values, [len, end]),
            KvRows::Q8 { keys, values } => of(self, keys, values, [len, end]),
        };
        if let Some(index) = &self.index {
            bytes += index.growth(len, end);
        }
        bytes
    }

    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        fn of<E>(keys: &[Page<E>], values: &[Page<E>], each: &mut dyn FnMut(SharedPage)) {
            each_page(keys, each);
            each_page(values, each);
        }
        match &self.data {
            KvRows::F32 { keys, values } => of(keys, values, each),
            KvRows::Bf16 { keys, values } => of(keys, values, each),
            KvRows::Q8 { keys, values } => of(keys, values, each),
        }
        if let Some(index) = &self.index {
            index.each_page(each);
        }
    }

    /// Bytes of a value, and the length of a ring.
    pub(super) fn layout(&self) -> [usize; 2] {
        let precision = match &self.data {
            KvRows::F32 { .. } => KvPrecision::F32,
            KvRows::Bf16 { .. } => KvPrecision::Bf16,
            KvRows::Q8 { .. } => KvPrecision::Q8,
        };
        [precision.row_bytes(1), if self.is_ring { self.keys.capacity } else { 0 }]
    }

    /// Writes the rows of positions. Writes nothing for a ring.
    pub(super) fn write(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        if !self.is_ring {
            self.write_data(positions.clone(), to)?;
        }
        match &self.index {
            Some(index) => index.write(positions, to),
            None => Ok(()),
        }
    }

    /// Reads the rows of positions. Their memory must be [reserved](Self::reserve).
    pub(super) fn take(&mut self, positions: Range<usize>, from: &mut dyn Read) -> io::Result<()> {
        if !self.is_ring {
            self.take_data(positions.clone(), from)?;
            self.written = positions.end;
        }
        match &mut self.index {
            Some(index) => index.take(positions, from),
            None => Ok(()),
        }
    }

    /// Writes the ring of `len` positions, if the cache is a ring.
    pub(super) fn write_ring(&self, len: usize, to: &mut dyn Write) -> io::Result<()> {
        if !self.is_ring {
            return Ok(());
        }
        write_numbers(&[self.written as u64], to)?;
        self.write_data(0..len.min(self.keys.capacity), to)
    }

    /// Reads the ring of `len` positions. Its memory must be [reserved](Self::reserve).
    pub(super) fn take_ring(&mut self, len: usize, from: &mut dyn Read) -> io::Result<()> {
        if !self.is_ring {
            return Ok(());
        }
        self.written = read_len(from, len)?;
        self.take_data(0..len.min(self.keys.capacity), from)
    }

    fn write_data(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        let of_keys = &self.keys;
        let of_values = &self.values;
        match &self.data {
            KvRows::F32 { keys, values } => {
                write_rows(keys, of_keys, positions.clone(), to)?;
                write_rows(values, of_values, positions, to)
            }
            KvRows::Bf16 { keys, values } => {
                write_rows(keys, of_keys, positions.clone(), to)?;
                write_rows(values, of_values, positions, to)
            }
            KvRows::Q8 { keys, values } => {
                write_rows(keys, of_keys, positions.clone(), to)?;
                write_rows(values, of_values, positions, to)
            }
        }
    }

    fn take_data(&mut self, positions: Range<usize>, from: &mut dyn Read) -> io::Result<()> {
        let of_keys = &self.keys;
        let of_values = &self.values;
        match &mut self.data {
            KvRows::F32 { keys, values } => {
                read_rows(keys, of_keys, positions.clone(), from)?;
                read_rows(values, of_values, positions, from)
            }
            KvRows::Bf16 { keys, values } => {
                read_rows(keys, of_keys, positions.clone(), from)?;
                read_rows(values, of_values, positions, from)
            }
            KvRows::Q8 { keys, values } => {
                read_rows(keys, of_keys, positions.clone(), from)?;
                read_rows(values, of_values, positions, from)
            }
        }
    }

    /// A cache for another sequence that shares the pages of this one. The first of the two to
    /// write to a page copies it.
    pub(super) fn fork(&self) -> KvState {
        KvState { journal: KvJournal::default(), ..self.clone() }
    }

    /// True if all positions that the next one sees are still present.
    pub(super) fn has(&self, len: usize) -> bool {
        // Only a ring can lack positions.
        let capacity = self.keys.capacity;
        let window = capacity + 1 - self.chunk;
        len == 0 || self.written <= capacity + (len + 1).saturating_sub(window)
    }

    /// Starts to record overwritten rows.
    pub(super) fn snapshot(&mut self) -> KvMark {
        self.journal.snapshots += 1;
        KvMark { rows: self.journal.positions.len(), written: self.written }
    }

    /// Returns to the snapshot with this mark.
    pub(super) fn restore(&mut self, mark: KvMark) {
        self.written = mark.written;
        let KvJournal { positions, f32, bf16, q8, .. } = &mut self.journal;
        let [of_keys, of_values] = [self.keys, self.values].map(HeadRows);
        for position in positions.drain(mark.rows..).rev() {
            match &mut self.data {
                KvRows::F32 { keys, values } => {
                    of_values.put_back(position, values, f32);
                    of_keys.put_back(position, keys, f32);
                }
                KvRows::Bf16 { keys, values } => {
                    of_values.put_back(position, values, bf16);
                    of_keys.put_back(position, keys, bf16);
                }
                KvRows::Q8 { keys, values } => {
                    of_values.put_back(position, values, q8);
                    of_keys.put_back(position, keys, q8);
                }
            }
        }
        self.keep();
    }

    /// Discards a snapshot.
    pub(super) fn keep(&mut self) {
        self.journal.snapshots -= 1;
        if self.journal.snapshots == 0 {
            self.journal = KvJournal::default();
        }
    }

    /// Stores keys and values of consecutive positions. Their memory must be
    /// [reserved](Self::reserve).
    pub(crate) fn append(&mut self, first: usize, tokens: usize, keys: &[f32], values: &[f32]) {
        let of_keys = self.keys;
        let of_values = self.values;
        let capacity = of_keys.capacity;
        if self.journal.snapshots > 0 {
            let positions = (first + tokens).saturating_sub(first.max(capacity));
            let elements = of_keys.heads * (of_keys.dim + of_values.dim);
            self.journal.reserve(positions, elements, &self.data);
            // Nothing is overwritten before the ring wraps.
            for position in first.max(capacity)..first + tokens {
                let [of_keys, of_values] = [of_keys, of_values].map(HeadRows);
                let KvJournal { positions, f32, bf16, q8, .. } = &mut self.journal;
                positions.push(position);
                match &self.data {
                    KvRows::F32 { keys, values } => {
                        of_keys.copy(position, keys, f32);
                        of_values.copy(position, values, f32);
                    }
                    KvRows::Bf16 { keys, values } => {
                        of_keys.copy(position, keys, bf16);
                        of_values.copy(position, values, bf16);
                    }
                    KvRows::Q8 { keys, values } => {
                        of_keys.copy(position, keys, q8);
                        of_values.copy(position, values, q8);
                    }
                }
            }
        }
        let (to_keys, to_values) = match &mut self.data {
            KvRows::F32 { keys, values } => (CacheMut::F32(keys), CacheMut::F32(values)),
            KvRows::Bf16 { keys, values } => (CacheMut::Bf16(keys), CacheMut::Bf16(values)),
            KvRows::Q8 { keys, values } => (CacheMut::Q8(keys), CacheMut::Q8(values)),
        };
        self.written = self.written.max(first + tokens);
        store(to_keys, of_keys, first, keys);
        store(to_values, of_values, first, values);
    }

    pub(crate) fn view(&self) -> KvCache<'_> {
        let data = match &self.data {
            KvRows::F32 { keys, values } => KvData::F32 { keys, values },
            KvRows::Bf16 { keys, values } => KvData::Bf16 { keys, values },
            KvRows::Q8 { keys, values } => KvData::Q8 { keys, values },
        };
        KvCache { data, keys: self.keys, values: self.values }
    }

    /// Stores keys [tokens, dim] of the indexer; where those of blocks are means, of blocks from the
    /// number `first` on.
    ///
    /// # Panics
    ///
    /// If the layer has no indexer.
    pub(crate) fn append_index(&mut self, first: usize, keys: &[f32]) {
        self.index.as_mut().expect(INDEXER).append(first, keys);
    }

    /// Stores keys [tokens, dim] of single positions, if keys of blocks are means.
    ///
    /// # Panics
    ///
    /// If keys of blocks are not means.
    pub(crate) fn append_parts(&mut self, first: usize, keys: &[f32]) {
        self.index.as_mut().expect(BLOCKS).append_parts(first, keys);
    }

    /// The key of a single position, if keys of blocks are means.
    ///
    /// # Panics
    ///
    /// If keys of blocks are not means.
    pub(crate) fn part(&self, position: usize) -> &[f32] {
        self.index.as_ref().expect(BLOCKS).part(position)
    }

    /// The keys of the indexer, of one head.
    ///
    /// # Panics
    ///
    /// If the layer has no indexer.
    pub(crate) fn index(&self) -> KvCache<'_> {
        self.index.as_ref().expect(INDEXER).view()
    }

    /// Number of positions kept.
    pub(crate) fn capacity(&self) -> usize {
        self.keys.capacity
    }

    /// Elements of a page of keys, and of one of values.
    fn page_lens(&self) -> [usize; 2] {
        [&self.keys, &self.values]
            .map(|layout| layout.page_len().expect("the formula has counted it before"))
    }
}

impl KvJournal {
    /// Reserves memory for more positions with this many elements each, at exactly the length that
    /// the budget assumes.
    fn reserve(&mut self, positions: usize, elements: usize, data: &KvRows) {
        self.positions.reserve_exact(positions);
        match data {
            KvRows::F32 { .. } => self.f32.reserve_exact(positions * elements),
            KvRows::Bf16 { .. } => self.bf16.reserve_exact(positions * elements),
            KvRows::Q8 { .. } => self.q8.reserve_exact(positions * elements),
        }
    }
}

/// The rows of a position, one per head.
struct HeadRows(CacheLayout);

impl HeadRows {
    fn copy<E: Copy>(&self, position: usize, from: &[Page<E>], to: &mut Vec<E>) {
        for head in 0..self.0.heads {
            let (page, start) = self.0.place(head, position);
            to.extend_from_slice(&from[page][start..start + self.0.dim]);
        }
    }

    /// Restores the rows copied last.
    fn put_back<E: Copy>(&self, position: usize, to: &mut [Page<E>], from: &mut Vec<E>) {
        for head in (0..self.0.heads).rev() {
            let (page, start) = self.0.place(head, position);
            let row = from.len() - self.0.dim;
            let to = &mut Arc::make_mut(&mut to[page])[start..][..from.len() - row];
            to.copy_from_slice(&from[row..]);
            from.truncate(row);
        }
    }
}

/// Number of positions kept, and of tokens that can be stored at once.
fn shape(spec: &AttentionSpec, limit: usize) -> (usize, usize) {
    match spec.window {
        Some(window) if spec.keeps_window() && window.saturating_add(RING_CHUNK - 1) < limit => {
            (window + RING_CHUNK - 1, RING_CHUNK)
        }
        _ => (limit, limit),
    }
}
