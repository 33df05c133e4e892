//! q8 and q4 in scalars.

use crate::Matrix;
use crate::encodings::scan::halves;
use crate::scalar::{BLOCK, bf16_at, interleaved, nibble};

pub(in crate::encodings) fn q8(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let scale = bf16_at(m.row_bytes(1, row), block);
    for (out, code) in out.iter_mut().zip(&m.row_bytes(0, row)[BLOCK * block..]) {
        *out = f32::from(*code as i8) * scale;
    }
}

/// The code of a column of q8, a signed byte.
pub(in crate::encodings) fn q8_code(m: &Matrix, row: usize, col: usize) -> u8 {
    m.row_bytes(0, row)[col]
}

/// The code of a column of q4, counted up from zero.
pub(in crate::encodings) fn q4_code(m: &Matrix, row: usize, col: usize) -> u8 {
    let block = col / BLOCK;
    let c = col % BLOCK;
    let whole = BLOCK * (block + 1) <= m.cols();
    nibble(&m.row_bytes(0, row)[BLOCK / 2 * block..], if whole { interleaved(c) } else { c }) ^ 8
}

/// The scale of a column.
pub(in crate::encodings) fn scale(m: &Matrix, row: usize, col: usize) -> f32 {
    bf16_at(m.row_bytes(1, row), col / BLOCK)
}

/// True if a scale is NaN, infinite or so large that a code exceeds f32: from 2¹²⁰ on for codes up to 127.
pub(in crate::encodings) fn may_overflow(m: &Matrix) -> bool {
    halves(m.part(1), (120 + 127) << 7)
}
