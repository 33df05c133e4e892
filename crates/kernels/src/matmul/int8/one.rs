//! Products with one token.

use std::marker::PhantomData;

use super::super::input::View;
use super::super::one::AHEAD;
use super::super::output::OutputColumns;
use super::{less, span_of};
use crate::Matrix;
use crate::encodings::{Eights, RowCursor, SpanScales};
use crate::scalar::{SPAN_BLOCKS, SPAN_COLS};
use crate::simd::int8::{Eight, Integers, Unit};
use crate::simd::{Codes, Simd, SimdJob};

/// Rows that are computed together.
const ROWS: usize = 2;

pub(super) struct Int8One<'a, 'm, 'y, C> {
    m: &'a Matrix<'m>,
    x: View<'a>,
    y: &'a mut OutputColumns<'y>,
    of: PhantomData<C>,
}

impl<'a, 'm, 'y, C> Int8One<'a, 'm, 'y, C> {
    pub(super) fn new(m: &'a Matrix<'m>, x: View<'a>, y: &'a mut OutputColumns<'y>) -> Self {
        Int8One { m, x, y, of: PhantomData }
    }
}

impl<N: Integers, C: Eights<N>> SimdJob<N> for Int8One<'_, '_, '_, C> {
    #[inline(always)]
    fn run(self, n: N) {
        let Int8One { m, x, y, .. } = self;
        let rows = m.row_count();
        let mut r = 0;
        while r + ROWS <= rows {
            let sums = dots::<N, C, ROWS>(n, m, r, x);
            for i in 0..ROWS {
                y.set(0, r + i, sums[i]);
            }
            r += ROWS;
        }
        for r in r..rows {
            y.set(0, r, dots::<N, C, 1>(n, m, r, x)[0]);
        }
    }
}

/// The products of `R` rows from `row` on.
#[inline(always)]
fn dots<N: Integers, C: Eights<N>, const R: usize>(
    n: N,
    m: &Matrix,
    row: usize,
    x: View,
) -> [f32; R] {
    let s = n.simd();
    let mut at = [RowCursor::new(C::ENCODING, m, row); R];
    for i in 1..R {
        at[i] = RowCursor::new(C::ENCODING, m, row + i);
    }
    // The next rows, or the rest of this one. Beyond the end of the matrix the request is merely wasted.
    let next = if R == 1 { 0 } else { R * m.row_bytes(0, row).len() };
    let ahead = at[0].codes().wrapping_add(next.max(AHEAD));
    let mut acc = [s.zero_h(); R];
    // Slices of all spans, so that there is one check for each.
    let spans = x.padded / SPAN_COLS;
    let q = &x.q(0)[..spans];
    let scales = &x.scales(0)[..spans];
    let totals = &x.totals(0)[..spans];
    let sums = &x.sums(0)[..spans];
    let of_runs = &x.of_runs(0)[..spans];
    for span in 0..spans {
        for line in 0..(R * C::BYTES).div_ceil(64) {
            s.prefetch(ahead.wrapping_add(span * R * C::BYTES + 64 * line));
        }
        let x = Columns {
            q: &q[span],
            scales: &scales[span],
            totals: &totals[span],
            sums: &sums[span],
            of_runs: &of_runs[span],
        };
        for i in 0..R {
            // SAFETY: the cursor belongs to this matrix.
            let (codes, scales) = unsafe { span_of::<N, C>(n, &at[i], m, span) };
            acc[i] = add::<N, C>(n, codes, scales, x, acc[i]);
        }
    }
    let mut products = [0.0; R];
    for i in 0..R {
        products[i] = s.fold_h(acc[i]);
    }
    products
}

/// The activations of a span.
#[derive(Clone, Copy)]
struct Columns<'a> {
    q: &'a [i8; SPAN_COLS],
    scales: &'a [f32; SPAN_BLOCKS],
    totals: &'a [f32; SPAN_BLOCKS],
    sums: &'a [i32; SPAN_BLOCKS],
    of_runs: &'a [[i16; 2]; SPAN_BLOCKS],
}

/// Adds the products of a span.
#[inline(always)]
fn add<N: Integers, C: Eights<N>>(
    n: N,
    codes: [Unit<N>; 4],
    of: SpanScales<N>,
    x: Columns,
    mut acc: Eight<N>,
) -> Eight<N> {
    let s = n.simd();
    let less = less::<N>(C::FORM);
    let runs = C::FORM.runs;
    // SAFETY: the activations of a span are 256 bytes, and there are eight or 16 of the others.
    unsafe {
        let of_runs = x.of_runs.as_ptr().cast();
        let mut sums = n.sums(C::FORM, codes, x.q.as_ptr(), of.runs);
        if less > 0 {
            let sums_of_x = match runs {
                true => n.of_runs(of.runs, of_runs),
                false => n.load_i(x.sums.as_ptr()),
            };
            sums = n.less(sums, less, sums_of_x);
        }
        let scales = s.load_h(x.scales.as_ptr());
        acc = s.fma_h(n.numbers(sums), n.mul_h(of.scales, scales), acc);
        if C::FORM.minima {
            let totals = match runs {
                true => n.mul_h(n.numbers(n.of_runs(of.minima_of_runs, of_runs)), scales),
                false => s.load_h(x.totals.as_ptr()),
            };
            acc = s.fma_h(of.minima, totals, acc);
        }
    }
    acc
}
