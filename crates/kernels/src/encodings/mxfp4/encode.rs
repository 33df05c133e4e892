//! Encoding of numbers as mxfp4.

use crate::encodings::EncodedRows;
use crate::encodings::encode::{ErrorLanes, Small, magnitude};
use crate::scalar::e8m0_to_f32;

const MXFP4_BLOCK: usize = 32;

const E2M1: Small = Small { mantissa: 1, lowest: 0, largest: (6.0, 7), sign: 8 };

pub(in crate::encodings) fn mxfp4_row(row: &[f32], out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    let mut error = ErrorLanes::default();
    for block in row.chunks(MXFP4_BLOCK) {
        let mut weights = [0f32; MXFP4_BLOCK];
        weights[..block.len()].copy_from_slice(block);
        let max = magnitude(&weights);
        // The largest power of two not above the maximum, divided by that of e2m1 (4 = 2²).
        let exponent = if max == 0.0 { -127 } else { (floor_log2(max) - 2).max(-127) };
        let biased = (exponent + 127) as u8;
        scales.push(biased);
        // 2^-exponent is a normal f32 for all exponents from -127 to 125.
        let factor = f32::from_bits(((127 - exponent) as u32) << 23);
        let scale = e8m0_to_f32(biased);
        let rounded = weights.map(|w| E2M1.round(w * factor));
        error.add(&weights, &rounded.map(|(_, value)| value * scale));
        let nibbles = rounded.map(|(code, _)| code);
        let mut bytes = [0u8; MXFP4_BLOCK / 2];
        for (byte, pair) in bytes.iter_mut().zip(nibbles.as_chunks::<2>().0) {
            *byte = (pair[0] | pair[1] << 4) as u8;
        }
        codes.extend_from_slice(&bytes);
    }
    out.error.add(&error.sums());
}

fn floor_log2(w: f32) -> i32 {
    // A subnormal is normal in f64.
    (f64::from(w).to_bits() >> 52) as i32 - 1023
}
