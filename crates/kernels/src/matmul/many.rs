//! Products with many tokens. They are bound by arithmetic, so a few rows are decoded once and kept
//! in the first-level cache, while the tokens, packed by [`PackedInput`](super::PackedInput), stream past from
//! the second.
//!
//! A tile is a few rows by a few tokens, with one register of sums each, and one *slice* of the 32
//! lanes: with 16 lanes per register, columns 0 to 15 of every 32, then 16 to 31. Slices and chunks
//! of columns follow one another with the sums kept in between, so every sum has the same order as
//! with one token.

// Loops over registers by index are unrolled; some with iterators were not.
#![allow(clippy::needless_range_loop)]

use super::ThreadScratch;
use super::decoded::{ColumnPlaces, Decode};
use super::input::{CHUNK, GROUP, PackedInput, groups};
use super::output::OutputColumns;
use crate::Matrix;
use crate::encodings::{EncodingSimd, RowCursor};
use crate::scalar::LANES;
use crate::simd::{Operands, Simd, SimdJob};

/// Row tiles that share a pass over a chunk of the tokens. Tokens that exceed the second-level
/// cache are then read from the third only once for all of these tiles.
const TILES: usize = 4;

/// A product of all rows.
pub(super) struct ManyTokens<'a, 'm, 'y> {
    pub(super) m: &'a Matrix<'m>,
    pub(super) x: &'a PackedInput,
    pub(super) y: &'a mut OutputColumns<'y>,
    pub(super) scratch: &'a mut ThreadScratch,
}

impl<S: EncodingSimd> SimdJob<S> for ManyTokens<'_, '_, '_> {
    #[inline(always)]
    fn run(self, s: S) {
        let ManyTokens { m, x, y, scratch } = self;
        many(s, m, x, y, scratch);
    }
}

#[inline(always)]
fn many<S: EncodingSimd>(
    s: S,
    m: &Matrix,
    x: &PackedInput,
    y: &mut OutputColumns,
    scratch: &mut ThreadScratch,
) {
    let rows = m.row_count();
    let padded = x.padded_cols();
    // The panel: [slice][step][row of the tile][lane], for one chunk. The sums:
    // [row tile][token tile][slice][row of the tile][token of the tile][lane].
    let [panel, sums] = scratch_lengths::<S>();
    let panel = scratch.panel.grown(panel);
    let sums = scratch.sums.grown(sums);
    let mut cursors = [None; 32];
    for (group, tokens) in groups(x.tokens(), GROUP) {
        let x = &x.packed()[group * padded..][..tokens * padded];
        for (first, count) in groups(rows, TILES * S::TILE_ROWS) {
            for (i, cursor) in cursors[..count].iter_mut().enumerate() {
                *cursor = Some(RowCursor::new(m.encoding(), m, first + i));
            }
            for (col, cols) in groups(padded, CHUNK) {
                let x = &x[tokens * col..][..tokens * cols];
                for (tile, cursors) in cursors[..count].chunks_mut(S::TILE_ROWS).enumerate() {
                    let step = S::TILE_ROWS * S::TILE_LANES;
                    let slice = cols / LANES * step;
                    let half = slice * (LANES / 2 / S::TILE_LANES);
                    let places = ColumnPlaces { row: S::TILE_LANES, step, half, slice };
                    let range = col..col + cols;
                    let to = &mut *panel;
                    s.compiled(Decode { m, cursors, cols: range, to, places });
                    let sums = &mut sums[tile * sums_of_tile::<S>(GROUP)..];
                    multiply(s, panel, x, cols, col == 0, sums);
                }
            }
            for (tile, (row, rows)) in groups(count, S::TILE_ROWS).enumerate() {
                let sums = &sums[tile * sums_of_tile::<S>(GROUP)..];
                finish(s, sums, tokens, rows, |t, r, sum| y.set(group + t, first + row + r, sum));
            }
        }
    }
}

/// Lengths of the panel and of the sums.
pub(super) fn scratch_lengths<S: Simd>() -> [usize; 2] {
    [S::TILE_ROWS * CHUNK, TILES * sums_of_tile::<S>(GROUP)]
}

/// Length of the sums of one row tile and `tokens` tokens.
fn sums_of_tile<S: Simd>(tokens: usize) -> usize {
    tokens * S::TILE_ROWS * LANES
}

#[inline(always)]
fn multiply<S: Simd>(s: S, panel: &[f32], x: &[f32], cols: usize, first: bool, sums: &mut [f32]) {
    let tokens = x.len() / cols;
    let steps = cols / LANES;
    let lanes = S::TILE_LANES;
    assert!(panel.len() >= cols * S::TILE_ROWS);
    assert!(sums.len() >= sums_of_tile::<S>(tokens));
    for slice in 0..LANES / lanes {
        for (t, n) in groups(tokens, S::TILE_TOKENS) {
            let w = slice * steps * S::TILE_ROWS * lanes;
            let xs = slice * steps * tokens * lanes + t * steps * lanes;
            let acc = t * S::TILE_ROWS * LANES + slice * S::TILE_ROWS * n * lanes;
            // SAFETY: the tile reads `steps` times the lanes of its rows and of its tokens, and
            // writes rows times tokens of them. All are in bounds, as asserted above.
            unsafe {
                let operands = Operands { w: panel.as_ptr().add(w), x: x.as_ptr().add(xs) };
                s.tile(n, steps, operands, sums.as_mut_ptr().add(acc), first);
            }
        }
    }
}

/// Reduces the lanes of every sum.
#[inline(always)]
fn finish<S: Simd>(
    s: S,
    sums: &[f32],
    tokens: usize,
    rows: usize,
    mut set: impl FnMut(usize, usize, f32),
) {
    let lanes = S::TILE_LANES;
    assert!(sums.len() >= sums_of_tile::<S>(tokens));
    for (t, n) in groups(tokens, S::TILE_TOKENS) {
        let slice = S::TILE_ROWS * n * lanes;
        for i in 0..n {
            for r in 0..rows {
                let at = t * S::TILE_ROWS * LANES + (r * n + i) * lanes;
                // SAFETY: the lanes of one sum in every slice are in bounds, as asserted above.
                let sum = unsafe { s.reduce_slices(sums.as_ptr().add(at), slice) };
                set(t + i, r, sum);
            }
        }
    }
}
