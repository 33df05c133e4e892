//! Rows decoded into memory, for products that use a weight more than once, tiers that do not decode in
//! registers, and encodings too rare for a transposed product of their own.
//!
//! For each instruction set one function decodes all encodings. So an encoding adds its decoder to
//! the program and not a copy of every product: with those, the program was 2 MB longer.

use std::ops::Range;

use crate::Matrix;
use crate::encodings::{
    Decoder, EncodingSimd, ForDecoder, RowCursor, Take, for_coded, for_decoder,
};
use crate::scalar::{BLOCK, LANES};
use crate::simd::{Simd, SimdJob};

/// Columns of some rows to be decoded.
pub(super) struct Decode<'a, 'm> {
    pub(super) m: &'a Matrix<'m>,
    /// The rows, which are all of this matrix.
    pub(super) cursors: &'a mut [Option<RowCursor<'m>>],
    /// Whole blocks; beyond the last column there are zeros.
    pub(super) cols: Range<usize>,
    pub(super) to: &'a mut [f32],
    pub(super) places: ColumnPlaces,
}

/// Places of decoded columns in memory.
#[derive(Clone, Copy)]
pub(super) struct ColumnPlaces {
    /// Distance from one row to the next.
    pub(super) row: usize,
    /// From 32 columns to the next.
    pub(super) step: usize,
    /// From the first half of them to the second.
    pub(super) half: usize,
    /// From the lanes of a register to those of the next in a half.
    pub(super) slice: usize,
}

impl ColumnPlaces {
    /// Rows of `cols` columns in order, one row after another.
    #[inline(always)]
    pub(super) fn plain<S: Simd>(cols: usize) -> ColumnPlaces {
        ColumnPlaces { row: cols, step: LANES, half: LANES / 2, slice: S::TILE_LANES }
    }
}

impl<S: EncodingSimd> SimdJob<S> for Decode<'_, '_> {
    #[inline(always)]
    fn run(self, s: S) {
        match self.m.encoding().coding() {
            Some(_) => for_coded(s, self.m.encoding(), self),
            None => for_decoder(s, self.m.encoding(), self),
        }
    }
}

impl<S: Simd> ForDecoder<S> for Decode<'_, '_> {
    #[inline(always)]
    fn run<D: Decoder<S>>(self, s: S) {
        let Decode { m, cursors, cols, to, places } = self;
        let ColumnPlaces { row, step, half, slice } = places;
        let decoder = D::new(s, m);
        let (Some(rows), Some(steps)) =
            (cursors.len().checked_sub(1), (cols.len() / LANES).checked_sub(1))
        else {
            return;
        };
        let slices = LANES / 2 / S::TILE_LANES - 1;
        let last = rows * row + steps * step + half + slices * slice + S::TILE_LANES;
        assert!(last <= to.len(), "columns to decode");
        for (r, cursor) in cursors.iter_mut().enumerate() {
            let Some(at) = cursor else { continue };
            let whole = (cols.end / BLOCK).min(m.cols() / BLOCK);
            let mut b = cols.start / BLOCK;
            // SAFETY: the last of all columns is in bounds, as asserted above.
            let mut to = StoredBlocks { to: unsafe { to.as_mut_ptr().add(r * row) }, places };
            while b + D::SPAN <= whole && b.is_multiple_of(D::SPAN) {
                // SAFETY: the cursor belongs to this matrix, and these blocks are whole.
                unsafe {
                    let shared = decoder.shared(s, at, b);
                    // Opaque to the compiler, which would keep it in registers.
                    let shared = if D::SPAN > 1 { std::hint::black_box(&shared) } else { &shared };
                    decoder.span(s, at, b, shared, &mut to);
                }
                to.skip(D::SPAN);
                b += D::SPAN;
            }
            while b < cols.end / BLOCK {
                let w = if b < whole {
                    // SAFETY: the cursor belongs to this matrix, and block `b` is whole.
                    unsafe { decoder.block(s, at, b) }
                } else {
                    decoder.tail(s, at, m)
                };
                to.take(s, 0, w);
                to.skip(1);
                b += 1;
            }
        }
    }
}

/// Where blocks of a row are stored, of which the job knows that there is room for all.
struct StoredBlocks {
    to: *mut f32,
    places: ColumnPlaces,
}

impl StoredBlocks {
    /// Goes on behind so many blocks.
    #[inline(always)]
    fn skip(&mut self, blocks: usize) {
        self.to = self.to.wrapping_add(2 * blocks * self.places.step);
    }
}

impl<S: Simd> Take<S> for StoredBlocks {
    #[inline(always)]
    fn take(&mut self, s: S, k: usize, weights: [S::F; 4]) {
        let ColumnPlaces { step, half, slice, .. } = self.places;
        for (i, weights) in weights.into_iter().enumerate() {
            let at = (2 * k + i / 2) * step + i % 2 * half;
            // SAFETY: the last of all columns is in bounds, as `Decode::run` asserted.
            unsafe { s.store_slices(weights, self.to.add(at), slice) };
        }
    }
}
