//! Plain numbers in scalars.

use crate::Matrix;
use crate::encodings::scan::{any_share, f32s, halves};
use crate::scalar::{BLOCK, bf16_to_f32, f16_to_f32};

pub(in crate::encodings) fn f32(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(m.row_bytes(0, row)[4 * BLOCK * block..].as_chunks().0) {
        *out = f32::from_le_bytes(*b);
    }
}

pub(in crate::encodings) fn f16(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(m.row_bytes(0, row)[2 * BLOCK * block..].as_chunks().0) {
        *out = f16_to_f32(u16::from_le_bytes(*b));
    }
}

pub(in crate::encodings) fn bf16(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(m.row_bytes(0, row)[2 * BLOCK * block..].as_chunks().0) {
        *out = bf16_to_f32(u16::from_le_bytes(*b));
    }
}

/// True if any f32 is NaN or infinite.
pub(in crate::encodings) fn has_special_f32(m: &Matrix) -> bool {
    any_share(m.part(0), f32s)
}

/// True if any f16 is NaN or infinite.
pub(in crate::encodings) fn has_special_f16(m: &Matrix) -> bool {
    any_share(m.part(0), |bytes| halves(bytes, 0x7c00))
}

/// True if any bf16 is NaN or infinite.
pub(in crate::encodings) fn has_special_bf16(m: &Matrix) -> bool {
    any_share(m.part(0), |bytes| halves(bytes, 0x7f80))
}
