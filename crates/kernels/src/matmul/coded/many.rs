//! Products with many tokens: the codes of a unit of some rows are decoded to registers, and multiplied there
//! with the tokens of a group, whose activations of a span stay in the first-level cache for some rows.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::super::input::{CodedInput as Activations, TOKENS, groups};
use super::super::output::OutputColumns;
use super::{OfSpan, last_unit};
use crate::Matrix;
use crate::buffer::Buffer;
use crate::encodings::{Coded, EncodingSimd, ForCoded, RowCursor, for_coded};
use crate::scalar::{LANES, MINIMA_LANES, SPAN_COLS, UNIT_COLS, fma};
use crate::simd::{Simd, SimdJob};

/// Rows for which the activations of a span are kept. Their sums fill half of the first-level cache.
const ROWS: usize = 8;

/// Length of the sums of a group of tokens: those of products, and behind them those of minima.
pub(in crate::matmul) const SUMS: usize = ROWS * TOKENS * (LANES + MINIMA_LANES);

/// Multiplies all rows by `x`.
#[inline(always)]
pub(in crate::matmul) fn many<S: EncodingSimd>(
    s: S,
    m: &Matrix,
    x: Activations,
    y: &mut OutputColumns,
    sums: &mut Buffer,
) {
    for_coded(s, m.encoding(), CodedMany { m, x, y, sums: sums.grown(SUMS) });
}

struct CodedMany<'a, 'm, 'y> {
    m: &'a Matrix<'m>,
    x: Activations<'a>,
    y: &'a mut OutputColumns<'y>,
    sums: &'a mut [f32],
}

impl<S: Simd> ForCoded<S> for CodedMany<'_, '_, '_> {
    #[inline(always)]
    fn run<C: Coded<S>>(self, s: S) {
        s.compiled(ManyOf::<C>(self, PhantomData));
    }
}

/// The same with a decoder.
struct ManyOf<'a, 'm, 'y, C>(CodedMany<'a, 'm, 'y>, PhantomData<C>);

impl<S: Simd, C: Coded<S>> SimdJob<S> for ManyOf<'_, '_, '_, C> {
    #[inline(always)]
    fn run(self, s: S) {
        let CodedMany { m, x, y, sums } = self.0;
        let codes = C::new(s, m);
        let (sums, minima) = sums.split_at_mut(ROWS * TOKENS * LANES);
        let minima = minima.as_chunks_mut::<MINIMA_LANES>().0;
        for (group, tokens) in groups(x.tokens, TOKENS) {
            for (first, rows) in groups(m.row_count(), ROWS) {
                let mut at = [RowCursor::new(C::ENCODING, m, first); ROWS];
                for r in 1..rows {
                    at[r] = RowCursor::new(C::ENCODING, m, first + r);
                }
                sums[..rows * tokens * LANES].fill(0.0);
                minima[..rows * tokens].fill([0.0; MINIMA_LANES]);
                for span in 0..m.cols().div_ceil(SPAN_COLS) {
                    for r in (0..rows).step_by(together::<S>()) {
                        let minima = &mut minima[r * tokens..];
                        let sums = &mut sums[r * tokens * LANES..];
                        let of_span = (span, x, group, tokens);
                        if together::<S>() == 4 {
                            // The last row may come again, for sums that are not used.
                            let mut at_rows = [at[r]; 4];
                            for i in 1..4 {
                                at_rows[i] = at[(r + i).min(rows - 1)];
                            }
                            add_span(s, codes, m, &at_rows, of_span, sums, minima);
                        } else {
                            add_span(s, codes, m, &[at[r]], of_span, sums, minima);
                        }
                    }
                }
                for t in 0..tokens {
                    for r in 0..rows {
                        let at = r * tokens + t;
                        let sums = &sums[at * LANES..][..LANES];
                        // SAFETY: 32 numbers and eight.
                        let (sum, minima) = unsafe {
                            let sums = sums.as_ptr();
                            let sum = s.reduce(s.load(sums), s.load(sums.add(LANES / 2)));
                            (sum, s.fold_h(s.load_h(minima[at].as_ptr())))
                        };
                        y.set(group + t, first + r, fma(C::CODING.factor(), minima, sum));
                    }
                }
            }
        }
    }
}

/// Rows whose codes are in registers together, and multiplied with the same activations: AVX-512 has
/// enough for four. A multiple of it has sums.
const fn together<S: Simd>() -> usize {
    if S::TILE_LANES == 16 { 4 } else { 1 }
}

/// Adds the products of a span of some rows and the tokens of a group, given the first of these and their
/// number.
#[inline(always)]
fn add_span<S: Simd, C: Coded<S>, const R: usize>(
    s: S,
    codes: C,
    m: &Matrix,
    at: &[RowCursor; R],
    (span, x, group, tokens): (usize, Activations, usize, usize),
    sums: &mut [f32],
    minima: &mut [[f32; MINIMA_LANES]],
) {
    let sums = &mut sums[..R * tokens * LANES];
    let minima = &mut minima[..R * tokens];
    let mut of_rows = [const { MaybeUninit::<(C::Shared, OfSpan<S, C>)>::uninit() }; R];
    for r in 0..R {
        // Other rows come before the next span of this one. Beyond the matrix the request is merely wasted.
        for line in 0..C::BYTES.div_ceil(64) {
            s.prefetch(at[r].codes().wrapping_add((span + 1) * C::BYTES + 64 * line));
        }
        // SAFETY: the cursors belong to this matrix, which has a column of the span.
        unsafe {
            let shared = codes.shared(s, &at[r], span);
            let scales = OfSpan::<S, C>::read(s, codes, &shared, &at[r], m, span);
            of_rows[r].write((shared, scales));
        }
    }
    // SAFETY: all were written.
    let of_rows = of_rows.each_ref().map(|of_row| unsafe { of_row.assume_init_ref() });
    add_minima::<S, C, R>(s, &of_rows, (span, x, group, tokens), minima);
    let units = (m.cols() - SPAN_COLS * span).div_ceil(UNIT_COLS).min(4);
    let x = &x.columns()[group * x.padded..][..tokens * x.padded];
    for unit in 0..units {
        let of_row = 4 * span + unit;
        let mut w = [[s.splat(0.0); 4]; R];
        let mut scale = [s.splat(0.0); R];
        for r in 0..R {
            let (shared, scales) = of_rows[r];
            w[r] = match UNIT_COLS * (of_row + 1) <= m.cols() {
                // SAFETY: likewise, with all columns of the unit.
                true => unsafe { codes.unit(s, shared, &at[r], of_row) },
                false => last_unit::<S, C>(s, m, at[r].row(), of_row),
            };
            scale[r] = scales.scale(s, unit);
        }
        let x = x[of_row * tokens * UNIT_COLS..][..tokens * UNIT_COLS].as_ptr();
        let to = sums[unit % 2 * LANES / 2..].as_mut_ptr();
        for t in 0..tokens {
            // SAFETY: the columns of the unit and the sums of each token and row, 16 of 32 from `to` on.
            unsafe {
                let x = x.add(UNIT_COLS * t);
                let x = [s.load(x), s.load(x.add(16)), s.load(x.add(32)), s.load(x.add(48))];
                for r in 0..R {
                    let to = to.add(LANES * (r * tokens + t));
                    let p = s.mul(w[r][0], x[0]);
                    let p = s.fma(w[r][1], x[1], p);
                    let p = s.fma(w[r][2], x[2], p);
                    let p = s.fma(w[r][3], x[3], p);
                    s.store_slices(s.fma(scale[r], p, s.load(to)), to, S::TILE_LANES);
                }
            }
        }
    }
}

/// Adds what belongs to the sums of the activations of the runs of a span.
#[inline(always)]
fn add_minima<S: Simd, C: Coded<S>, const R: usize>(
    s: S,
    of_rows: &[&(C::Shared, OfSpan<S, C>); R],
    (span, x, group, tokens): (usize, Activations, usize, usize),
    minima: &mut [[f32; MINIMA_LANES]],
) {
    let of_span = C::CODING.runs() / 8;
    let (sums, of_token) = x.sums(group, C::CODING.run);
    for t in 0..tokens {
        let sums = &sums[of_token * t + of_span * span..][..of_span];
        for r in 0..R {
            let to = &mut minima[r * tokens + t];
            // SAFETY: eight numbers.
            unsafe {
                let sum = of_rows[r].1.add(s, sums, s.load_h(to.as_ptr()));
                s.store_h(sum, to.as_mut_ptr());
            }
        }
    }
}
