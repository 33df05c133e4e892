//! fp8 and mxfp4: small floating-point codes under a shared scale.

use crate::encode::EncodedRows;
use crate::encode::error::{ErrorLanes, magnitude};
use crate::reference::e8m0_to_f32;

const FP8_BLOCK: usize = 128;
const MXFP4_BLOCK: usize = 32;

/// Encodes up to 128 rows, which share their scales.
pub(super) fn fp8(rows: &[f32], cols: usize, out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    let mut maxima = vec![0f32; cols.div_ceil(FP8_BLOCK)];
    for row in rows.chunks(cols) {
        for (max, block) in maxima.iter_mut().zip(row.chunks(FP8_BLOCK)) {
            *max = max.max(magnitude(block));
        }
    }
    maxima.iter_mut().for_each(|max| *max /= 448.0);
    scales.extend(maxima.iter().flat_map(|scale| scale.to_le_bytes()));
    for row in rows.chunks(cols) {
        let mut error = ErrorLanes::default();
        for (&scale, block) in maxima.iter().zip(row.chunks(FP8_BLOCK)) {
            let mut weights = [0f32; FP8_BLOCK];
            weights[..block.len()].copy_from_slice(block);
            // Under a scale of zero all codes are zero, without a sign.
            let (divisor, kept) = if scale == 0.0 { (f32::INFINITY, 0) } else { (scale, 0xff) };
            let rounded = weights.map(|w| E4M3.round(w / divisor));
            error.add(&weights, &rounded.map(|(_, value)| value * scale));
            let bytes = rounded.map(|(code, _)| code as u8 & kept);
            codes.extend_from_slice(&bytes[..block.len()]);
        }
        out.error.add(&error.sums());
    }
}

pub(super) fn mxfp4_row(row: &[f32], out: &mut EncodedRows) {
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

/// A small floating-point type of sign, exponent and mantissa, whose codes ascend with the
/// magnitude.
struct Small {
    /// Bits of the mantissa.
    mantissa: u32,
    /// The exponent of the smallest normal number.
    lowest: i32,
    /// The largest number and its code.
    largest: (f32, u32),
    /// The sign bit of a code.
    sign: u32,
}

const E4M3: Small = Small { mantissa: 3, lowest: -6, largest: (448.0, 0x7e), sign: 0x80 };
const E2M1: Small = Small { mantissa: 1, lowest: 0, largest: (6.0, 7), sign: 8 };

impl Small {
    /// Returns the code and the value of the nearest number. A tie goes to the even code;
    /// magnitudes beyond the largest saturate.
    #[inline(always)]
    fn round(&self, w: f32) -> (u32, f32) {
        let bits = w.to_bits() & 0x7fff_ffff;
        let magnitude = f32::from_bits(bits);
        let dropped = 23 - self.mantissa;
        let rounded = bits + (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
        let normal = (rounded >> dropped) as i32 - ((self.lowest + 126) << self.mantissa);
        // Below the smallest normal number all steps are as large as its own. Adding a number whose
        // last bit equals such a step rounds to a multiple of it.
        let steps = self.lowest - self.mantissa as i32;
        let shift = f32::from_bits(((steps + 23 + 127) as u32) << 23 | 1 << 22);
        let shifted = magnitude + shift;
        let is_normal = bits >= ((self.lowest + 127) as u32) << 23;
        let code = if is_normal { normal as u32 } else { shifted.to_bits() & 0xff };
        let value =
            if is_normal { f32::from_bits(rounded >> dropped << dropped) } else { shifted - shift };
        let (largest, largest_code) = self.largest;
        let code = if code > largest_code { largest_code } else { code };
        let value = if value > largest { largest } else { value };
        let negative = w.to_bits() >> 31;
        (code | (negative * self.sign), f32::from_bits(value.to_bits() | negative << 31))
    }
}

fn floor_log2(w: f32) -> i32 {
    // A subnormal is normal in f64.
    (f64::from(w).to_bits() >> 52) as i32 - 1023
}
