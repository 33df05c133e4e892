//! The keys of an indexer that selects blocks of positions.

use std::io::{self, Read, Write};
use std::ops::Range;

use sws_kernels::functional::KvCache;

use super::KvPrecision;
use super::pages::SharedPage;
use super::rows::PagedRows;
use crate::spec::BlocksSpec;

/// Panic message for layers without an indexer.
pub(super) const INDEXER: &str = "a layer with an indexer";

/// Panic message for layers whose keys of blocks are not means.
pub(super) const BLOCKS: &str = "a layer with keys of blocks";

/// The keys of a layer's indexer.
#[derive(Clone, Debug)]
pub(super) struct IndexKeys {
    keys: PagedRows,
    /// Keys of single positions, if keys of blocks are their means. They are never rounded.
    parts: Option<PagedRows>,
    /// Number of positions per key.
    block: usize,
}

impl IndexKeys {
    /// Keys for positions below `limit`, in pages of `page`; none is allocated yet.
    pub(super) fn new(
        spec: BlocksSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> IndexKeys {
        let keys = PagedRows::new(spec.dim, spec.keys(limit), precision, page);
        if !spec.pooled {
            return IndexKeys { keys, parts: None, block: 1 };
        }
        let parts = PagedRows::new(spec.dim, limit, KvPrecision::F32, page);
        IndexKeys { keys, parts: Some(parts), block: spec.size }
    }

    /// The maximum size in bytes of `limit` positions in pages of `page`.
    pub(super) fn bytes_for(
        spec: BlocksSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        let parts = if spec.pooled { spec.dim } else { 0 };
        PagedRows::bytes_for(spec.dim, spec.keys(limit), precision, page)
            + PagedRows::bytes_for(parts, limit, KvPrecision::F32, page)
    }

    /// Bytes held, including shared pages.
    pub(super) fn bytes(&self) -> u64 {
        self.keys.bytes() + self.parts.as_ref().map_or(0, PagedRows::bytes)
    }

    /// Makes room for the positions below `end`.
    pub(super) fn reserve(&mut self, end: usize) {
        self.keys.reserve(end / self.block);
        if let Some(parts) = &mut self.parts {
            parts.reserve(end);
        }
    }

    /// Drops shared pages, and keeps the memory of the others.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.parts.iter_mut().for_each(PagedRows::clear);
    }

    /// Drops the pages that `len` positions do not need.
    pub(super) fn trim(&mut self, len: usize) {
        self.keys.trim(len / self.block);
        if let Some(parts) = &mut self.parts {
            parts.trim(len);
        }
    }

    /// Bytes that the positions from `len` to `end` take.
    pub(super) fn growth(&self, len: usize, end: usize) -> u64 {
        let keys = self.keys.growth(len / self.block, end / self.block);
        match &self.parts {
            Some(parts) => keys + parts.growth(len, end),
            None => keys,
        }
    }

    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        for rows in [&self.keys].into_iter().chain(&self.parts) {
            rows.each_page(each);
        }
    }

    /// Writes the keys of positions, and of the blocks that end in them.
    pub(super) fn write(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        self.keys.write(self.blocks(&positions), to)?;
        match &self.parts {
            Some(parts) => parts.write(positions, to),
            None => Ok(()),
        }
    }

    /// Reads the keys of positions. Their memory must be [reserved](Self::reserve).
    pub(super) fn take(&mut self, positions: Range<usize>, from: &mut dyn Read) -> io::Result<()> {
        self.keys.take(self.blocks(&positions), from)?;
        match &mut self.parts {
            Some(parts) => parts.take(positions, from),
            None => Ok(()),
        }
    }

    /// The blocks that end in these positions.
    fn blocks(&self, positions: &Range<usize>) -> Range<usize> {
        positions.start / self.block..positions.end / self.block
    }

    /// Stores keys [tokens, dim]; where those of blocks are means, of blocks from the number `first`
    /// on.
    pub(super) fn append(&mut self, first: usize, keys: &[f32]) {
        self.keys.append(first, keys);
    }

    /// Stores keys [tokens, dim] of single positions.
    ///
    /// # Panics
    ///
    /// If keys of blocks are not means.
    pub(super) fn append_parts(&mut self, first: usize, keys: &[f32]) {
        self.parts.as_mut().expect(BLOCKS).append(first, keys);
    }

    /// The key of a single position.
    ///
    /// # Panics
    ///
    /// If keys of blocks are not means.
    pub(super) fn part(&self, position: usize) -> &[f32] {
        self.parts.as_ref().expect(BLOCKS).row(position)
    }

    /// The keys, of one head.
    pub(super) fn view(&self) -> KvCache<'_> {
        self.keys.view()
    }
}
