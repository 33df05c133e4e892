//! Encoding of numbers as q8 and q4.

use crate::encodings::EncodedRows;
use crate::encodings::encode::{ErrorLanes, SHIFT, magnitude, round_to_bf16};
use crate::scalar::{BLOCK, bf16_to_f32};

pub(in crate::encodings) fn q8_row(row: &[f32], out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    let mut error = ErrorLanes::default();
    for group in row.chunks(BLOCK) {
        let (quantized, scale) = quantize::<127>(group, &mut error);
        scales.extend_from_slice(&scale.to_le_bytes());
        codes.extend_from_slice(&quantized.map(|code| code as u8)[..group.len()]);
    }
    out.error.add(&error.sums());
}

pub(in crate::encodings) fn q4_row(row: &[f32], out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    let mut error = ErrorLanes::default();
    for group in row.chunks(BLOCK) {
        let (quantized, scale) = quantize::<7>(group, &mut error);
        scales.extend_from_slice(&scale.to_le_bytes());
        let nibbles = quantized.map(|code| code & 15);
        let mut bytes = [0u8; BLOCK / 2];
        if group.len() == BLOCK {
            let (words, _) = bytes.as_chunks_mut::<2>();
            for (i, word) in words.iter_mut().enumerate() {
                let [a, b, c, d] = [0, 16, 32, 48].map(|column| nibbles[column + i]);
                *word = [(a | b << 4) as u8, (c | d << 4) as u8];
            }
        } else {
            for (byte, pair) in bytes.iter_mut().zip(nibbles.as_chunks::<2>().0) {
                *byte = (pair[0] | pair[1] << 4) as u8;
            }
        }
        codes.extend_from_slice(&bytes[..group.len().div_ceil(2)]);
    }
    out.error.add(&error.sums());
}

/// Returns the codes of a group, from `-LARGEST` to `LARGEST` and padded with zeros, and the bits
/// of its scale.
#[inline(always)]
fn quantize<const LARGEST: i32>(group: &[f32], error: &mut ErrorLanes) -> ([i32; BLOCK], u16) {
    let mut weights = [0f32; BLOCK];
    weights[..group.len()].copy_from_slice(group);
    let bits = round_to_bf16(magnitude(&weights) / LARGEST as f32);
    let scale = bf16_to_f32(bits);
    // Weights so small that their scale is zero get codes of zero.
    let divisor = if scale == 0.0 { f32::INFINITY } else { scale };
    let largest = LARGEST as f32;
    let shifted = weights.map(|w| (w / divisor).clamp(-largest, largest) + SHIFT);
    error.add(&weights, &shifted.map(|code| (code - SHIFT) * scale));
    (shifted.map(|code| code.to_bits() as i32 - SHIFT.to_bits() as i32), bits)
}
