//! nvfp4 in scalars.

use crate::encodings::scan::{bytes, large};
use crate::scalar::{E2M1_CODES, e4m3_to_f32, f32_at, nibble};
use crate::{Matrix, Nvfp4Scale};

/// The code of a column.
pub(in crate::encodings) fn code(m: &Matrix, row: usize, col: usize) -> u8 {
    E2M1_CODES[usize::from(nibble(m.row_bytes(0, row), col))]
}

/// The scale of a code.
pub(in crate::encodings) fn scale(kind: Nvfp4Scale, m: &Matrix, row: usize, col: usize) -> f32 {
    let scale = e4m3_to_f32(m.row_bytes(1, row)[col / 16]);
    match kind {
        Nvfp4Scale::Times => scale * (f32_at(m.part(2), 0) * 0.5),
        Nvfp4Scale::Divided => scale / f32_at(m.part(2), 0) * 0.5,
    }
}

/// True if a scale is NaN, or the number of the matrix may make a weight NaN or infinite.
pub(in crate::encodings) fn may_overflow(kind: Nvfp4Scale, m: &Matrix) -> bool {
    let number = m.part(2);
    bytes(m.part(1), 0x7f)
        || match kind {
            Nvfp4Scale::Times => large(number, 2f32.powi(116)),
            Nvfp4Scale::Divided => {
                let small = |n: &[u8; 4]| f32::from_le_bytes(*n).abs() <= 2f32.powi(-116);
                large(number, f32::INFINITY) || number.as_chunks().0.iter().any(small)
            }
        }
}

/// The divisor of the matrix if it is infinite, which would make all weights zero.
pub(in crate::encodings) fn infinite_divisor(kind: Nvfp4Scale, m: &Matrix) -> Option<f32> {
    let number = f32_at(m.part(2), 0);
    (kind == Nvfp4Scale::Divided && number.is_infinite()).then_some(number)
}
