//! Finding weights that are no numbers.

use sws_kernels::{Encoding, Matrix};

/// The row and column of the first NaN of a matrix, or of a block of its rows, whose parts are given
/// too.
///
/// The parts say fast whether there can be one; only then are weights decoded.
pub fn first_nan(matrix: &Matrix<'_>, parts: &[&[u8]]) -> Option<(usize, usize)> {
    if !may_hold_nan(matrix.encoding(), parts) {
        return None;
    }
    let mut row = vec![0.0; matrix.cols()];
    (0..matrix.row_count()).find_map(|r| {
        matrix.decode_row(r, &mut row);
        row.iter().position(|w| w.is_nan()).map(|col| (r, col))
    })
}

/// No NaN is missed; an infinite scale, say, is decoded in vain.
fn may_hold_nan(encoding: Encoding, parts: &[&[u8]]) -> bool {
    /// Whether every bit of an exponent is set in any of these numbers.
    fn f32s(bytes: &[u8]) -> bool {
        let (numbers, _) = bytes.as_chunks::<4>();
        numbers.iter().fold(false, |any, n| any | (u32::from_le_bytes(*n) << 1 > 0xff00_0000))
    }
    fn halves(bytes: &[u8], infinite: u16) -> bool {
        let (numbers, _) = bytes.as_chunks::<2>();
        numbers.iter().fold(false, |any, n| any | (u16::from_le_bytes(*n) & 0x7fff > infinite))
    }
    fn bytes(bytes: &[u8], mask: u8) -> bool {
        bytes.iter().fold(false, |any, n| any | (n & mask == mask))
    }
    match encoding {
        Encoding::F32 => f32s(parts[0]),
        Encoding::F16 => halves(parts[0], 0x7c00),
        Encoding::Bf16 => halves(parts[0], 0x7f80),
        // The largest exponent stands in the table or, as it is, among the patches.
        Encoding::Bf12 => bytes(parts[1], 0xff) || bytes(parts[2], 0xff),
        // Codes are numbers; only a scale can be something else, and zero times infinity is.
        Encoding::Q8 | Encoding::Q4 => halves(parts[1], 0x7f7f),
        Encoding::Fp8 => {
            bytes(parts[0], 0x7f)
                || parts[1].as_chunks::<4>().0.iter().any(|n| !f32::from_le_bytes(*n).is_finite())
        }
        Encoding::Mxfp4 => bytes(parts[1], 0xff),
    }
}
