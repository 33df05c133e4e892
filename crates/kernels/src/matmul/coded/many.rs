//! Products with many tokens: the codes of a unit are decoded to registers, and multiplied there with
//! the tokens of a group, whose activations of a span stay in the first-level cache for some rows.

use std::marker::PhantomData;

use super::super::decode::Cursor;
use super::super::input::{Coded as Activations, TOKENS, groups};
use super::super::output::Output;
use super::{Coded, ForCoded, OfSpan, for_coded, last_unit};
use crate::Matrix;
use crate::buffer::Buffer;
use crate::reference::{LANES, MINIMA_LANES, SPAN_COLS, UNIT_COLS};
use crate::simd::{Job, Simd};

/// Rows for which the activations of a span are kept.
const ROWS: usize = 16;

/// Length of the sums of a group of tokens: those of products, and behind them those of minima.
pub(in crate::matmul) const SUMS: usize = ROWS * TOKENS * (LANES + MINIMA_LANES);

/// Multiplies all rows by `x`.
#[inline(always)]
pub(in crate::matmul) fn many<S: Simd>(
    s: S,
    m: &Matrix,
    x: Activations,
    y: &mut Output,
    sums: &mut Buffer,
) {
    for_coded(s, m.encoding(), Many { m, x, y, sums: sums.grown(SUMS) });
}

struct Many<'a, 'm, 'y> {
    m: &'a Matrix<'m>,
    x: Activations<'a>,
    y: &'a mut Output<'y>,
    sums: &'a mut [f32],
}

impl<S: Simd> ForCoded<S> for Many<'_, '_, '_> {
    #[inline(always)]
    fn run<C: Coded<S>>(self, s: S) {
        s.compiled(ManyOf::<C>(self, PhantomData));
    }
}

/// The same with a decoder.
struct ManyOf<'a, 'm, 'y, C>(Many<'a, 'm, 'y>, PhantomData<C>);

impl<S: Simd, C: Coded<S>> Job<S> for ManyOf<'_, '_, '_, C> {
    #[inline(always)]
    fn run(self, s: S) {
        let Many { m, x, y, sums } = self.0;
        let codes = C::new(s, m);
        let (sums, minima) = sums.split_at_mut(ROWS * TOKENS * LANES);
        let minima = minima.as_chunks_mut::<MINIMA_LANES>().0;
        for (group, tokens) in groups(x.tokens, TOKENS) {
            for (first, rows) in groups(m.row_count(), ROWS) {
                let mut at = [Cursor::new(C::ENCODING, m, first); ROWS];
                for r in 1..rows {
                    at[r] = Cursor::new(C::ENCODING, m, first + r);
                }
                sums[..rows * tokens * LANES].fill(0.0);
                minima[..rows * tokens].fill([0.0; MINIMA_LANES]);
                for span in 0..m.cols().div_ceil(SPAN_COLS) {
                    for r in 0..rows {
                        let of_row = r * tokens..(r + 1) * tokens;
                        let minima = &mut minima[of_row.clone()];
                        let sums = &mut sums[of_row.start * LANES..of_row.end * LANES];
                        add_span(s, codes, m, (at[r], span), (x, group), sums, minima);
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
                        y.set(group + t, first + r, C::CODING.factor().mul_add(minima, sum));
                    }
                }
            }
        }
    }
}

/// Adds the products of a span of a row and the tokens of a group, given the first of these.
#[inline(always)]
fn add_span<S: Simd, C: Coded<S>>(
    s: S,
    codes: C,
    m: &Matrix,
    (at, span): (Cursor, usize),
    (x, group): (Activations, usize),
    sums: &mut [f32],
    minima: &mut [[f32; MINIMA_LANES]],
) {
    let tokens = minima.len();
    assert_eq!(sums.len(), tokens * LANES);
    // Other rows come before the next span of this one. Beyond the matrix the request is merely wasted.
    for line in 0..C::BYTES.div_ceil(64) {
        s.prefetch(at.codes().wrapping_add((span + 1) * C::BYTES + 64 * line));
    }
    // SAFETY: the cursor belongs to this matrix, which has a column of the span.
    let shared = unsafe { codes.shared(s, &at, span) };
    // SAFETY: likewise.
    let scales = unsafe { OfSpan::<S, C>::read(s, codes, &shared, &at, m, span) };
    let of_span = C::CODING.runs() / 8;
    for (t, minima) in minima.iter_mut().enumerate() {
        let sums = &x.sums(group + t, C::CODING.run)[of_span * span..][..of_span];
        // SAFETY: eight numbers.
        unsafe {
            let sum = scales.add(s, sums, s.load_h(minima.as_ptr()));
            s.store_h(sum, minima.as_mut_ptr());
        }
    }
    let units = (m.cols() - SPAN_COLS * span).div_ceil(UNIT_COLS).min(4);
    let x = &x.columns()[group * x.padded..][..tokens * x.padded];
    for unit in 0..units {
        let of_row = 4 * span + unit;
        let w = match UNIT_COLS * (of_row + 1) <= m.cols() {
            // SAFETY: likewise, with all columns of the unit.
            true => unsafe { codes.unit(s, &shared, &at, of_row) },
            false => last_unit::<S, C>(s, m, at.row(), of_row),
        };
        let scale = scales.scale(s, unit);
        let x = x[of_row * tokens * UNIT_COLS..][..tokens * UNIT_COLS].as_ptr();
        let to = sums[unit % 2 * LANES / 2..].as_mut_ptr();
        for t in 0..tokens {
            // SAFETY: the columns of the unit and the sums of each token, 16 of 32 from `to` on.
            unsafe {
                let (x, to) = (x.add(UNIT_COLS * t), to.add(LANES * t));
                let p = s.mul(w[0], s.load(x));
                let p = s.fma(w[1], s.load(x.add(16)), p);
                let p = s.fma(w[2], s.load(x.add(32)), p);
                let p = s.fma(w[3], s.load(x.add(48)), p);
                s.store_slices(s.fma(scale, p, s.load(to)), to, S::TILE_LANES);
            }
        }
    }
}
