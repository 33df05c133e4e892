//! Encoding of numbers as fp8 with an f32 scale for each block of 128×128.

use crate::encodings::EncodedRows;
use crate::encodings::encode::{ErrorLanes, Small, magnitude};

const FP8_BLOCK: usize = 128;

const E4M3: Small = Small { mantissa: 3, lowest: -6, largest: (448.0, 0x7e), sign: 0x80 };

/// Encodes up to 128 rows, which share their scales.
pub(in crate::encodings) fn fp8(rows: &[f32], cols: usize, out: &mut EncodedRows) {
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
