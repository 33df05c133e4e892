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

use super::{E2M1, Encoding, Matrix, e4m3_to_f32, gguf, published, quant};
use crate::{GgufBlocks, Published};

/// Columns of a unit.
pub(crate) const UNIT_COLS: usize = 64;

/// Columns of a span.
pub(crate) const SPAN_COLS: usize = 256;

/// Partial sums of minima.
pub(crate) const MINIMA_LANES: usize = 8;

/// How the weights of an encoding are summed as codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coding {
    pub(crate) fours: Fours,
    /// Columns that share a scale: 16 or 32.
    pub(crate) run: usize,
    /// What codes exceed the numbers by, which scales are multiplied with. None if runs have minima.
    pub(crate) less: Option<u8>,
}

/// The columns of a four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fours {
    /// Neighbours: `4i` to `4i + 3` of a unit.
    Neighbours,
    /// `i`, `16 + i`, `32 + i` and `48 + i` of a unit.
    Apart,
}

impl Fours {
    /// The column of a unit that is number `k` of its four `i`.
    pub(crate) const fn col(self, i: usize, k: usize) -> usize {
        match self {
            Fours::Neighbours => 4 * i + k,
            Fours::Apart => 16 * k + i,
        }
    }

    /// Bits from the code of one column of a four to that of the next, which kernels find in one number
    /// of 32 bits and convert where they are. Activations are divided by the power of two.
    pub(crate) const fn bits(self) -> usize {
        match self {
            Fours::Neighbours => 8,
            Fours::Apart => 4,
        }
    }
}

impl Coding {
    /// Runs of a span.
    pub(crate) const fn runs(self) -> usize {
        SPAN_COLS / self.run
    }

    /// What the folded sum of minima is multiplied by.
    pub(crate) const fn factor(self) -> f32 {
        match self.less {
            Some(less) => -(less as f32),
            None => 1.0,
        }
    }

    /// The coding of an encoding, if its weights are summed as codes.
    pub(crate) const fn of(encoding: Encoding) -> Option<Coding> {
        let (run, less) = match encoding {
            Encoding::Q4 => return Some(Coding { fours: Fours::Apart, run: 32, less: Some(8) }),
            Encoding::Published(layout) => match layout {
                Published::Int4 | Published::Int4By128 => (32, Some(8)),
                Published::Int4Zeros32 | Published::Int4Zeros64 | Published::Int4Zeros128 => {
                    (32, None)
                }
                Published::Nvfp4 | Published::Nvfp4Divided => (16, Some(12)),
                _ => return None,
            },
            Encoding::Gguf(format) => match format {
                GgufBlocks::Q4_0 => (32, Some(8)),
                GgufBlocks::Q5_0 => (32, Some(16)),
                GgufBlocks::Q4_1 | GgufBlocks::Q5_1 | GgufBlocks::Q4K | GgufBlocks::Q5K => {
                    (32, None)
                }
                GgufBlocks::Q2K => (16, None),
                GgufBlocks::Q3K => (16, Some(4)),
                GgufBlocks::Q6K => (16, Some(32)),
                GgufBlocks::Iq4Nl | GgufBlocks::Iq4Xs => (32, Some(127)),
                GgufBlocks::Iq1S => (32, Some(9)),
                GgufBlocks::Iq1M => (16, Some(9)),
                GgufBlocks::Iq2Xxs => (32, Some(43)),
                GgufBlocks::Iq2Xs | GgufBlocks::Iq2S => (16, Some(43)),
                GgufBlocks::Iq3Xxs => (32, Some(62)),
                GgufBlocks::Iq3S => (32, Some(15)),
                GgufBlocks::Q8_0 | GgufBlocks::Mxfp4 => return None,
            },
            _ => return None,
        };
        Some(Coding { fours: Fours::Neighbours, run, less })
    }
}

/// The code of a weight.
pub(crate) fn code(m: &Matrix, row: usize, col: usize) -> u8 {
    let nibble = |at: usize| super::nibble(m.row_bytes(0, row), at);
    match m.encoding() {
        Encoding::Gguf(format) => {
            gguf::code(format, gguf::block_of(format, m, row, col), col % format.cols())
        }
        Encoding::Q4 => quant::q4_nibble(m, row, col) ^ 8,
        Encoding::Published(Published::Nvfp4 | Published::Nvfp4Divided) => {
            E2M1_CODES[usize::from(nibble(col))]
        }
        _ => nibble(col),
    }
}

/// Twice the values of e2m1, and 12 more.
pub(crate) const E2M1_CODES: [u8; 16] = {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (2.0 * E2M1[i] + 12.0) as u8;
        i += 1;
    }
    codes
};

/// The scale of the run that column `col` is in.
pub(crate) fn scale(m: &Matrix, row: usize, col: usize) -> f32 {
    let scales = || m.scales(m.encoding(), row);
    match m.encoding() {
        Encoding::Gguf(format) => {
            gguf::scale(format, gguf::block_of(format, m, row, col), col % format.cols())
        }
        Encoding::Q4 => quant::bf16_at(m.row_bytes(1, row), col / 64),
        Encoding::Published(Published::Int4) => quant::bf16_at(scales(), col / 32),
        Encoding::Published(Published::Int4By128) => quant::bf16_at(scales(), col / 128),
        Encoding::Published(Published::Nvfp4) => {
            e4m3_to_f32(scales()[col / 16]) * (published::f32_at(m.part(2), 0) * 0.5)
        }
        Encoding::Published(Published::Nvfp4Divided) => {
            e4m3_to_f32(scales()[col / 16]) / published::f32_at(m.part(2), 0) * 0.5
        }
        Encoding::Published(layout) => published::group_scale(unit(layout, m, row, col)),
        _ => unreachable!("an encoding without codes"),
    }
}

/// The minimum of the run that column `col` is in.
pub(super) fn minimum(m: &Matrix, row: usize, col: usize) -> f32 {
    match m.encoding() {
        Encoding::Gguf(format) => {
            gguf::minimum(format, gguf::block_of(format, m, row, col), col % format.cols())
        }
        Encoding::Published(layout) => {
            let unit = unit(layout, m, row, col);
            -published::zero_point(unit) * published::group_scale(unit)
        }
        _ => unreachable!("an encoding without minima"),
    }
}

/// The scale and zero point of a column.
fn unit(layout: Published, m: &Matrix, row: usize, col: usize) -> u32 {
    let group = layout.zeros_group().expect("a layout with zero points") as usize;
    u32::from_le_bytes(m.row_bytes(1, row).as_chunks().0[col / group])
}

/// The weights of a block of at most 64 columns, each by itself.
pub(super) fn weights(coding: Coding, m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, col) in out.iter_mut().zip(UNIT_COLS * block..) {
        let code = f32::from(code(m, row, col));
        let scale = scale(m, row, col);
        *out = match coding.less {
            Some(less) => (code - f32::from(less)) * scale,
            None => code.mul_add(scale, minimum(m, row, col)),
        };
    }
}

/// The scales of the runs of a span, and what is added for each unit of its activations' sum.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct RunScales {
    pub(crate) scales: [f32; 16],
    pub(crate) added: [f32; 16],
}

impl RunScales {
    /// The scales of a span, which may be the last one of a row.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(coding: Coding, m: &Matrix, row: usize, span: usize) -> RunScales {
        let mut read = RunScales { scales: [0.0; 16], added: [0.0; 16] };
        for run in 0..coding.runs() {
            let col = SPAN_COLS * span + coding.run * run;
            if col < m.cols() {
                read.scales[run] = scale(m, row, col);
                read.added[run] = match coding.less {
                    Some(_) => read.scales[run],
                    None => minimum(m, row, col),
                };
            }
        }
        read
    }
}

/// The codes of a unit, of which the last columns may be beyond the matrix.
#[cold]
#[inline(never)]
pub(crate) fn unit_codes(m: &Matrix, row: usize, unit: usize) -> [u8; UNIT_COLS] {
    let mut codes = [0; UNIT_COLS];
    for (code_of, col) in codes.iter_mut().zip(UNIT_COLS * unit..m.cols()) {
        *code_of = code(m, row, col);
    }
    codes
}

/// Smaller activations count as zero, so that none is subnormal when it is divided by a power of two.
pub(crate) const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// An activation that counts.
#[inline(always)]
pub(crate) fn counted(x: f32) -> f32 {
    if x.abs() < SMALLEST { 0.0 } else { x }
}

/// The sum of the activations of 16 columns.
#[inline(always)]
pub(crate) fn sum_of_16(x: &[f32; 16]) -> f32 {
    let mut sums = [0.0; 8];
    for i in 0..8 {
        sums[i] = x[i] + x[i + 8];
    }
    fold(sums)
}

/// The fixed tree over eight lanes.
#[inline(always)]
pub(crate) fn fold(mut sums: [f32; MINIMA_LANES]) -> f32 {
    for half in [4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// The product of a row and the activations of its columns.
pub(super) fn dot(coding: Coding, m: &Matrix, row: usize, x: &[f32]) -> f32 {
    let mut acc = [0f32; super::LANES];
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
            *lane = added[run].mul_add(sum, *lane);
        }
        for unit in 0..there.len().div_ceil(UNIT_COLS).min(4) {
            let codes = unit_codes(m, row, 4 * span + unit);
            for i in 0..16 {
                let mut p = 0.0;
                for k in 0..4 {
                    let col = coding.fours.col(i, k);
                    let u = f32::from(codes[col]);
                    let x = columns[UNIT_COLS * unit + col];
                    p = if k == 0 { u * x } else { u.mul_add(x, p) };
                }
                let first = UNIT_COLS * unit + coding.fours.col(i, 0);
                let lane = &mut acc[16 * (unit % 2) + i];
                *lane = scales[first / coding.run].mul_add(p, *lane);
            }
        }
    }
    coding.factor().mul_add(fold(minima), super::reduce(acc))
}
