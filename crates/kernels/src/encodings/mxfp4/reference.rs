//! mxfp4 in scalars.

use crate::Matrix;
use crate::scalar::{BLOCK, E2M1, E2M1_CODES, e8m0_to_f32, nibble};

/// Decodes one block of a row.
pub(in crate::encodings) fn block(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let codes = &m.row_bytes(0, row)[BLOCK / 2 * block..];
    for (c, out) in out.iter_mut().enumerate() {
        let scale = e8m0_to_f32(m.row_bytes(1, row)[2 * block + c / 32]);
        *out = E2M1[nibble(codes, c) as usize] * scale;
    }
}

/// The code of a column, for products with rounded activations.
pub(in crate::encodings) fn code(m: &Matrix, row: usize, col: usize) -> u8 {
    E2M1_CODES[usize::from(nibble(m.row_bytes(0, row), col))]
}

/// The scale of such a code.
pub(in crate::encodings) fn half_scale(m: &Matrix, row: usize, col: usize) -> f32 {
    e8m0_to_f32(m.row_bytes(1, row)[col / 32]) * 0.5
}

/// True if a scale is NaN or so large that a code exceeds f32: from 2¹²⁶ on for codes up to 6.
pub(in crate::encodings) fn may_overflow(m: &Matrix) -> bool {
    m.part(1).iter().any(|&n| n >= 126 + 127)
}
