//! q8 and q4: symmetric codes in groups of 64 with a bf16 scale.

use crate::encode::EncodedRows;
use crate::reference::{BLOCK, bf16_to_f32, interleaved};

pub(super) fn q8_row(row: &[f32], out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    for group in row.chunks(BLOCK) {
        let scale = group_scale(group, 127.0, scales);
        codes.extend(group.iter().map(|w| code(*w, scale, 127.0) as u8));
    }
}

pub(super) fn q4_row(row: &[f32], out: &mut EncodedRows) {
    let [codes, scales] = &mut out.parts;
    for group in row.chunks(BLOCK) {
        let scale = group_scale(group, 7.0, scales);
        let mut bytes = [0u8; BLOCK / 2];
        for (c, w) in group.iter().enumerate() {
            let at = if group.len() == BLOCK { interleaved(c) } else { c };
            bytes[at / 2] |= (code(*w, scale, 7.0) as u8 & 15) << (4 * (at % 2));
        }
        codes.extend_from_slice(&bytes[..group.len().div_ceil(2)]);
    }
}

/// Appends the group's scale and returns it as it will be read.
fn group_scale(group: &[f32], largest: f32, scales: &mut Vec<u8>) -> f32 {
    let max = group.iter().fold(0f32, |max, w| max.max(w.abs()));
    let bits = round_to_bf16(max / largest);
    scales.extend_from_slice(&bits.to_le_bytes());
    bf16_to_f32(bits)
}

fn code(w: f32, scale: f32, largest: f32) -> i8 {
    if scale == 0.0 { 0 } else { (w / scale).round_ties_even().clamp(-largest, largest) as i8 }
}

/// To nearest even, of a finite number that is not negative.
fn round_to_bf16(w: f32) -> u16 {
    let bits = w.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
