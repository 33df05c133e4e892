//! The block formats of GGUF files in scalars.
//!
//! The product of a scale and a code is exact: no scale has more than 17 bits and no code more than 6.

use super::codebook;
use crate::encodings::Encoding;
use crate::encodings::scan::halves;
use crate::scalar::{BLOCK, E2M1_CODES, e4m3_to_f32, f16_to_f32};
use crate::{GgufBlocks, Matrix};

/// Decodes one block of at most 64 columns of a format whose weights are not summed as codes.
pub(in crate::encodings) fn block(
    format: GgufBlocks,
    m: &Matrix,
    row: usize,
    block: usize,
    out: &mut [f32],
) {
    match format {
        GgufBlocks::Q8_0 => q8_0(m, row, block, out),
        GgufBlocks::Mxfp4 => mxfp4(m, row, block, out),
        _ => unreachable!("it has codes"),
    }
}

/// The code of a column of a matrix.
pub(in crate::encodings) fn code_at(format: GgufBlocks, m: &Matrix, row: usize, col: usize) -> u8 {
    code(format, block_of(format, m, row, col), col % format.cols())
}

/// The scale of a column of a matrix.
pub(in crate::encodings) fn scale_at(
    format: GgufBlocks,
    m: &Matrix,
    row: usize,
    col: usize,
) -> f32 {
    scale(format, block_of(format, m, row, col), col % format.cols())
}

/// The minimum of a column of a matrix.
pub(in crate::encodings) fn minimum_at(
    format: GgufBlocks,
    m: &Matrix,
    row: usize,
    col: usize,
) -> f32 {
    minimum(format, block_of(format, m, row, col), col % format.cols())
}

/// The code of a column for products with rounded activations, signed or not.
pub(in crate::encodings) fn int8_code(
    format: GgufBlocks,
    m: &Matrix,
    row: usize,
    col: usize,
) -> u8 {
    let b = block_of(format, m, row, col);
    let i = col % 32;
    match format {
        GgufBlocks::Q8_0 => b[2 + i],
        GgufBlocks::Mxfp4 => E2M1_CODES[usize::from(b[1 + i % 16] >> (4 * (i / 16)) & 15)],
        GgufBlocks::Iq4Nl | GgufBlocks::Iq4Xs => code_at(format, m, row, col).wrapping_sub(127),
        _ => code_at(format, m, row, col),
    }
}

/// The scale of such a code, beside that of its run.
pub(in crate::encodings) fn int8_scale(
    format: GgufBlocks,
    m: &Matrix,
    row: usize,
    col: usize,
) -> f32 {
    let b = block_of(format, m, row, col);
    match format {
        GgufBlocks::Q8_0 => half(b, 0),
        GgufBlocks::Mxfp4 => half_e8m0_to_f32(b[0]),
        GgufBlocks::Q2K => half(b, 80),
        GgufBlocks::Q3K => half(b, 108),
        GgufBlocks::Q6K => half(b, 208),
        _ => scale_at(format, m, row, col),
    }
}

/// The minimum of such a code, beside that of its run.
pub(in crate::encodings) fn int8_minimum(
    format: GgufBlocks,
    m: &Matrix,
    row: usize,
    col: usize,
) -> f32 {
    match format {
        GgufBlocks::Q2K => -half(block_of(format, m, row, col), 82),
        _ => minimum_at(format, m, row, col),
    }
}

/// The whole numbers that scale the run of 16 columns that begins with column `col`, and its minimum.
pub(in crate::encodings) fn run_at(m: &Matrix, row: usize, col: usize) -> (i8, i8) {
    let Encoding::Gguf(format) = m.encoding() else {
        unreachable!("only formats of GGUF files have runs")
    };
    run(format, block_of(format, m, row, col), col % format.cols() / 16)
}

/// Decodes one block of at most 64 columns of q8_0.
fn q8_0(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, col) in out.iter_mut().zip(block * BLOCK..) {
        let b = block_of(GgufBlocks::Q8_0, m, row, col);
        *out = f32::from(b[2 + col % 32] as i8) * half(b, 0);
    }
}

/// Decodes one block of at most 64 columns of mxfp4.
fn mxfp4(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, col) in out.iter_mut().zip(block * BLOCK..) {
        let b = block_of(GgufBlocks::Mxfp4, m, row, col);
        let i = col % 32;
        let nibble = b[1 + i % 16] >> (4 * (i / 16)) & 15;
        *out = DOUBLE_E2M1[usize::from(nibble)] * half_e8m0_to_f32(b[0]);
    }
}

/// The format's block that a column is in.
fn block_of<'a>(format: GgufBlocks, m: &Matrix<'a>, row: usize, col: usize) -> &'a [u8] {
    &m.row_bytes(0, row)[col / format.cols() * format.bytes()..][..format.bytes()]
}

/// The f16 number at an offset.
fn half(b: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]))
}

/// The code in column `i` of a format's block: what its weight is, in units of its scale, and
/// [`Coding::less`] or the minimum of its run more.
fn code(format: GgufBlocks, b: &[u8], i: usize) -> u8 {
    // A code of four bits: two runs of columns share the bytes from `at` on.
    let nibble = |at: usize, run: usize| b[at + i % run] >> (4 * (i / run)) & 15;
    let fifth = |at: usize| (b[at + i / 8] >> (i % 8) & 1) << 4;
    // In blocks of 256, the same for each of four quarters.
    let quarter = |at: usize, run: usize| {
        let b = &b[at + i / 64 * 32..];
        let i = i % 64;
        b[i / (2 * run) * run + i % run] >> (4 * (i / run % 2)) & 15
    };
    // A code of two bits: four runs of 32 columns share 32 bytes.
    let two = |at: usize| b[at + i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
    match format {
        GgufBlocks::Q4_0 => nibble(2, 16),
        GgufBlocks::Q4_1 => nibble(4, 16),
        GgufBlocks::Q5_0 => nibble(6, 16) | fifth(2),
        GgufBlocks::Q5_1 => nibble(8, 16) | fifth(4),
        GgufBlocks::Q8_0 | GgufBlocks::Mxfp4 => unreachable!("a format without codes"),
        GgufBlocks::Q2K => two(16),
        GgufBlocks::Q3K => two(32) | (b[i % 32] >> (i / 32) & 1) << 2,
        GgufBlocks::Q4K => quarter(16, 32),
        GgufBlocks::Q5K => quarter(48, 32) | (b[16 + i % 32] >> (i / 32) & 1) << 4,
        GgufBlocks::Q6K => {
            let half_of = i / 128;
            let i_of = i % 128;
            let low = b[64 * half_of + i_of % 64] >> (4 * (i_of / 64)) & 15;
            low | two(128) << 4
        }
        GgufBlocks::Iq4Nl => IQ4_CODES[usize::from(nibble(2, 16))],
        GgufBlocks::Iq4Xs => IQ4_CODES[usize::from(quarter(8, 16))],
        GgufBlocks::Iq1S
        | GgufBlocks::Iq1M
        | GgufBlocks::Iq2Xxs
        | GgufBlocks::Iq2Xs
        | GgufBlocks::Iq2S
        | GgufBlocks::Iq3Xxs
        | GgufBlocks::Iq3S => {
            let number = codebook::group(format, b, i / 8).numbers[i % 8];
            (number + codebook::less(format) as i8) as u8
        }
        GgufBlocks::Tq1_0 => ternary(b, i),
        GgufBlocks::Tq2_0 => two(0),
        GgufBlocks::Nvfp4 => E2M1_CODES[usize::from(eighth(b, i))],
    }
}

/// The whole numbers that scale a run of 16 columns and its minimum, in formats that have such.
fn run(format: GgufBlocks, b: &[u8], run: usize) -> (i8, i8) {
    match format {
        GgufBlocks::Q2K => ((b[run] & 15) as i8, (b[run] >> 4) as i8),
        GgufBlocks::Q3K => {
            let low = b[96 + run % 8] >> (4 * (run / 8)) & 15;
            let high = b[104 + run % 4] >> (2 * (run / 4)) & 3;
            ((low | high << 4) as i8 - 32, 0)
        }
        GgufBlocks::Q6K => (b[192 + run] as i8, 0),
        _ => unreachable!("a format without whole numbers for runs"),
    }
}

/// The scale of column `i` of a format's block.
fn scale(format: GgufBlocks, b: &[u8], i: usize) -> f32 {
    match format {
        GgufBlocks::Q4_0
        | GgufBlocks::Q4_1
        | GgufBlocks::Q5_0
        | GgufBlocks::Q5_1
        | GgufBlocks::Iq4Nl => half(b, 0),
        GgufBlocks::Q2K => half(b, 80) * f32::from(b[i / 16] & 15),
        GgufBlocks::Q3K => {
            let j = i / 16;
            let low = b[96 + j % 8] >> (4 * (j / 8)) & 15;
            let high = b[104 + j % 4] >> (2 * (j / 4)) & 3;
            half(b, 108) * signed(low | high << 4, 32)
        }
        GgufBlocks::Q4K | GgufBlocks::Q5K => half(b, 0) * scale_and_min(&b[4..16], i / 32).0,
        GgufBlocks::Q6K => half(b, 208) * f32::from(b[192 + i / 16] as i8),
        GgufBlocks::Iq4Xs => {
            let j = i / 32;
            let low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
            let high = b[2 + j / 4] >> (2 * (j % 4)) & 3;
            half(b, 0) * signed(low | high << 4, 32)
        }
        GgufBlocks::Iq1S
        | GgufBlocks::Iq1M
        | GgufBlocks::Iq2Xxs
        | GgufBlocks::Iq2Xs
        | GgufBlocks::Iq2S
        | GgufBlocks::Iq3Xxs
        | GgufBlocks::Iq3S => {
            let (scale, power) = codebook::scale(format, b);
            f16_to_f32(scale) * power * codebook::group(format, b, i / 8).factor as f32
        }
        GgufBlocks::Tq1_0 => half(b, 52),
        GgufBlocks::Tq2_0 => half(b, 64),
        GgufBlocks::Nvfp4 => ue4m3_to_f32(b[i / 16]) * 0.5,
        GgufBlocks::Q8_0 | GgufBlocks::Mxfp4 => unreachable!("a format without codes"),
    }
}

/// The minimum of column `i` of a format's block.
fn minimum(format: GgufBlocks, b: &[u8], i: usize) -> f32 {
    match format {
        GgufBlocks::Q4_1 | GgufBlocks::Q5_1 => half(b, 2),
        GgufBlocks::Q2K => -half(b, 82) * f32::from(b[i / 16] >> 4),
        GgufBlocks::Q4K | GgufBlocks::Q5K => -half(b, 2) * scale_and_min(&b[4..16], i / 32).1,
        _ => unreachable!("a format without minima"),
    }
}

/// The digit of column `i` in a byte of five, or of four at the end. A byte is the fraction of 256 with these
/// digits, so that three times it is the first digit and what remains.
fn ternary(b: &[u8], i: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let (byte, digit) = match i {
        0..160 => (b[i % 32], i / 32),
        160..240 => (b[32 + i % 16], (i - 160) / 16),
        _ => (b[48 + i % 4], (i - 240) / 4),
    };
    ((u16::from(byte.wrapping_mul(POWERS[digit])) * 3) >> 8) as u8
}

/// The nibble of column `i`: two runs of eight columns share the bytes.
pub(in crate::encodings) fn eighth(b: &[u8], i: usize) -> u8 {
    b[4 + i / 16 * 8 + i % 8] >> (4 * (i / 8 % 2)) & 15
}

/// Decodes e4m3 without a sign. A byte of 0x7f is zero, while 0xff is 480.
pub(in crate::encodings) fn ue4m3_to_f32(code: u8) -> f32 {
    match code {
        0x7f => 0.0,
        0xff => 480.0,
        _ => e4m3_to_f32(code & 0x7f),
    }
}

/// A code that stands for a number that is less by `by`.
fn signed(code: u8, by: i8) -> f32 {
    f32::from(code as i8 - by)
}

/// The scale and the minimum, both of six bits, of one of eight groups.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = match j {
        0..4 => (packed[j] & 63, packed[j + 4] & 63),
        _ => {
            (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
        }
    };
    (f32::from(scale), f32::from(min))
}

/// The sixteen values of iq4_nl and iq4_xs, and 127 more.
pub(super) const IQ4_CODES: [u8; 16] =
    [0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240];

/// Twice the values of e2m1, without a negative zero.
pub(super) const DOUBLE_E2M1: [f32; 16] =
    [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];

/// Half of the power of two with this biased exponent, of which 255 is none that is special.
pub(super) const fn half_e8m0_to_f32(s: u8) -> f32 {
    match s {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((s as u32 - 1) << 23),
    }
}

/// True if a scale is NaN or infinite, or a power of two so large that a code exceeds f32. The largest f16 times a
/// scale and a code is far from the largest f32.
pub(in crate::encodings) fn may_be_special(format: GgufBlocks, m: &Matrix) -> bool {
    let blocks = m.part(0).chunks_exact(format.bytes());
    match format {
        // The exponent of a scale that is in parts.
        GgufBlocks::Iq1M => blocks.clone().any(|b| b[55] & 0x70 == 0x70 && b[53] & 0xc0 == 0xc0),
        GgufBlocks::Mxfp4 => blocks.clone().any(|block| block[0] >= 126 + 127),
        _ => format
            .scales()
            .iter()
            .any(|&at| blocks.clone().fold(false, |any, b| any | halves(&b[at..at + 2], 0x7c00))),
    }
}
