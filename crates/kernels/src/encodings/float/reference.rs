//! Plain numbers.

use super::{BLOCK, bf16_to_f32, f16_to_f32};
use crate::Matrix;

pub(super) fn f32(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(m.row_bytes(0, row)[4 * BLOCK * block..].as_chunks().0) {
        *out = f32::from_le_bytes(*b);
    }
}

pub(super) fn f16(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(m.row_bytes(0, row)[2 * BLOCK * block..].as_chunks().0) {
        *out = f16_to_f32(u16::from_le_bytes(*b));
    }
}

pub(super) fn bf16(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(m.row_bytes(0, row)[2 * BLOCK * block..].as_chunks().0) {
        *out = bf16_to_f32(u16::from_le_bytes(*b));
    }
}
