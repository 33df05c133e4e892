//! Latents of one layer of one sequence: of each position one row, from which all heads make their
//! keys and values, and the key by which an indexer finds it.

use sws_kernels::functional::KvCache;

use super::KvPrecision;
use super::rows::Rows;
use crate::spec::LatentSpec;

/// The latent of each position, followed by the rotated part of its key; and the keys of the
/// layer's indexer, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct LatentState {
    latents: Rows,
    index: Option<Rows>,
}

impl LatentState {
    /// A cache for positions below `limit`, in pages of `page`; none is allocated yet.
    pub(super) fn new(
        spec: &LatentSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> Self {
        let rows = |width| Rows::new(width, limit, precision, page);
        let index = spec.indexer().map(|indexer| rows(indexer.dim));
        LatentState { latents: rows(spec.width()), index }
    }

    /// The maximum size in bytes of `limit` positions in pages of `page`.
    pub(super) fn bytes_for(
        spec: &LatentSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        let rows = |width| Rows::bytes_for(width, limit, precision, page);
        rows(spec.width()) + spec.indexer().map_or(0, |indexer| rows(indexer.dim))
    }

    /// Bytes held, including shared pages.
    pub(super) fn bytes(&self) -> u64 {
        self.latents.bytes() + self.index.as_ref().map_or(0, Rows::bytes)
    }

    /// Makes room for the positions below `end`.
    pub(super) fn reserve(&mut self, end: usize) {
        self.each(|rows| rows.reserve(end));
    }

    /// Empties the cache and keeps its memory, except for shared pages, which are left to the other
    /// sequence.
    pub(super) fn clear(&mut self) {
        self.each(Rows::clear);
    }

    /// Stores latents [tokens, width] of consecutive positions, for which there is
    /// [room](Self::reserve).
    pub(crate) fn append(&mut self, first: usize, rows: &[f32]) {
        self.latents.append(first, rows);
    }

    /// The latents as keys, and their beginnings as values, of one head.
    pub(crate) fn view(&self) -> KvCache<'_> {
        self.latents.view()
    }

    /// Number of positions kept.
    pub(crate) fn capacity(&self) -> usize {
        self.latents.capacity()
    }

    /// Stores keys [tokens, dim] of the indexer.
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

    fn each(&mut self, f: impl Fn(&mut Rows)) {
        f(&mut self.latents);
        self.index.iter_mut().for_each(f);
    }
}
