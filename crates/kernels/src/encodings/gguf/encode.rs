//! Encoding of numbers as q8_0.

use crate::encodings::EncodedRows;
use crate::encodings::encode::{ErrorLanes, SHIFT, magnitude, round_to_f16};
use crate::scalar::f16_to_f32;

/// Columns that share a scale.
const GGUF_BLOCK: usize = 32;

pub(in crate::encodings) fn q8_0_row(row: &[f32], out: &mut EncodedRows) {
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
