//! Sums of weights that are small whole numbers, their codes, under scales that runs of columns share.
//!
//! Codes are multiplied and summed first, in fours of columns, and the sums of fours are scaled:
//!
//! ```text
//! p = u0·x0, then fma(u1, x1, p), fma(u2, x2, p), fma(u3, x3, p)
//! acc[lane] = fma(scale, p, acc[lane])
//! ```
//!
//! A *unit* is 64 columns. It has 16 fours, which go to lanes 0 to 15, or to 16 to 31 where the
//! unit's number is odd. Codes are counted up from zero. What that adds to a weight, or the minimum
//! of its run, is taken off by the sum of the activations of the run: `m[run mod 8] = fma(a, X, m)`,
//! with `a` the scale or the minimum. The result is `fma(factor, fold(m), fold(acc))`.
//!
//! A *span* is 256 columns. The last one of a row is filled with columns of zero activations and runs
//! of zero scales; units without a column are left out.

use crate::Matrix;
use crate::encodings::{RunScales, unit_codes};
use crate::scalar::{
    Coding, LANES, MINIMA_LANES, SPAN_COLS, UNIT_COLS, counted, fma, fold, reduce, sum_of_16,
};

/// The product of a row and the activations of its columns.
pub(super) fn dot(coding: Coding, m: &Matrix, row: usize, x: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    let mut minima = [0f32; MINIMA_LANES];
    for span in 0..x.len().div_ceil(SPAN_COLS) {
        let mut columns = [0.0; SPAN_COLS];
        let there = &x[SPAN_COLS * span..];
        for (column, x) in columns.iter_mut().zip(there) {
            *column = counted(*x);
        }
        let RunScales { scales, added } = RunScales::read(coding, m, row, span);
        for (run, columns) in columns.chunks(coding.run).enumerate() {
            let sum: f32 = match columns.as_chunks().0 {
                [all] => sum_of_16(all),
                [first, second] => sum_of_16(first) + sum_of_16(second),
                _ => unreachable!("runs of 16 or 32"),
            };
            let lane = &mut minima[run % MINIMA_LANES];
            *lane = fma(added[run], sum, *lane);
        }
        for unit in 0..there.len().div_ceil(UNIT_COLS).min(4) {
            let codes = unit_codes(m, row, 4 * span + unit);
            for i in 0..16 {
                let mut p = 0.0;
                for k in 0..4 {
                    let col = coding.fours.col(i, k);
                    let u = f32::from(codes[col]);
                    let x = columns[UNIT_COLS * unit + col];
                    p = if k == 0 { u * x } else { fma(u, x, p) };
                }
                let first = UNIT_COLS * unit + coding.fours.col(i, 0);
                let lane = &mut acc[16 * (unit % 2) + i];
                *lane = fma(scales[first / coding.run], p, *lane);
            }
        }
    }
    fma(coding.factor(), fold(minima), reduce(acc))
}
