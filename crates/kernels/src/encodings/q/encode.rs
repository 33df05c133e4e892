//! q8 and q4: symmetric codes in groups of 64 with a bf16 scale. q8_0: in groups of 32 with an f16
//! scale.

use crate::encode::EncodedRows;
use crate::encode::error::{ErrorLanes, magnitude};
use crate::reference::{BLOCK, bf16_to_f32, f16_to_f32};

/// Adding this to a number below 2²² leaves no bits for a fraction: the sum is rounded to nearest
/// even, and its low bits are the integer. `round_ties_even` is a function call on CPUs without
/// such an instruction.
const SHIFT: f32 = (3 << 22) as f32;

/// Columns that share a scale in q8_0.
const GGUF_BLOCK: usize = 32;

pub(super) fn q8_row(row: &[f32], out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    let mut error = ErrorLanes::default();
    for group in row.chunks(BLOCK) {
        let (quantized, scale) = quantize::<127>(group, &mut error);
        scales.extend_from_slice(&scale.to_le_bytes());
        codes.extend_from_slice(&quantized.map(|code| code as u8)[..group.len()]);
    }
    out.error.add(&error.sums());
}

pub(super) fn q4_row(row: &[f32], out: &mut EncodedRows) {
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

pub(super) fn q8_0_row(row: &[f32], out: &mut EncodedRows) {
    let [units, _] = &mut out.parts;
    let mut error = ErrorLanes::default();
    for group in row.chunks(GGUF_BLOCK) {
        let mut weights = [0f32; GGUF_BLOCK];
        weights[..group.len()].copy_from_slice(group);
        let bits = round_to_f16(magnitude(&weights) / 127.0);
        let scale = f16_to_f32(bits);
        let divisor = if scale == 0.0 { f32::INFINITY } else { scale };
        let shifted = weights.map(|w| (w / divisor).clamp(-127.0, 127.0) + SHIFT);
        error.add(&weights, &shifted.map(|code| (code - SHIFT) * scale));
        units.extend_from_slice(&bits.to_le_bytes());
        units.extend(shifted.map(|code| (code.to_bits() as i32 - SHIFT.to_bits() as i32) as u8));
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

/// Rounds a finite, non-negative number to the nearest f16, ties to even; one that is too large
/// becomes the largest.
fn round_to_f16(w: f32) -> u16 {
    /// Largest f16, and its bits.
    const LARGEST: (f32, u16) = (65504.0, 0x7bff);
    /// The smallest normal f16, and the number whose last bit is that of a subnormal one.
    const NORMAL: f32 = 1.0 / (1 << 14) as f32;
    const STEPS: f32 = 0.5;
    if w >= LARGEST.0 {
        return LARGEST.1;
    }
    if w < NORMAL {
        // An f32 from 0.5 to 1 has steps of 2⁻²⁴, those of subnormal f16.
        return ((w + STEPS).to_bits() - STEPS.to_bits()) as u16;
    }
    let bits = w.to_bits();
    let rounded = bits + 0xfff + (bits >> 13 & 1);
    ((rounded >> 13) - ((127 - 15) << 10)) as u16
}

/// Rounds a finite, non-negative number to the nearest bf16, ties to even.
fn round_to_bf16(w: f32) -> u16 {
    let bits = w.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
