//! nvfp4 in scalars.

use crate::encodings::gguf::reference::{eighth, ue4m3_to_f32};
use crate::encodings::scan::{bytes, large};
use crate::scalar::{E2M1_CODES, e4m3_to_f32, f32_at, nibble};
use crate::{GgufBlocks, Matrix, Nvfp4Scale};

/// The code of a column.
pub(in crate::encodings) fn code(kind: Nvfp4Scale, m: &Matrix, row: usize, col: usize) -> u8 {
    let code = match kind {
        Nvfp4Scale::OfBlocks => eighth(block_of(m, row, col), col % GgufBlocks::Nvfp4.cols()),
        Nvfp4Scale::Times | Nvfp4Scale::Divided => nibble(m.row_bytes(0, row), col),
    };
    E2M1_CODES[usize::from(code)]
}

/// The block that a column is in.
fn block_of<'a>(m: &Matrix<'a>, row: usize, col: usize) -> &'a [u8] {
    let blocks = GgufBlocks::Nvfp4;
    &m.row_bytes(0, row)[col / blocks.cols() * blocks.bytes()..][..blocks.bytes()]
}

/// The scale of a code.
pub(in crate::encodings) fn scale(kind: Nvfp4Scale, m: &Matrix, row: usize, col: usize) -> f32 {
    let scale = || e4m3_to_f32(m.row_bytes(1, row)[col / 16]);
    match kind {
        Nvfp4Scale::Times => scale() * (f32_at(m.part(2), 0) * 0.5),
        Nvfp4Scale::Divided => scale() / f32_at(m.part(2), 0) * 0.5,
        Nvfp4Scale::OfBlocks => {
            let run = col % GgufBlocks::Nvfp4.cols() / 16;
            ue4m3_to_f32(block_of(m, row, col)[run]) * (f32_at(m.part(1), 0) * 0.5)
        }
    }
}

/// True if a scale is NaN, or the number of the matrix may make a weight NaN or infinite.
pub(in crate::encodings) fn may_overflow(kind: Nvfp4Scale, m: &Matrix) -> bool {
    let most = 2f32.powi(116);
    match kind {
        Nvfp4Scale::OfBlocks => large(m.part(1), most),
        Nvfp4Scale::Times => bytes(m.part(1), 0x7f) || large(m.part(2), most),
        Nvfp4Scale::Divided => {
            let number = m.part(2);
            let small = |n: &[u8; 4]| f32::from_le_bytes(*n).abs() <= 2f32.powi(-116);
            let is_small = number.as_chunks().0.iter().any(small);
            bytes(m.part(1), 0x7f) || large(number, f32::INFINITY) || is_small
        }
    }
}

/// The divisor of the matrix if it is infinite, which would make all weights zero.
pub(in crate::encodings) fn infinite_divisor(kind: Nvfp4Scale, m: &Matrix) -> Option<f32> {
    if kind != Nvfp4Scale::Divided {
        return None;
    }
    let number = f32_at(m.part(2), 0);
    number.is_infinite().then_some(number)
}
