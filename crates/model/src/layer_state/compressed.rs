//! The state of a layer that attends to the last positions and to entries that earlier ones were
//! pooled into.

use std::io::{self, Read, Write};
use std::ops::Range;

use sws_kernels::functional::KvCache;

use super::KvPrecision;
use super::pages::SharedPage;
use super::ring::{RingMark, RowRing};
use super::rows::PagedRows;
use crate::spec::{CompressedSpec, PoolSpec};

/// Number of positions kept in addition to the window, so that as many can be dropped without a
/// snapshot. At most this number plus one are stored before they are attended with.
const SPARE: usize = 63;

/// Keys of the last positions, followed by the entries; the rows from which unfinished entries are
/// pooled; and the entries of an indexer.
///
/// Entries are written once, so a snapshot keeps only rows that rings overwrite. It can be made and
/// restored at any position, even in the middle of an entry.
#[derive(Clone, Debug)]
pub(crate) struct CompressedState {
    keys: RowRing,
    /// Rows of positions and logits of their weights, for the layer's entries and for those of an
    /// indexer. They are never rounded.
    raw: Vec<RowRing>,
    index: Option<PagedRows>,
    window: usize,
    pools: Option<PoolSpec>,
    /// The largest number of keys and entries that a query sees.
    most: usize,
}

/// Sizes of the parts of a layer's state.
struct CompressedShape {
    keys: (usize, (usize, usize)),
    raw: Vec<(usize, usize)>,
    index: Option<(usize, usize)>,
}

impl CompressedShape {
    fn of(spec: &CompressedSpec, limit: usize) -> CompressedShape {
        let mut shape = CompressedShape {
            keys: (spec.head_dim, (slots(spec.window, limit), 0)),
            raw: Vec::new(),
            index: None,
        };
        if let Some(pools) = spec.pools {
            let entries = limit / pools.ratio;
            let needed = slots(pools.series() * pools.ratio, limit);
            shape.keys.1.1 = entries;
            shape.raw = vec![(pools.series() * spec.head_dim, needed); 2];
            if let Some(indexer) = pools.indexer {
                shape.raw.extend([(pools.series() * indexer.dim, needed); 2]);
                shape.index = Some((indexer.dim, entries.max(1)));
            }
        }
        shape
    }
}

/// Number of positions in a ring that needs this many.
fn slots(needed: usize, limit: usize) -> usize {
    needed.saturating_add(SPARE).min(limit).max(1)
}

impl CompressedState {
    /// A state for positions below `limit`, in pages of `page` positions. Nothing is allocated yet.
    pub(super) fn new(
        spec: &CompressedSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> CompressedState {
        let CompressedShape { keys, raw, index } = CompressedShape::of(spec, limit);
        let ring = |(width, slots)| RowRing::new(width, (slots, 0), KvPrecision::F32, page);
        CompressedState {
            keys: RowRing::new(keys.0, keys.1, precision, page),
            raw: raw.into_iter().map(ring).collect(),
            index: index.map(|(width, limit)| PagedRows::new(width, limit, precision, page)),
            window: spec.window,
            pools: spec.pools,
            most: spec.most_seen(limit),
        }
    }

    /// The maximum size in bytes of `limit` positions in pages of `page`.
    pub(super) fn bytes_for(
        spec: &CompressedSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        let CompressedShape { keys, raw, index } = CompressedShape::of(spec, limit);
        let mut bytes = RowRing::bytes_for(keys.0, keys.1, precision, page);
        for (width, slots) in raw {
            bytes += RowRing::bytes_for(width, (slots, 0), KvPrecision::F32, page);
        }
        if let Some((width, limit)) = index {
            bytes += PagedRows::bytes_for(width, limit, precision, page);
        }
        bytes
    }

    /// Bytes that a snapshot keeps for each position after it.
    pub(super) fn journal_bytes(spec: &CompressedSpec) -> u64 {
        let CompressedShape { keys, raw, .. } = CompressedShape::of(spec, usize::MAX);
        let mut bytes = RowRing::journal_bytes(keys.0);
        for (width, _) in raw {
            bytes += RowRing::journal_bytes(width);
        }
        bytes
    }

    /// Bytes held, including shared pages, but not the rows kept for snapshots.
    pub(super) fn bytes(&self) -> u64 {
        let mut bytes = self.index.as_ref().map_or(0, PagedRows::bytes);
        for ring in self.raw.iter().chain([&self.keys]) {
            bytes += ring.rows().bytes();
        }
        bytes
    }

    /// Makes room for the positions below `end`.
    pub(super) fn reserve(&mut self, end: usize) {
        let entries = self.entries(end);
        self.keys.reserve(end, entries);
        for ring in &mut self.raw {
            ring.reserve(end, 0);
        }
        if let Some(index) = &mut self.index {
            index.reserve(entries);
        }
    }

    /// Empties the state and keeps its memory, except for shared pages.
    pub(super) fn clear(&mut self) {
        self.rings().for_each(RowRing::clear);
        self.index.iter_mut().for_each(PagedRows::clear);
    }

    /// Drops the pages that `len` positions do not need.
    pub(super) fn trim(&mut self, len: usize) {
        let entries = self.entries(len);
        self.keys.trim(len, entries);
        for ring in &mut self.raw {
            ring.trim(len, 0);
        }
        if let Some(index) = &mut self.index {
            index.trim(entries);
        }
    }

    /// Bytes that the positions from `len` to `end` take.
    pub(super) fn growth(&self, len: usize, end: usize) -> u64 {
        let entries = self.entries(end);
        let mut bytes = self.keys.growth(end, entries);
        for ring in &self.raw {
            bytes += ring.growth(end, 0);
        }
        if let Some(index) = &self.index {
            bytes += index.growth(self.entries(len), entries);
        }
        bytes
    }

    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        for ring in self.raw.iter().chain([&self.keys]) {
            ring.each_page(each);
        }
        if let Some(index) = &self.index {
            index.each_page(each);
        }
    }

    /// Bytes of the numbers, and the lengths, of all rings.
    pub(super) fn layout(&self) -> Vec<usize> {
        [&self.keys].into_iter().chain(&self.raw).flat_map(RowRing::layout).collect()
    }

    /// Writes the entries that end in these positions.
    pub(super) fn write(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        let entries = self.entries(positions.start)..self.entries(positions.end);
        self.keys.write_behind(entries.clone(), to)?;
        match &self.index {
            Some(index) => index.write(entries, to),
            None => Ok(()),
        }
    }

    /// Reads the entries that end in these positions. Their memory must be
    /// [reserved](Self::reserve).
    pub(super) fn take(&mut self, positions: Range<usize>, from: &mut dyn Read) -> io::Result<()> {
        let entries = self.entries(positions.start)..self.entries(positions.end);
        self.keys.take_behind(entries.clone(), from)?;
        match &mut self.index {
            Some(index) => index.take(entries, from),
            None => Ok(()),
        }
    }

    /// Writes the rings of `len` positions.
    pub(super) fn write_rings(&self, len: usize, to: &mut dyn Write) -> io::Result<()> {
        for ring in [&self.keys].into_iter().chain(&self.raw) {
            ring.write(len, to)?;
        }
        Ok(())
    }

    /// Reads the rings of `len` positions. Their memory must be [reserved](Self::reserve).
    pub(super) fn take_rings(&mut self, len: usize, from: &mut dyn Read) -> io::Result<()> {
        for ring in self.rings() {
            ring.take(len, from)?;
        }
        Ok(())
    }

    /// Entries that end below `len`.
    fn entries(&self, len: usize) -> usize {
        self.pools.map_or(0, |pools| len / pools.ratio)
    }

    pub(super) fn fork(&self) -> CompressedState {
        let raw = self.raw.iter().map(RowRing::fork).collect();
        CompressedState { keys: self.keys.fork(), raw, ..self.clone() }
    }

    /// True if the rows that the next position needs are still present: the window, and the rows of
    /// unfinished entries.
    pub(super) fn has(&self, len: usize) -> bool {
        let first = self.unfinished(len);
        let window = (len + 1).saturating_sub(self.window);
        len == 0
            || self.keys.has(window) && self.raw.iter().all(|ring| first >= len || ring.has(first))
    }

    /// The first position below `len` whose rows an entry still needs.
    fn unfinished(&self, len: usize) -> usize {
        let Some(pools) = self.pools else { return len };
        (len / pools.ratio + 1).saturating_sub(pools.series()) * pools.ratio
    }

    pub(super) fn snapshot(&mut self) -> Vec<RingMark> {
        self.rings().map(RowRing::snapshot).collect()
    }

    pub(super) fn restore(&mut self, marks: Vec<RingMark>) {
        for (ring, mark) in self.rings().zip(marks) {
            ring.restore(mark);
        }
    }

    pub(super) fn keep(&mut self) {
        self.rings().for_each(RowRing::keep);
    }

    fn rings(&mut self) -> impl Iterator<Item = &mut RowRing> {
        [&mut self.keys].into_iter().chain(&mut self.raw)
    }

    /// Number of tokens that can be stored before they are attended with.
    pub(crate) const fn chunk(&self) -> usize {
        SPARE + 1
    }

    /// The largest number of keys and entries that a query sees.
    pub(crate) fn most_seen(&self) -> usize {
        self.most
    }

    /// Stores the keys [tokens, elements] of consecutive positions. Their memory must be
    /// [reserved](Self::reserve).
    pub(crate) fn append(&mut self, first: usize, keys: &[f32]) {
        self.keys.append(first, keys);
    }

    /// Lists the places of the keys that the query at a position sees, ascending by position.
    pub(crate) fn window_of(&self, position: usize, list: &mut Vec<u32>) {
        let first = (position + 1).saturating_sub(self.window);
        list.extend((first..=position).map(|position| self.keys.slot(position) as u32));
    }

    /// The place of an entry.
    pub(crate) fn entry(&self, n: u32) -> u32 {
        self.keys.behind(n as usize) as u32
    }

    /// Keys and entries of the single head by their places. They are values, too.
    pub(crate) fn view(&self) -> KvCache<'_> {
        self.keys.rows().view()
    }

    /// Stores the rows of consecutive positions and the logits of their weights, for entries or for
    /// those of the indexer.
    pub(crate) fn append_raw(&mut self, index: bool, first: usize, rows: [&[f32]; 2]) {
        for (ring, rows) in self.raw[2 * usize::from(index)..].iter_mut().zip(rows) {
            ring.append(first, rows);
        }
    }

    /// The row of a position and the logits of its weights.
    pub(crate) fn raw(&self, index: bool, position: usize) -> [&[f32]; 2] {
        let first = 2 * usize::from(index);
        [first, first + 1].map(|ring| {
            let ring = &self.raw[ring];
            ring.rows().row(ring.slot(position))
        })
    }

    /// Stores an entry, or one of the indexer.
    ///
    /// # Panics
    ///
    /// If the layer has no indexer.
    pub(crate) fn put(&mut self, index: bool, n: usize, entry: &[f32]) {
        match index {
            false => self.keys.put(n, entry),
            true => self.index.as_mut().expect("a layer with an indexer").append(n, entry),
        }
    }

    /// The entries of the indexer, of one head.
    ///
    /// # Panics
    ///
    /// If the layer has none.
    pub(crate) fn index(&self) -> KvCache<'_> {
        self.index.as_ref().expect("a layer with an indexer").view()
    }

    /// True if the layer has an indexer.
    #[cfg(test)]
    pub(super) fn has_index(&self) -> bool {
        self.index.is_some()
    }

    /// All values that positions from `len` on need.
    #[cfg(test)]
    pub(super) fn seen(&self, len: usize) -> Vec<f32> {
        let mut seen = Vec::new();
        for position in (len + 1).saturating_sub(self.window)..len {
            self.keys.rows().read(self.keys.slot(position), &mut seen);
        }
        let Some(pools) = self.pools else { return seen };
        for number in 0..len / pools.ratio {
            self.keys.rows().read(self.keys.behind(number), &mut seen);
            if let Some(index) = &self.index {
                index.read(number, &mut seen);
            }
        }
        for position in self.unfinished(len)..len {
            for ring in &self.raw {
                ring.rows().read(ring.slot(position), &mut seen);
            }
        }
        seen
    }
}
