//! fp8 and mxfp4: small floating-point codes under a shared scale.

use crate::encode::EncodedRows;
use crate::reference::E2M1;

/// Up to 128 rows.
pub(super) fn fp8(rows: &[f32], cols: usize, out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    let mut maxima = vec![0f32; cols.div_ceil(128)];
    for row in rows.chunks(cols) {
        for (max, block) in maxima.iter_mut().zip(row.chunks(128)) {
            *max = block.iter().fold(*max, |max, w| max.max(w.abs()));
        }
    }
    maxima.iter_mut().for_each(|max| *max /= 448.0);
    scales.extend(maxima.iter().flat_map(|scale| scale.to_le_bytes()));
    for row in rows.chunks(cols) {
        for (scale, block) in maxima.iter().zip(row.chunks(128)) {
            codes.extend(block.iter().map(|w| if *scale == 0.0 { 0 } else { e4m3(w / scale) }));
        }
    }
}

pub(super) fn mxfp4_row(row: &[f32], out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    for block in row.chunks(32) {
        let max = block.iter().fold(0f32, |max, w| max.max(w.abs()));
        // The largest power of two not above the maximum, over that of e2m1 (4 = 2²).
        let exponent = if max == 0.0 { -127 } else { (floor_log2(max) - 2).max(-127) };
        scales.push((exponent + 127) as u8);
        let mut bytes = [0u8; 16];
        // In f64 the factor is exact whatever the exponent.
        let factor = f64::from_bits(((1023 - exponent) as u64) << 52);
        for (c, w) in block.iter().enumerate() {
            let code = e2m1((f64::from(*w) * factor) as f32);
            bytes[c / 2] |= code << (4 * (c % 2));
        }
        codes.extend_from_slice(&bytes);
    }
}

/// To nearest even; beyond the largest, the largest.
fn e4m3(w: f32) -> u8 {
    let sign = (w.to_bits() >> 24 & 0x80) as u8;
    let w = w.abs();
    if w < 1.0 / 64.0 {
        // Subnormal: a multiple of 2⁻⁹; eight of them are the smallest normal number, and its code.
        return sign | (w * 512.0).round_ties_even() as u8;
    }
    let bits = w.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    sign | (rounded - ((127 - 7) << 3)).min(0x7e) as u8
}

/// To nearest, to the even code between two; beyond the largest, the largest.
fn e2m1(w: f32) -> u8 {
    let sign = (w.to_bits() >> 28 & 8) as u8;
    let w = w.abs();
    let mut code = 0;
    while code < 7 {
        let middle = (E2M1[code] + E2M1[code + 1]) / 2.0;
        if w < middle || w == middle && code % 2 == 0 {
            break;
        }
        code += 1;
    }
    sign | code as u8
}

fn floor_log2(w: f32) -> i32 {
    // A subnormal is normal in f64.
    (f64::from(w).to_bits() >> 52) as i32 - 1023
}
