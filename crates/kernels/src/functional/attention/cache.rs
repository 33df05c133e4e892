//! Memory layout of the KV cache.

use std::sync::Arc;

use half::bf16;

use super::super::lanes::{LANES, padded};
use super::super::vector::Wide;
use super::q8;

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
    /// Elements from one position to the next: the length of a key or of a value, in 8 bits the
    /// [bytes](q8::bytes) of one.
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
// SAFETY: all bits 0 are 0: a row of such has the scale 0 and the codes 0.
unsafe impl Zero for u8 {}

/// The KV cache of a layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    /// The numbers.
    pub data: KvData<'a>,
    /// Layout of the keys.
    pub keys: CacheLayout,
    /// Layout of the values.
    pub values: CacheLayout,
}

/// Cached numbers in one of three precisions. Keys and values may be the same pages, as in latent
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
    /// Rounded to 8 bits, as [`q8`] defines.
    Q8 {
        /// Keys.
        keys: &'a [Page<u8>],
        /// Values.
        values: &'a [Page<u8>],
    },
}

impl KvData<'_> {
    /// The length in elements of a row of so many numbers.
    pub(super) fn row(&self, numbers: usize) -> usize {
        match self {
            KvData::F32 { .. } => f32::row(numbers),
            KvData::Bf16 { .. } => u16::row(numbers),
            KvData::Q8 { .. } => u8::row(numbers),
        }
    }
}

impl KvCache<'_> {
    /// Numbers of a key.
    pub(in crate::functional) fn key_dim(&self) -> usize {
        match self.data {
            KvData::F32 { .. } | KvData::Bf16 { .. } => self.keys.dim,
            KvData::Q8 { .. } => q8::numbers(self.keys.dim),
        }
    }
}

/// Pages to store into. A shared page is copied first.
#[derive(Debug)]
pub enum CacheMut<'a> {
    /// Unrounded.
    F32(&'a mut [Page<f32>]),
    /// Rounded to bf16, to nearest, ties to even.
    Bf16(&'a mut [Page<u16>]),
    /// Rounded to 8 bits, as [`q8`] defines.
    Q8(&'a mut [Page<u8>]),
}

/// Stores `rows` [tokens, heads, numbers] at consecutive absolute positions from `first_position`
/// on.
pub fn store(cache: CacheMut, layout: CacheLayout, first_position: usize, rows: &[f32]) {
    match cache {
        CacheMut::F32(pages) => {
            store_rows(pages, layout, first_position, rows, |to, row| to.copy_from_slice(row));
        }
        CacheMut::Bf16(pages) => store_rows(pages, layout, first_position, rows, |to, row| {
            for (slot, &x) in to.iter_mut().zip(row) {
                *slot = bf16::from_f32(x).to_bits();
            }
        }),
        CacheMut::Q8(pages) => store_rows(pages, layout, first_position, rows, q8::store),
    }
}

/// Makes a page exclusive once per position, not once per row.
fn store_rows<E: Element>(
    pages: &mut [Page<E>],
    layout: CacheLayout,
    first_position: usize,
    rows: &[f32],
    store: impl Fn(&mut [E], &[f32]),
) {
    let CacheLayout { heads, dim, .. } = layout;
    let numbers = E::numbers(dim);
    assert!(
        heads * numbers > 0 && E::row(numbers) == dim && rows.len().is_multiple_of(heads * numbers),
        "store: shapes"
    );
    for (position, rows) in (first_position..).zip(rows.chunks_exact(heads * numbers)) {
        let (page, _) = layout.place(0, position);
        let to = Arc::make_mut(&mut pages[page]);
        for (head, row) in rows.chunks_exact(numbers).enumerate() {
            let (_, start) = layout.place(head, position);
            store(&mut to[start..start + dim], row);
        }
    }
}

/// A number, or a part of one, as stored in a cache.
pub(super) trait Element: Copy {
    /// Elements of a block of 32 numbers.
    const BLOCK: usize;

    /// The length of a row of so many numbers.
    #[inline(always)]
    fn row(numbers: usize) -> usize {
        numbers
    }

    /// Numbers of a row of this length.
    #[inline(always)]
    fn numbers(row: usize) -> usize {
        row
    }

    /// Loads the block with which `from` begins.
    fn load<S: Wide>(simd: S, from: &[Self]) -> S::V;

    /// Loads the rest of a row, shorter than a block, padded with -0: 0 · -0 = -0 leaves every
    /// accumulator unchanged.
    fn rest<S: Wide>(simd: S, rest: &[Self]) -> S::V;
}

impl Element for f32 {
    const BLOCK: usize = LANES;

    #[inline(always)]
    fn load<S: Wide>(simd: S, from: &[f32]) -> S::V {
        simd.load(from.first_chunk().expect("a whole block"))
    }

    #[inline(always)]
    fn rest<S: Wide>(simd: S, rest: &[f32]) -> S::V {
        simd.load(&padded(rest, -0.0))
    }
}

impl Element for u16 {
    const BLOCK: usize = LANES;

    #[inline(always)]
    fn load<S: Wide>(simd: S, from: &[u16]) -> S::V {
        simd.widen(from.first_chunk().expect("a whole block"))
    }

    #[inline(always)]
    fn rest<S: Wide>(simd: S, rest: &[u16]) -> S::V {
        let mut block = [0x8000; LANES];
        block[..rest.len()].copy_from_slice(rest);
        simd.widen(&block)
    }
}

/// A byte of a [row in 8 bits](q8).
impl Element for u8 {
    const BLOCK: usize = q8::BLOCK;

    #[inline(always)]
    fn row(numbers: usize) -> usize {
        q8::bytes(numbers)
    }

    #[inline(always)]
    fn numbers(row: usize) -> usize {
        q8::numbers(row)
    }

    #[inline(always)]
    fn load<S: Wide>(simd: S, from: &[u8]) -> S::V {
        let (scale, codes) = q8::split(from);
        let codes = simd.signed(codes.first_chunk().expect("a whole block"));
        simd.fma(codes, simd.splat(scale), simd.splat(-0.0))
    }

    #[inline(always)]
    fn rest<S: Wide>(simd: S, rest: &[u8]) -> S::V {
        let (scale, codes) = q8::split(rest);
        let mut block = [-0.0; LANES];
        for (x, &code) in block.iter_mut().zip(codes) {
            *x = f32::from(code as i8) * scale;
        }
        simd.load(&block)
    }
}

/// The `c`-th 32 elements of a row. Elements beyond its end are padding that is never used.
#[inline(always)]
pub(super) fn chunk<S: Wide, E: Element>(simd: S, row: &[E], c: usize) -> S::V {
    let from = c * E::BLOCK;
    match row.get(from..from + E::BLOCK) {
        Some(block) => E::load(simd, block),
        None => E::rest(simd, &row[from..]),
    }
}
