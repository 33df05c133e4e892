//! Products with many tokens, in the tiles of `many.rs`: codes are decoded once for the tokens of a
//! group, and a sum is scaled after every four steps.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::decode::Cursor;
use super::super::input::{CHUNK, GROUP, groups};
use super::super::many::{Operands, TILES, finish, sums_of_tile};
use super::super::output::Output;
use super::super::{Input, ThreadScratch};
use super::{Coded, ForCoded, OfSpan, for_coded, last_unit};
use crate::Matrix;
use crate::reference::{Coding, LANES, MINIMA_LANES, SPAN_COLS, UNIT_COLS};
use crate::simd::{Job, Simd};

/// What is added for the runs of a chunk of a row.
const ADDED: usize = CHUNK / 16;

/// Lengths of the panel with the scales and minima behind it, and of the sums with those of minima.
pub(in crate::matmul) fn scratch_lengths<S: Simd>() -> [usize; 2] {
    let rows = S::TILE_ROWS;
    let panel = rows * (CHUNK + CHUNK / 4 + ADDED);
    [panel, TILES * (sums_of_tile::<S>(GROUP) + rows * GROUP * MINIMA_LANES)]
}

#[inline(always)]
pub(in crate::matmul) fn many<S: Simd>(
    s: S,
    coding: Coding,
    m: &Matrix,
    x: &Input,
    y: &mut Output,
    scratch: &mut ThreadScratch,
) {
    let x = x.coded(coding.fours);
    let [panel, sums] = scratch_lengths::<S>();
    let (panel, sums) = (scratch.panel.grown(panel), scratch.sums.grown(sums));
    let (panel, behind) = panel.split_at_mut(S::TILE_ROWS * CHUNK);
    let (scales, added) = behind.split_at_mut(S::TILE_ROWS * CHUNK / 4);
    let (sums, minima) = sums.split_at_mut(TILES * sums_of_tile::<S>(GROUP));
    let of_tile = S::TILE_ROWS * GROUP * MINIMA_LANES;
    for (group, tokens) in groups(x.tokens, GROUP) {
        for (first, count) in groups(m.row_count(), TILES * S::TILE_ROWS) {
            for (col, cols) in groups(x.padded, CHUNK) {
                let columns = &x.columns()[group * x.padded + tokens * col..][..tokens * cols];
                for (tile, (row, rows)) in groups(count, S::TILE_ROWS).enumerate() {
                    let (panel, scales, added) = (&mut *panel, &mut *scales, &mut *added);
                    let of_rows = first + row..first + row + rows;
                    let chunk = col..col + cols;
                    let job = Decode { m, rows: of_rows, cols: chunk, panel, scales, added };
                    for_coded(s, m.encoding(), job);
                    let sums = &mut sums[tile * sums_of_tile::<S>(GROUP)..];
                    let minima = &mut minima[tile * of_tile..][..of_tile];
                    if col == 0 {
                        sums[..sums_of_tile::<S>(tokens)].fill(0.0);
                        minima[..tokens * S::TILE_ROWS * MINIMA_LANES].fill(0.0);
                    }
                    // Units without a column are left out.
                    let units = (m.cols() - col).div_ceil(UNIT_COLS).min(cols / UNIT_COLS);
                    multiply(s, panel, scales, columns, cols, units, sums);
                    let per_span = coding.runs() / 8;
                    let of_chunk = cols.div_ceil(SPAN_COLS) * per_span;
                    let added = added.as_chunks::<8>().0;
                    for t in 0..tokens {
                        let sums = &x.sums(group + t, coding.run)[col / SPAN_COLS * per_span..];
                        for r in 0..rows {
                            let added = &added[r * ADDED / 8..][..of_chunk];
                            let at = MINIMA_LANES * (t * S::TILE_ROWS + r);
                            let to = &mut minima[at..][..MINIMA_LANES];
                            add_minima(s, added, &sums[..of_chunk], to);
                        }
                    }
                }
            }
            for (tile, (row, rows)) in groups(count, S::TILE_ROWS).enumerate() {
                let sums = &sums[tile * sums_of_tile::<S>(GROUP)..];
                let minima = minima[tile * of_tile..].as_chunks().0;
                finish(s, sums, tokens, rows, |t, r, sum| {
                    let minima: &[f32; MINIMA_LANES] = &minima[t * S::TILE_ROWS + r];
                    // SAFETY: eight numbers.
                    let minima = s.fold_h(unsafe { s.load_h(minima.as_ptr()) });
                    y.set(group + t, first + row + r, coding.factor().mul_add(minima, sum));
                });
            }
        }
    }
}

/// Adds the products of minima and sums of activations.
#[inline(always)]
fn add_minima<S: Simd>(s: S, added: &[[f32; 8]], sums: &[[f32; 8]], to: &mut [f32]) {
    assert!(to.len() == MINIMA_LANES);
    // SAFETY: eight numbers each.
    unsafe {
        let mut minima = s.load_h(to.as_ptr());
        for (added, sums) in added.iter().zip(sums) {
            minima = s.fma_h(s.load_h(added.as_ptr()), s.load_h(sums.as_ptr()), minima);
        }
        s.store_h(minima, to.as_mut_ptr());
    }
}

#[inline(always)]
fn multiply<S: Simd>(
    s: S,
    panel: &[f32],
    scales: &[f32],
    x: &[f32],
    cols: usize,
    units: usize,
    sums: &mut [f32],
) {
    let (tokens, steps, lanes) = (x.len() / cols, cols / LANES, S::TILE_LANES);
    assert!(panel.len() >= cols * S::TILE_ROWS && 4 * scales.len() >= cols * S::TILE_ROWS);
    assert!(sums.len() >= sums_of_tile::<S>(tokens));
    for slice in 0..LANES / lanes {
        let pairs = (units + usize::from(slice < LANES / 2 / lanes)) / 2;
        for (t, n) in groups(tokens, S::TILE_TOKENS) {
            let w = slice * steps * S::TILE_ROWS * lanes;
            let xs = slice * steps * tokens * lanes + t * steps * lanes;
            let acc = t * S::TILE_ROWS * LANES + slice * S::TILE_ROWS * n * lanes;
            // SAFETY: the tile reads four times `pairs` times the lanes of its rows and of its tokens,
            // and a quarter as many scales, and writes rows times tokens of them. All are in bounds, as
            // asserted above.
            unsafe {
                let operands = Operands { w: panel.as_ptr().add(w), x: x.as_ptr().add(xs) };
                let scales = scales.as_ptr().add(w / 4);
                let acc = sums.as_mut_ptr().add(acc);
                match n {
                    1 => s.compiled(Tile::<1> { pairs, operands, scales, acc }),
                    2 => s.compiled(Tile::<2> { pairs, operands, scales, acc }),
                    3 => s.compiled(Tile::<3> { pairs, operands, scales, acc }),
                    _ => s.compiled(Tile::<4> { pairs, operands, scales, acc }),
                }
            }
        }
    }
}

/// Adds to `acc[m][n]`, for each of `pairs` units, the scaled sum of its four steps, lane by lane.
///
/// Made only where `w` holds `4 × pairs × M`, `x` `4 × pairs × N`, `scales` `pairs × M` and `acc` `M × N`
/// registers.
struct Tile<const N: usize> {
    pairs: usize,
    operands: Operands,
    scales: *const f32,
    acc: *mut f32,
}

impl<S: Simd, const N: usize> Job<S> for Tile<N> {
    #[inline(always)]
    fn run(self, s: S) {
        match S::TILE_ROWS {
            4 => tile::<S, 4, N>(s, self),
            6 => tile::<S, 6, N>(s, self),
            _ => unreachable!("tiles of four or six rows"),
        }
    }
}

#[inline(always)]
fn tile<S: Simd, const M: usize, const N: usize>(s: S, tile: Tile<N>) {
    let Tile { pairs, operands: Operands { mut w, mut x }, mut scales, acc } = tile;
    let lanes = S::TILE_LANES;
    // SAFETY: tiles are only made of operands that long.
    unsafe {
        for _ in 0..pairs {
            let mut sums = [[s.zero_t(); N]; M];
            for k in 0..4 {
                let mut xs = [s.zero_t(); N];
                for n in 0..N {
                    xs[n] = s.load_t(x.add(n * lanes));
                }
                for m in 0..M {
                    let w = s.load_t(w.add(m * lanes));
                    for n in 0..N {
                        sums[m][n] = match k {
                            0 => s.mul_t(w, xs[n]),
                            _ => s.fma_t(w, xs[n], sums[m][n]),
                        };
                    }
                }
                w = w.add(M * lanes);
                x = x.add(N * lanes);
            }
            for m in 0..M {
                let scale = s.load_t(scales.add(m * lanes));
                for n in 0..N {
                    let acc = acc.add((m * N + n) * lanes);
                    s.store_t(acc, s.fma_t(scale, sums[m][n], s.load_t(acc)));
                }
            }
            scales = scales.add(M * lanes);
        }
    }
}

/// Columns of some rows to be decoded for tiles.
struct Decode<'a, 'm> {
    m: &'a Matrix<'m>,
    rows: Range<usize>,
    /// Whole pairs of units, the first of which is the first of a span.
    cols: Range<usize>,
    panel: &'a mut [f32],
    scales: &'a mut [f32],
    added: &'a mut [f32],
}

impl<S: Simd> ForCoded<S> for Decode<'_, '_> {
    #[inline(always)]
    fn run<C: Coded<S>>(self, s: S) {
        s.compiled(DecodeOf::<C>(self, PhantomData));
    }
}

/// The same with a decoder.
struct DecodeOf<'a, 'm, C>(Decode<'a, 'm>, PhantomData<C>);

impl<S: Simd, C: Coded<S>> Job<S> for DecodeOf<'_, '_, C> {
    #[inline(always)]
    fn run(self, s: S) {
        let Decode { m, rows, cols, panel, scales: to_scales, added: to_added } = self.0;
        let (codes, lanes) = (C::new(s, m), S::TILE_LANES);
        let slice = cols.len() / LANES * S::TILE_ROWS * lanes;
        let half = LANES / 2 / lanes * slice;
        assert!(panel.len() >= cols.len() * S::TILE_ROWS);
        assert!(4 * to_scales.len() >= cols.len() * S::TILE_ROWS);
        let units = m.cols().div_ceil(UNIT_COLS).min(cols.end / UNIT_COLS);
        let runs = C::CODING.runs();
        for (r, row) in rows.enumerate() {
            let at = Cursor::new(C::ENCODING, m, row);
            let mut to_added = to_added[r * ADDED..][..ADDED].chunks_exact_mut(runs);
            for span in cols.start / SPAN_COLS..units.div_ceil(4) {
                // SAFETY: the cursor belongs to this matrix, which has a column of this span.
                let shared = unsafe { codes.shared(s, &at, span) };
                // SAFETY: likewise.
                let scales = unsafe { OfSpan::<S, C>::read(s, codes, &shared, &at, m, span) };
                let to_added = to_added.next().expect("as many runs as columns have");
                for (i, to) in to_added.chunks_exact_mut(8).enumerate() {
                    // SAFETY: eight numbers each, of which all runs have one.
                    unsafe { s.store_h(s.load_h(scales.added().add(8 * i)), to.as_mut_ptr()) };
                }
                for unit in 4 * span..units.min(4 * span + 4) {
                    let w = match UNIT_COLS * (unit + 1) <= m.cols() {
                        // SAFETY: the matrix has all columns of the unit.
                        true => unsafe { codes.unit(s, &shared, &at, unit) },
                        false => last_unit::<S, C>(s, m, row, unit),
                    };
                    let pair = (unit - cols.start / UNIT_COLS) / 2;
                    let to = unit % 2 * half + 4 * pair * S::TILE_ROWS * lanes + r * lanes;
                    // SAFETY: slices and steps are in bounds, as asserted above.
                    unsafe {
                        for k in 0..4 {
                            let to = panel.as_mut_ptr().add(to + k * S::TILE_ROWS * lanes);
                            s.store_slices(w[k], to, slice);
                        }
                        let to = unit % 2 * half / 4 + pair * S::TILE_ROWS * lanes + r * lanes;
                        let to = to_scales.as_mut_ptr().add(to);
                        s.store_slices(scales.scale(s, unit % 4), to, slice / 4);
                    }
                }
            }
        }
    }
}
