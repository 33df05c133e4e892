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

use super::coded::{self, SMALLEST, SPAN_COLS, fold};
use super::{E2M1_CODES, Matrix, e8m0_to_f32, gguf, half_e8m0_to_f32, nibble, quant};
use crate::{Encoding, GgufBlocks, Published};

/// Columns of activations that share a scale.
pub(crate) const ROUND_COLS: usize = 32;

/// Blocks of a span, each of which has a sum of its own.
pub(crate) const SPAN_BLOCKS: usize = SPAN_COLS / ROUND_COLS;

/// How codes are multiplied with rounded activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeForm {
    /// What codes exceed the numbers by.
    pub(crate) less: u8,
    /// The largest code.
    pub(crate) most: u8,
    /// True if codes are signed bytes.
    pub(crate) signed: bool,
    /// True if runs have minima.
    pub(crate) minima: bool,
    /// True if whole numbers scale runs of 16 columns.
    pub(crate) runs: bool,
}

impl CodeForm {
    /// That of an encoding, if its products are computed so.
    pub(crate) const fn of(encoding: Encoding) -> Option<CodeForm> {
        let plain = CodeForm { less: 0, most: 15, signed: false, minima: false, runs: false };
        Some(match encoding {
            Encoding::Q4 => CodeForm { less: 8, ..plain },
            Encoding::Q8 => CodeForm { signed: true, most: 128, ..plain },
            Encoding::Mxfp4 => CodeForm { less: 12, most: 24, ..plain },
            Encoding::Published(layout) => match layout {
                Published::Int4 | Published::Int4By128 => CodeForm { less: 8, ..plain },
                Published::Int4Zeros32 | Published::Int4Zeros64 | Published::Int4Zeros128 => {
                    CodeForm { minima: true, ..plain }
                }
                _ => return None,
            },
            Encoding::Gguf(format) => match format {
                GgufBlocks::Q4_0 => CodeForm { less: 8, ..plain },
                GgufBlocks::Q5_0 => CodeForm { less: 16, most: 31, ..plain },
                GgufBlocks::Q4_1 | GgufBlocks::Q4K => CodeForm { minima: true, ..plain },
                GgufBlocks::Q5_1 | GgufBlocks::Q5K => CodeForm { minima: true, most: 31, ..plain },
                GgufBlocks::Q8_0 => CodeForm { signed: true, most: 128, ..plain },
                GgufBlocks::Q2K => CodeForm { minima: true, runs: true, most: 3, ..plain },
                GgufBlocks::Q3K => CodeForm { less: 4, runs: true, most: 7, ..plain },
                GgufBlocks::Q6K => CodeForm { less: 32, runs: true, most: 63, ..plain },
                GgufBlocks::Iq4Nl | GgufBlocks::Iq4Xs => {
                    CodeForm { signed: true, most: 127, ..plain }
                }
                GgufBlocks::Mxfp4 => CodeForm { less: 12, most: 24, ..plain },
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// The code of a weight, signed or not.
pub(crate) fn code(m: &Matrix, row: usize, col: usize) -> u8 {
    match m.encoding() {
        Encoding::Q8 => m.row_bytes(0, row)[col],
        Encoding::Mxfp4 => E2M1_CODES[usize::from(nibble(m.row_bytes(0, row), col))],
        Encoding::Gguf(format @ (GgufBlocks::Q8_0 | GgufBlocks::Mxfp4)) => {
            let b = gguf::block_of(format, m, row, col);
            let i = col % 32;
            match format {
                GgufBlocks::Q8_0 => b[2 + i],
                _ => E2M1_CODES[usize::from(b[1 + i % 16] >> (4 * (i / 16)) & 15)],
            }
        }
        Encoding::Gguf(GgufBlocks::Iq4Nl | GgufBlocks::Iq4Xs) => {
            coded::code(m, row, col).wrapping_sub(127)
        }
        _ => coded::code(m, row, col),
    }
}

/// What scales the blocks of a span, of which those beyond the matrix have zeros.
#[derive(Clone, Copy)]
pub(crate) struct SpanFactors {
    pub(crate) scales: [f32; SPAN_BLOCKS],
    pub(crate) minima: [f32; SPAN_BLOCKS],
    /// Whole numbers that scale runs of 16 columns.
    pub(crate) runs: [i8; 16],
    /// Those of their minima.
    pub(crate) minima_of_runs: [i8; 16],
}

impl SpanFactors {
    /// Those of a span.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(form: CodeForm, m: &Matrix, row: usize, span: usize) -> SpanFactors {
        let mut read = SpanFactors {
            scales: [0.0; SPAN_BLOCKS],
            minima: [0.0; SPAN_BLOCKS],
            runs: [0; 16],
            minima_of_runs: [0; 16],
        };
        for block in 0..SPAN_BLOCKS {
            let col = SPAN_COLS * span + ROUND_COLS * block;
            if col < m.cols() {
                read.scales[block] = scale(m, row, col);
                if form.minima {
                    read.minima[block] = minimum(m, row, col);
                }
            }
        }
        for run in 0..16 {
            let col = SPAN_COLS * span + 16 * run;
            if form.runs && col < m.cols() {
                let b = gguf::block_of(format_of(m), m, row, col);
                (read.runs[run], read.minima_of_runs[run]) = gguf::run(format_of(m), b, run);
            }
        }
        read
    }
}

fn format_of(m: &Matrix) -> GgufBlocks {
    match m.encoding() {
        Encoding::Gguf(format) => format,
        _ => unreachable!("only formats of GGUF files have runs"),
    }
}

/// The scale of the block that begins with column `col`, beside those of its runs.
fn scale(m: &Matrix, row: usize, col: usize) -> f32 {
    match m.encoding() {
        Encoding::Q8 => quant::bf16_at(m.row_bytes(1, row), col / 64),
        Encoding::Mxfp4 => e8m0_to_f32(m.row_bytes(1, row)[col / 32]) * 0.5,
        Encoding::Gguf(format) => {
            let b = gguf::block_of(format, m, row, col);
            match format {
                GgufBlocks::Q8_0 => gguf::half(b, 0),
                GgufBlocks::Mxfp4 => half_e8m0_to_f32(b[0]),
                GgufBlocks::Q2K => gguf::half(b, 80),
                GgufBlocks::Q3K => gguf::half(b, 108),
                GgufBlocks::Q6K => gguf::half(b, 208),
                _ => coded::scale(m, row, col),
            }
        }
        _ => coded::scale(m, row, col),
    }
}

/// The minimum of the block that begins with column `col`, beside those of its runs.
fn minimum(m: &Matrix, row: usize, col: usize) -> f32 {
    match m.encoding() {
        Encoding::Gguf(GgufBlocks::Q2K) => {
            -gguf::half(gguf::block_of(GgufBlocks::Q2K, m, row, col), 82)
        }
        _ => coded::minimum(m, row, col),
    }
}

/// Rounds a block of activations, and returns its scale.
pub(crate) fn rounded(x: &[f32; ROUND_COLS], to: &mut [i8; ROUND_COLS]) -> f32 {
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
                let code = code(m, row, col);
                let q = i32::from(q);
                let run = col % SPAN_COLS / 16;
                let code = if form.signed { i32::from(code as i8) } else { i32::from(code) };
                let of_run = |runs: &[i8; 16]| if form.runs { i32::from(runs[run]) } else { 1 };
                sum += (code - i32::from(form.less)) * q * of_run(&runs);
                of_minimum += q * of_run(&minima_of_runs);
            }
            let lane = &mut acc[block];
            *lane = (sum as f32).mul_add(scales[block] * d, *lane);
            if form.minima {
                *lane = minima[block].mul_add(of_minimum as f32 * d, *lane);
            }
        }
    }
    fold(acc)
}
