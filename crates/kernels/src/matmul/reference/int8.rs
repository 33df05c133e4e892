//! Sums with activations that are rounded to eight bits: inexact, and the same in every tier.
//!
//! Weights and activations are whole numbers under scales. In each block of 32 columns their products
//! are summed exactly, and only these sums are rounded:
//!
//! ```text
//! d = max |x| / 127, and q = round(x · (127 / max |x|)), to even where two are as near
//! S = Σ (code - less) · q · run, the sum of 32 columns, exact
//! acc[block mod 8] = fma(f32(S), scale · d, acc[block mod 8])
//! acc[block mod 8] = fma(minimum, f32(Σ q · run) · d, ·), in formats with minima
//! ```
//!
//! `run` is the whole number that scales a run of 16 columns in some formats, or its minimum; in the
//! others it is 1. The result is the fold of the eight sums. The last span of eight blocks is filled
//! with blocks of zeros, whose scales are zero.
//!
//! A block whose activations are all below 2⁻¹⁰⁰ counts as zeros. One with an infinity or a NaN has zeros
//! and a scale that is NaN, so that every product is NaN.
//!
//! No sum exceeds 24 bits, so its conversion is exact.

use crate::Matrix;
use crate::encodings::{SpanFactors, int8_code};
use crate::scalar::{CodeForm, ROUND_COLS, SMALLEST, SPAN_BLOCKS, SPAN_COLS, fma, fold};

/// Rounds a block of activations, and returns its scale.
fn rounded(x: &[f32; ROUND_COLS], to: &mut [i8; ROUND_COLS]) -> f32 {
    *to = [0; ROUND_COLS];
    let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    if x.iter().any(|x| !x.is_finite()) {
        return f32::NAN;
    }
    if most < SMALLEST {
        return 0.0;
    }
    let factor = 127.0 / most;
    for (to, x) in to.iter_mut().zip(x) {
        *to = (x * factor).round_ties_even() as i8;
    }
    most / 127.0
}

/// The product of a row and the activations of its columns.
pub(super) fn dot(form: CodeForm, m: &Matrix, row: usize, x: &[f32]) -> f32 {
    let mut acc = [0f32; SPAN_BLOCKS];
    for span in 0..x.len().div_ceil(SPAN_COLS) {
        let SpanFactors { scales, minima, runs, minima_of_runs } =
            SpanFactors::read(form, m, row, span);
        for block in 0..SPAN_BLOCKS {
            let first = SPAN_COLS * span + ROUND_COLS * block;
            let mut columns = [0.0; ROUND_COLS];
            for (column, x) in columns.iter_mut().zip(x.iter().skip(first)) {
                *column = *x;
            }
            let mut q = [0; ROUND_COLS];
            let d = rounded(&columns, &mut q);
            let mut sum = 0;
            let mut of_minimum = 0;
            for (col, q) in (first..m.cols()).zip(q) {
                let code = int8_code(m, row, col);
                let q = i32::from(q);
                let run = col % SPAN_COLS / 16;
                let code = if form.signed { i32::from(code as i8) } else { i32::from(code) };
                let of_run = |runs: &[i8; 16]| if form.runs { i32::from(runs[run]) } else { 1 };
                sum += (code - i32::from(form.less)) * q * of_run(&runs);
                of_minimum += q * of_run(&minima_of_runs);
            }
            let lane = &mut acc[block];
            *lane = fma(sum as f32, scales[block] * d, *lane);
            if form.minima {
                *lane = fma(minima[block], of_minimum as f32 * d, *lane);
            }
        }
    }
    fold(acc)
}
