//! Where keys and values lie in memory.

use half::bf16;

use super::super::lanes::{LANES, Lanes};
use super::super::vector::Wide;

/// How the rows of a cache lie in a slice: position p of head h starts at
/// `h · head_stride + (p mod capacity) · slot_stride`.
#[derive(Clone, Copy, Debug)]
pub struct CacheLayout {
    /// Positions that are kept. A cache never filled beyond this is linear, otherwise a ring.
    pub capacity: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
    /// Elements from one position to the next.
    pub slot_stride: usize,
}

impl CacheLayout {
    /// [heads, capacity, dim]: a head's rows lie together, which is how attention reads them.
    pub fn head_major(capacity: usize, dim: usize) -> Self {
        CacheLayout { capacity, head_stride: capacity * dim, slot_stride: dim }
    }

    /// [capacity, heads, dim]: a position's rows lie together, so that the cache can grow.
    pub fn token_major(capacity: usize, heads: usize, dim: usize) -> Self {
        CacheLayout { capacity, head_stride: dim, slot_stride: heads * dim }
    }

    /// Where the row of `position` begins.
    #[inline(always)]
    pub fn offset(&self, head: usize, position: usize) -> usize {
        head * self.head_stride + position % self.capacity * self.slot_stride
    }

    /// The length that a slice needs to hold the positions before `end`.
    pub fn needed(&self, heads: usize, dim: usize, end: usize) -> usize {
        let slots = self.capacity.min(end);
        if heads == 0 || slots == 0 {
            return 0;
        }
        (heads - 1) * self.head_stride + (slots - 1) * self.slot_stride + dim
    }
}

/// The cached keys and values of a layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    /// The numbers.
    pub data: KvData<'a>,
    /// How the keys lie.
    pub keys: CacheLayout,
    /// How the values lie.
    pub values: CacheLayout,
}

/// Cached numbers in one of two precisions. Keys and values may be the same slice, as in latent
/// attention, where a value is the beginning of its key.
#[derive(Clone, Copy, Debug)]
pub enum KvData<'a> {
    /// As computed.
    F32 {
        /// Keys.
        keys: &'a [f32],
        /// Values.
        values: &'a [f32],
    },
    /// Rounded to bf16.
    Bf16 {
        /// Keys.
        keys: &'a [u16],
        /// Values.
        values: &'a [u16],
    },
}

/// A cache to store into.
#[derive(Debug)]
pub enum CacheMut<'a> {
    /// As computed.
    F32(&'a mut [f32]),
    /// Rounded to bf16, to nearest, ties to even.
    Bf16(&'a mut [u16]),
}

/// Stores `rows` [tokens, heads, dim] at consecutive absolute positions from `first_position` on.
pub fn store(
    cache: CacheMut,
    layout: CacheLayout,
    first_position: usize,
    heads: usize,
    dim: usize,
    rows: &[f32],
) {
    assert!(heads * dim > 0 && rows.len().is_multiple_of(heads * dim), "store: shapes");
    let places = rows.chunks_exact(dim).enumerate().map(|(i, row)| {
        let start = layout.offset(i % heads, first_position + i / heads);
        (start..start + dim, row)
    });
    match cache {
        CacheMut::F32(cache) => places.for_each(|(place, row)| cache[place].copy_from_slice(row)),
        CacheMut::Bf16(cache) => places.for_each(|(place, row)| {
            for (slot, &x) in cache[place].iter_mut().zip(row) {
                *slot = bf16::from_f32(x).to_bits();
            }
        }),
    }
}

/// A number as it lies in a cache.
pub(super) trait Element: Copy {
    /// Exactly -0.
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
