//! Latents of one layer of one sequence. Each position has one row, from which all heads compute
//! their keys and values, and the key of an indexer.

use std::io::{self, Read, Write};
use std::ops::Range;

use sws_kernels::functional::KvCache;

use super::KvPrecision;
use super::pages::SharedPage;
use super::rows::PagedRows;
use crate::spec::LatentSpec;

/// The latent of each position, followed by the rotated part of its key; and the keys of the
/// layer's indexer, if it has one. There is one of the two at least.
#[derive(Clone, Debug)]
pub(crate) struct LatentState {
    /// None if the layer sees the latents of an earlier one.
    latents: Option<PagedRows>,
    index: Option<PagedRows>,
    /// Keys and gates of single positions, if the indexer pools keys. They are never rounded.
    parts: Option<[PagedRows; 2]>,
    /// Number of positions per pooled key.
    group: usize,
}

impl LatentState {
    /// A cache for positions below `limit`, in pages of `page`; none is allocated yet.
    pub(super) fn new(
        spec: &LatentSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> Self {
        let mut state = LatentState { latents: None, index: None, parts: None, group: 1 };
        if spec.has_latents() {
            state.latents = Some(PagedRows::new(spec.width(), limit, precision, page));
        }
        if let Some(indexer) = spec.indexer() {
            let keys = (limit / indexer.group).max(1);
            state.index = Some(PagedRows::new(indexer.dim, keys, precision, page));
            state.group = indexer.group;
            if indexer.is_pooled() {
                let part = |dim| PagedRows::new(dim, limit, KvPrecision::F32, page);
                state.parts = Some([indexer.dim; 2].map(part));
            }
        }
        state
    }

    /// The maximum size in bytes of `limit` positions in pages of `page`.
    pub(super) fn bytes_for(
        spec: &LatentSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        let mut bytes = 0;
        if spec.has_latents() {
            bytes += PagedRows::bytes_for(spec.width(), limit, precision, page);
        }
        if let Some(indexer) = spec.indexer() {
            let keys = (limit / indexer.group).max(1);
            let parts = if indexer.is_pooled() { 2 * indexer.dim } else { 0 };
            bytes += PagedRows::bytes_for(indexer.dim, keys, precision, page)
                + PagedRows::bytes_for(parts, limit, KvPrecision::F32, page);
        }
        bytes
    }

    /// Bytes held, including shared pages.
    pub(super) fn bytes(&self) -> u64 {
        self.all().map(PagedRows::bytes).sum()
    }

    /// Makes room for the positions below `end`.
    pub(super) fn reserve(&mut self, end: usize) {
        let groups = end / self.group;
        if let Some(index) = &mut self.index {
            index.reserve(groups);
        }
        for rows in self.by_position() {
            rows.reserve(end);
        }
    }

    /// Empties the cache and keeps its memory, except for shared pages, which are left to the other
    /// sequence.
    pub(super) fn clear(&mut self) {
        self.index.iter_mut().for_each(PagedRows::clear);
        self.by_position().for_each(PagedRows::clear);
    }

    /// Drops the pages that `len` positions do not need.
    pub(super) fn trim(&mut self, len: usize) {
        let groups = len / self.group;
        if let Some(index) = &mut self.index {
            index.trim(groups);
        }
        for rows in self.by_position() {
            rows.trim(len);
        }
    }

    /// Bytes that the positions from `len` to `end` take.
    pub(super) fn growth(&self, len: usize, end: usize) -> u64 {
        let mut bytes = 0;
        if let Some(index) = &self.index {
            bytes += index.growth(len / self.group, end / self.group);
        }
        for rows in self.latents.iter().chain(self.parts.iter().flatten()) {
            bytes += rows.growth(len, end);
        }
        bytes
    }

    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        for rows in self.all() {
            rows.each_page(each);
        }
    }

    /// Bytes of a value.
    pub(super) fn layout(&self) -> usize {
        self.first().precision().row_bytes(1)
    }

    /// Writes the rows of positions, and the groups that end in them.
    pub(super) fn write(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        let groups = positions.start / self.group..positions.end / self.group;
        if let Some(latents) = &self.latents {
            latents.write(positions.clone(), to)?;
        }
        if let Some(index) = &self.index {
            index.write(groups, to)?;
        }
        for parts in self.parts.iter().flatten() {
            parts.write(positions.clone(), to)?;
        }
        Ok(())
    }

    /// Reads the rows of positions. Their memory must be [reserved](Self::reserve).
    pub(super) fn take(&mut self, positions: Range<usize>, from: &mut dyn Read) -> io::Result<()> {
        let groups = positions.start / self.group..positions.end / self.group;
        if let Some(latents) = &mut self.latents {
            latents.take(positions.clone(), from)?;
        }
        if let Some(index) = &mut self.index {
            index.take(groups, from)?;
        }
        for parts in self.parts.iter_mut().flatten() {
            parts.take(positions.clone(), from)?;
        }
        Ok(())
    }

    /// Stores latents [tokens, width] of consecutive positions. Their memory must be
    /// [reserved](Self::reserve).
    ///
    /// # Panics
    ///
    /// If the layer has none of its own.
    pub(crate) fn append(&mut self, first: usize, rows: &[f32]) {
        self.latents.as_mut().expect("a layer with latents").append(first, rows);
    }

    /// The latents as keys of one head, and their beginnings as values.
    ///
    /// # Panics
    ///
    /// If the layer has none of its own.
    pub(crate) fn view(&self) -> KvCache<'_> {
        self.latents.as_ref().expect("a layer with latents").view()
    }

    /// Number of positions kept.
    pub(crate) fn capacity(&self) -> usize {
        self.first().capacity()
    }

    /// Stores keys and gates [tokens, dim] of positions whose keys are pooled.
    ///
    /// # Panics
    ///
    /// If the layer pools none.
    pub(crate) fn append_parts(&mut self, first: usize, parts: [&[f32]; 2]) {
        let rows = self.parts.as_mut().expect("a layer with pooled keys");
        for (rows, part) in rows.iter_mut().zip(parts) {
            rows.append(first, part);
        }
    }

    /// The key of a position, and its gates.
    ///
    /// # Panics
    ///
    /// If the layer pools none.
    pub(crate) fn parts(&self, position: usize) -> [&[f32]; 2] {
        let [keys, gates] = self.parts.as_ref().expect("a layer with pooled keys");
        [keys.row(position), gates.row(position)]
    }

    /// Stores keys [tokens, dim] of the indexer, or of groups from the number `first` on.
    ///
    /// # Panics
    ///
    /// If the layer has no indexer.
    pub(crate) fn append_index(&mut self, first: usize, keys: &[f32]) {
        self.index.as_mut().expect("a layer with an indexer").append(first, keys);
    }

    /// The keys of the indexer, of one head.
    ///
    /// # Panics
    ///
    /// If the layer has no indexer.
    pub(crate) fn index(&self) -> KvCache<'_> {
        self.index.as_ref().expect("a layer with an indexer").view()
    }

    /// The rows of single positions: all but the keys of the indexer.
    fn by_position(&mut self) -> impl Iterator<Item = &mut PagedRows> {
        self.latents.iter_mut().chain(self.parts.iter_mut().flatten())
    }

    fn all(&self) -> impl Iterator<Item = &PagedRows> {
        self.latents.iter().chain(&self.index).chain(self.parts.iter().flatten())
    }

    /// The latents, or else the keys of the indexer.
    fn first(&self) -> &PagedRows {
        self.all().next().expect("latents or keys of an indexer")
    }
}
