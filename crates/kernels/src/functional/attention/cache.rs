//! Memory layout of cached keys and values.

use std::sync::Arc;

use half::bf16;

use super::super::lanes::{LANES, Lanes};
use super::super::vector::Wide;

/// Minimum positions of a page: whole blocks of lanes, so that a page begins in lane 0.
pub const LEAST_PAGE: usize = 2 * LANES;

/// The rows of some positions, for all heads. Sequences with a common prefix can share pages.
pub type Page<E> = Arc<[E]>;

/// Layout of rows in pages of [heads, positions, dim]. The row of position p is in page s / `page`,
/// where s is p mod capacity. A head's rows in a page are contiguous, as attention reads them.
///
/// Long runs of rows are read fastest: thousands of positions in the shortest pages take measurably
/// longer than in one page or in pages of 512. Rotating the heads from page to page, and
/// prefetching the next page, gained nothing.
#[derive(Clone, Copy, Debug)]
pub struct CacheLayout {
    /// Positions that are kept. A cache that is never filled beyond this is linear, otherwise a
    /// ring.
    pub capacity: usize,
    /// Positions per page: a power of two, at least [`LEAST_PAGE`]. If it is not below the
    /// capacity, there is a single page of `capacity` positions.
    pub page: usize,
    /// Key-value heads.
    pub heads: usize,
    /// Elements from one position to the next: the length of a key or of a value.
    pub dim: usize,
}

impl CacheLayout {
    /// The page of `position`, and the offset of its row in that page.
    pub fn place(&self, head: usize, position: usize) -> (usize, usize) {
        let slot = position % self.capacity;
        (slot / self.page, self.head(head) + slot % self.page * self.dim)
    }

    /// Offset of a head's rows in a page.
    #[inline(always)]
    pub(super) fn head(&self, head: usize) -> usize {
        head * self.page.min(self.capacity) * self.dim
    }

    /// Number of pages that hold the positions before `end`.
    pub fn pages(&self, end: usize) -> usize {
        self.capacity.min(end).div_ceil(self.page)
    }

    /// Elements of a page; `None` on overflow.
    pub fn page_len(&self) -> Option<usize> {
        self.page.min(self.capacity).checked_mul(self.heads)?.checked_mul(self.dim)
    }
}

/// A page of zeros, in memory that has not been touched yet.
pub fn zeroed<E: Zero>(len: usize) -> Page<E> {
    // SAFETY: `Zero` guarantees that all bits 0 are a valid number.
    unsafe { Arc::new_zeroed_slice(len).assume_init() }
}

/// Element types of a cache for which all bits 0 are the number 0.
///
/// # Safety
///
/// All bits 0 must be a valid value.
pub unsafe trait Zero: Copy {}

// SAFETY: all bits 0 are 0.0.
unsafe impl Zero for f32 {}
// SAFETY: all bits 0 are 0.
unsafe impl Zero for u16 {}

/// The cached keys and values of a layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    /// The numbers.
    pub data: KvData<'a>,
    /// Layout of the keys.
    pub keys: CacheLayout,
    /// Layout of the values.
    pub values: CacheLayout,
}

/// Cached numbers in one of two precisions. Keys and values may be the same pages, as in latent
/// attention, where a value is the beginning of its key.
#[derive(Clone, Copy, Debug)]
pub enum KvData<'a> {
    /// Unrounded.
    F32 {
        /// Keys.
        keys: &'a [Page<f32>],
        /// Values.
        values: &'a [Page<f32>],
    },
    /// Rounded to bf16.
    Bf16 {
        /// Keys.
        keys: &'a [Page<u16>],
        /// Values.
        values: &'a [Page<u16>],
    },
}

/// Pages to store into. A shared page is copied first.
#[derive(Debug)]
pub enum CacheMut<'a> {
    /// Unrounded.
    F32(&'a mut [Page<f32>]),
    /// Rounded to bf16, to nearest, ties to even.
    Bf16(&'a mut [Page<u16>]),
}

/// Stores `rows` [tokens, heads, dim] at consecutive absolute positions from `first_position` on.
pub fn store(cache: CacheMut, layout: CacheLayout, first_position: usize, rows: &[f32]) {
    let CacheLayout { heads, dim, .. } = layout;
    assert!(heads * dim > 0 && rows.len().is_multiple_of(heads * dim), "store: shapes");
    match cache {
        CacheMut::F32(pages) => {
            store_rows(pages, layout, first_position, rows, |to, row| to.copy_from_slice(row));
        }
        CacheMut::Bf16(pages) => store_rows(pages, layout, first_position, rows, |to, row| {
            for (slot, &x) in to.iter_mut().zip(row) {
                *slot = bf16::from_f32(x).to_bits();
            }
        }),
    }
}

/// Makes a page exclusive once per position, not once per row.
fn store_rows<E: Copy>(
    pages: &mut [Page<E>],
    layout: CacheLayout,
    first_position: usize,
    rows: &[f32],
    store: impl Fn(&mut [E], &[f32]),
) {
    let CacheLayout { heads, dim, .. } = layout;
    for (position, rows) in (first_position..).zip(rows.chunks_exact(heads * dim)) {
        let (page, _) = layout.place(0, position);
        let to = Arc::make_mut(&mut pages[page]);
        for (head, row) in rows.chunks_exact(dim).enumerate() {
            let (_, start) = layout.place(head, position);
            store(&mut to[start..start + dim], row);
        }
    }
}

/// A number as stored in a cache.
pub(super) trait Element: Copy {
    /// -0 in this representation.
    const NEGATIVE_ZERO: Self;
    fn load<S: Wide>(simd: S, from: &[Self; LANES]) -> S::V;
}

impl Element for f32 {
    const NEGATIVE_ZERO: f32 = -0.0;
    #[inline(always)]
    fn load<S: Wide>(simd: S, from: &Lanes) -> S::V {
        simd.load(from)
    }
}

impl Element for u16 {
    const NEGATIVE_ZERO: u16 = 0x8000;
    #[inline(always)]
    fn load<S: Wide>(simd: S, from: &[u16; LANES]) -> S::V {
        simd.widen(from)
    }
}
