//! Codes with scales.

use super::{BLOCK, E2M1, bf16_to_f32, e8m0_to_f32, interleaved, nibble};
use crate::Matrix;

pub(super) fn q8(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let scale = bf16_at(m.row_bytes(1, row), block);
    for (out, code) in out.iter_mut().zip(&m.row_bytes(0, row)[BLOCK * block..]) {
        *out = f32::from(*code as i8) * scale;
    }
}

/// The four bits of a column.
pub(super) fn q4_nibble(m: &Matrix, row: usize, col: usize) -> u8 {
    let block = col / BLOCK;
    let c = col % BLOCK;
    let whole = BLOCK * (block + 1) <= m.cols();
    nibble(&m.row_bytes(0, row)[BLOCK / 2 * block..], if whole { interleaved(c) } else { c })
}

pub(super) fn mxfp4(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let codes = &m.row_bytes(0, row)[BLOCK / 2 * block..];
    for (c, out) in out.iter_mut().enumerate() {
        let scale = e8m0_to_f32(m.row_bytes(1, row)[2 * block + c / 32]);
        *out = E2M1[nibble(codes, c) as usize] * scale;
    }
}

pub(super) fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    bf16_to_f32(u16::from_le_bytes(bytes.as_chunks().0[index]))
}
