//! Products with one token.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::super::input;
use super::super::one::AHEAD;
use super::super::output::OutputColumns;
use super::{OfSpan, last_unit};
use crate::Matrix;
use crate::encodings::{Coded, EncodingSimd, ForCoded, RowCursor, for_coded};
use crate::scalar::{SPAN_COLS, UNIT_COLS, fma};
use crate::simd::{Simd, SimdJob, load_block};

/// Rows that are computed together.
const ROWS: usize = 4;

/// Multiplies all rows by `x`.
#[inline(always)]
pub(in crate::matmul) fn one<S: EncodingSimd>(
    s: S,
    m: &Matrix,
    x: input::CodedInput,
    y: &mut OutputColumns,
) {
    for_coded(s, m.encoding(), CodedOne { m, x, y });
}

struct CodedOne<'a, 'm, 'y> {
    m: &'a Matrix<'m>,
    x: input::CodedInput<'a>,
    y: &'a mut OutputColumns<'y>,
}

impl<S: Simd> ForCoded<S> for CodedOne<'_, '_, '_> {
    #[inline(always)]
    fn run<C: Coded<S>>(self, s: S) {
        s.compiled(OneOf::<C>(self, PhantomData));
    }
}

/// The same with a decoder.
struct OneOf<'a, 'm, 'y, C>(CodedOne<'a, 'm, 'y>, PhantomData<C>);

impl<S: Simd, C: Coded<S>> SimdJob<S> for OneOf<'_, '_, '_, C> {
    #[inline(always)]
    fn run(self, s: S) {
        let CodedOne { m, x, y } = self.0;
        let codes = C::new(s, m);
        let rows = m.row_count();
        let mut r = 0;
        while S::IN_REGISTERS && r + ROWS <= rows {
            let sums = dots::<S, C, ROWS>(s, codes, m, r, x);
            for i in 0..ROWS {
                y.set(0, r + i, sums[i]);
            }
            r += ROWS;
        }
        for r in r..rows {
            y.set(0, r, dots::<S, C, 1>(s, codes, m, r, x)[0]);
        }
    }
}

/// The sums of a row.
#[derive(Clone, Copy)]
struct CodedSums<S: Simd> {
    low: S::F,
    high: S::F,
    minima: S::H,
}

/// The products of `R` rows from `row` on.
#[inline(always)]
fn dots<S: Simd, C: Coded<S>, const R: usize>(
    s: S,
    codes: C,
    m: &Matrix,
    row: usize,
    x: input::CodedInput,
) -> [f32; R] {
    let mut at = [RowCursor::new(C::ENCODING, m, row); R];
    for i in 1..R {
        at[i] = RowCursor::new(C::ENCODING, m, row + i);
    }
    // The next rows, or the rest of this one. Beyond the end of the matrix the request is merely wasted.
    let next = if R == 1 { 0 } else { R * m.row_bytes(0, row).len() };
    let ahead = at[0].codes().wrapping_add(next.max(AHEAD));
    let mut all = [CodedSums { low: s.splat(0.0), high: s.splat(0.0), minima: s.zero_h() }; R];
    // The code for units that may be the last does for all where programs are to be small.
    let whole = if S::IN_REGISTERS { m.cols() / SPAN_COLS } else { 0 };
    let of_span = C::CODING.runs() / 8;
    let (sums, _) = x.sums(0, C::CODING.run);
    let (spans, rest) = x.columns().split_at(SPAN_COLS * whole);
    let (of_runs, of_rest) = sums.split_at(of_span * whole);
    let spans = spans.as_chunks::<SPAN_COLS>().0.iter().zip(of_runs.chunks_exact(of_span));
    // What units of a span share is decoded a span ahead, as one after another takes more instructions
    // than a CPU looks at.
    let mut next = [MaybeUninit::<(C::Shared, OfSpan<S, C>)>::uninit(); R];
    for i in 0..R {
        if whole > 0 {
            // SAFETY: the cursor belongs to this matrix, which has a whole span.
            next[i].write(unsafe { of_whole_span(s, codes, &at[i], 0) });
        }
    }
    for (span, (x, of_runs)) in spans.enumerate() {
        for line in 0..(R * C::BYTES).div_ceil(64) {
            s.prefetch(ahead.wrapping_add(span * R * C::BYTES + 64 * line));
        }
        for i in 0..R {
            let mut sums = all[i];
            // Opaque to the compiler, which would keep it in registers, from which broadcasts take a unit
            // of the CPU that decoders need.
            let next = &mut std::hint::black_box(&mut next)[i];
            // SAFETY: the cursor belongs to this matrix, which has all columns of this span, for which
            // `next` was written.
            unsafe {
                let (shared, scales) = next.assume_init_ref();
                sums.minima = scales.add(s, of_runs, sums.minima);
                macro_rules! unit {
                    ($unit:literal, $acc:ident) => {
                        let w = codes.unit(s, shared, &at[i], 4 * span + $unit);
                        sums.$acc = add(s, w, x, $unit, scales.scale(s, $unit), sums.$acc);
                    };
                }
                unit!(0, low);
                unit!(1, high);
                unit!(2, low);
                unit!(3, high);
                if span + 1 < whole {
                    next.write(of_whole_span(s, codes, &at[i], span + 1));
                }
            }
            all[i] = sums;
        }
    }
    let rest = rest.chunks(SPAN_COLS).zip(of_rest.chunks_exact(of_span));
    for (span, (x, of_runs)) in (whole..m.cols().div_ceil(SPAN_COLS)).zip(rest) {
        for i in 0..R {
            spare_span::<S, C>(s, codes, &at[i], m, span, (x, of_runs), &mut all[i]);
        }
    }
    let mut products = [0.0; R];
    for i in 0..R {
        let CodedSums { low, high, minima } = all[i];
        products[i] = fma(C::CODING.factor(), s.fold_h(minima), s.reduce(low, high));
    }
    products
}

/// What the units of a span share, and its scales.
///
/// # Safety
///
/// As for [`Coded::scales`].
#[inline(always)]
unsafe fn of_whole_span<S: Simd, C: Coded<S>>(
    s: S,
    codes: C,
    at: &RowCursor,
    span: usize,
) -> (C::Shared, OfSpan<S, C>) {
    // SAFETY: by this function's contract.
    unsafe {
        let shared = codes.shared(s, at, span);
        (shared, OfSpan::whole(s, codes, &shared, at, span))
    }
}

/// Adds the products of a span that need not be whole.
#[inline(always)]
fn spare_span<S: Simd, C: Coded<S>>(
    s: S,
    codes: C,
    at: &RowCursor,
    m: &Matrix,
    span: usize,
    (x, of_runs): (&[f32], &[[f32; 8]]),
    sums: &mut CodedSums<S>,
) {
    // SAFETY: the cursor belongs to this matrix, which has a column of the span.
    let shared = unsafe { codes.shared(s, at, span) };
    // SAFETY: likewise.
    let scales = unsafe { OfSpan::<S, C>::read(s, codes, &shared, at, m, span) };
    sums.minima = scales.add(s, of_runs, sums.minima);
    for unit in 0..(m.cols() - SPAN_COLS * span).div_ceil(UNIT_COLS).min(4) {
        let of_row = 4 * span + unit;
        let w = match UNIT_COLS * (of_row + 1) <= m.cols() {
            // SAFETY: likewise, with all columns of the unit.
            true => unsafe { codes.unit(s, &shared, at, of_row) },
            false => last_unit::<S, C>(s, m, at.row(), of_row),
        };
        let acc = if unit % 2 == 0 { &mut sums.low } else { &mut sums.high };
        *acc = add(s, w, x, unit, scales.scale(s, unit), *acc);
    }
}

/// Adds the products of a unit of these columns.
#[inline(always)]
fn add<S: Simd>(s: S, w: [S::F; 4], x: &[f32], unit: usize, scale: S::F, acc: S::F) -> S::F {
    let x = x[UNIT_COLS * unit..].first_chunk().expect("the columns of a unit");
    let x = load_block(s, x);
    let p = s.mul(w[0], x[0]);
    let p = s.fma(w[1], x[1], p);
    let p = s.fma(w[2], x[2], p);
    let p = s.fma(w[3], x[3], p);
    s.fma(scale, p, acc)
}
