//! The blocks of GGUF files.

use super::f16_to_f32;
use crate::Matrix;

/// Bytes of 32 columns of q8_0: a scale and the codes.
pub(crate) const Q8_0_BYTES: usize = 34;

pub(super) fn q8_0(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let (units, _) = m.row_bytes(0, row)[2 * Q8_0_BYTES * block..].as_chunks::<Q8_0_BYTES>();
    for (out, [a, b, codes @ ..]) in out.chunks_mut(32).zip(units) {
        let scale = f16_to_f32(u16::from_le_bytes([*a, *b]));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(*code as i8) * scale;
        }
    }
}
