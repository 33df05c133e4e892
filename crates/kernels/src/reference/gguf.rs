//! The block formats of GGUF files.
//!
//! A product that is added to, or taken from, another number is exact here: no scale has more than
//! 17 bits and no code more than 6. So it does not matter whether it is rounded in between.

use super::{BLOCK, f16_to_f32};
use crate::gguf::points::{self, Group};
use crate::{GgufBlocks, Matrix};

/// Decodes one block of at most 64 columns.
pub(super) fn block(format: GgufBlocks, m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let (cols, bytes) = (format.cols(), format.bytes());
    let row = m.row_bytes(0, row);
    for (out, col) in out.iter_mut().zip(block * BLOCK..) {
        *out = weight(format, &row[col / cols * bytes..][..bytes], col % cols);
    }
}

/// The weight in column `i` of a format's block.
fn weight(format: GgufBlocks, b: &[u8], i: usize) -> f32 {
    let half = |at: usize| f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]));
    // A code of four bits: two runs of columns share the bytes from `at` on.
    let nibble = |at: usize, run: usize| b[at + i % run] >> (4 * (i / run)) & 15;
    let fifth = |at: usize| (b[at + i / 8] >> (i % 8) & 1) << 4;
    // In blocks of 256, the same for each of four quarters.
    let quarter = |at: usize, run: usize| {
        let (b, i) = (&b[at + i / 64 * 32..], i % 64);
        b[i / (2 * run) * run + i % run] >> (4 * (i / run % 2)) & 15
    };
    // A code of two bits: four runs of 32 columns share 32 bytes.
    let two = |at: usize| b[at + i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
    match format {
        GgufBlocks::Q4_0 => signed(nibble(2, 16), 8) * half(0),
        GgufBlocks::Q4_1 => f32::from(nibble(4, 16)) * half(0) + half(2),
        GgufBlocks::Q5_0 => signed(nibble(6, 16) | fifth(2), 16) * half(0),
        GgufBlocks::Q5_1 => f32::from(nibble(8, 16) | fifth(4)) * half(0) + half(2),
        GgufBlocks::Q8_0 => f32::from(b[2 + i] as i8) * half(0),
        GgufBlocks::Q2K => {
            let scales = b[i / 16];
            let (scale, min) =
                (half(80) * f32::from(scales & 15), half(82) * f32::from(scales >> 4));
            scale * f32::from(two(16)) - min
        }
        GgufBlocks::Q3K => {
            let j = i / 16;
            let low = b[96 + j % 8] >> (4 * (j / 8)) & 15;
            let high = b[104 + j % 4] >> (2 * (j / 4)) & 3;
            let third = (b[i % 32] >> (i / 32) & 1) << 2;
            half(108) * signed(low | high << 4, 32) * signed(two(32) | third, 4)
        }
        GgufBlocks::Q4K => {
            let (scale, min) = scale_and_min(&b[4..16], i / 32);
            half(0) * scale * f32::from(quarter(16, 32)) - half(2) * min
        }
        GgufBlocks::Q5K => {
            let (scale, min) = scale_and_min(&b[4..16], i / 32);
            let fifth = (b[16 + i % 32] >> (i / 32) & 1) << 4;
            half(0) * scale * f32::from(quarter(48, 32) | fifth) - half(2) * min
        }
        GgufBlocks::Q6K => {
            let (half_of, i_of) = (i / 128, i % 128);
            let low = b[64 * half_of + i_of % 64] >> (4 * (i_of / 64)) & 15;
            half(208) * f32::from(b[192 + i / 16] as i8) * signed(low | two(128) << 4, 32)
        }
        GgufBlocks::Iq4Nl => half(0) * IQ4[usize::from(nibble(2, 16))],
        GgufBlocks::Iq4Xs => {
            let j = i / 32;
            let low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
            let high = b[2 + j / 4] >> (2 * (j % 4)) & 3;
            half(0) * signed(low | high << 4, 32) * IQ4[usize::from(quarter(8, 16))]
        }
        GgufBlocks::Iq1S
        | GgufBlocks::Iq1M
        | GgufBlocks::Iq2Xxs
        | GgufBlocks::Iq2Xs
        | GgufBlocks::Iq2S
        | GgufBlocks::Iq3Xxs
        | GgufBlocks::Iq3S => {
            let (scale, power) = points::scale(format, b);
            let Group { numbers, factor } = points::group(format, b, i / 8);
            f16_to_f32(scale) * power * factor as f32 * f32::from(numbers[i % 8])
        }
        GgufBlocks::Mxfp4 => DOUBLE_E2M1[usize::from(nibble(1, 16))] * half_e8m0_to_f32(b[0]),
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

/// The sixteen values of iq4_nl and iq4_xs.
pub(crate) const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Twice the values of e2m1, without a negative zero.
pub(crate) const DOUBLE_E2M1: [f32; 16] =
    [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];

/// Half of the power of two with this biased exponent, of which 255 is none that is special.
pub(crate) const fn half_e8m0_to_f32(s: u8) -> f32 {
    match s {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((s as u32 - 1) << 23),
    }
}
