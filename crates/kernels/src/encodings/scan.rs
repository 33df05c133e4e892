//! Scans for bytes of numbers that are NaN or infinite, or that would make such.

use rayon::prelude::*;

use super::Matrix;

/// Weights, or bytes of them, that a thread takes at a time.
pub(super) const SHARE: usize = 1 << 18;

/// True if this holds for any row of a matrix. On a thread of a pool, all of them take part: the first
/// prompt of a model scans all its weights.
pub(super) fn any_row(matrix: &Matrix<'_>, has: impl Fn(usize) -> bool + Send + Sync) -> bool {
    let rows = matrix.row_count();
    let cols = matrix.cols();
    match rayon::current_thread_index() {
        Some(_) => (0..rows).into_par_iter().with_min_len(SHARE / cols.max(1) + 1).any(has),
        None => (0..rows).any(has),
    }
}

/// The same for any part of a tensor's bytes, cut where numbers begin.
pub(super) fn any_share(bytes: &[u8], has: impl Fn(&[u8]) -> bool + Send + Sync) -> bool {
    match rayon::current_thread_index() {
        Some(_) => bytes.par_chunks(SHARE).any(has),
        None => has(bytes),
    }
}

/// True if any of the numbers has all exponent bits set.
pub(super) fn f32s(bytes: &[u8]) -> bool {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().fold(false, |any, n| any | (u32::from_le_bytes(*n) << 1 >= 0xff00_0000))
}

/// True if any number of 16 bits is at least this, without its sign.
pub(super) fn halves(bytes: &[u8], from: u16) -> bool {
    let (numbers, _) = bytes.as_chunks::<2>();
    numbers.iter().fold(false, |any, n| any | (u16::from_le_bytes(*n) & 0x7fff >= from))
}

/// True if any byte has all of these bits.
pub(super) fn bytes(bytes: &[u8], mask: u8) -> bool {
    bytes.iter().fold(false, |any, n| any | (n & mask == mask))
}

/// True if a number of 32 bits is NaN or at least this large.
pub(super) fn large(bytes: &[u8], from: f32) -> bool {
    let mut numbers = bytes.as_chunks::<4>().0.iter().map(|n| f32::from_le_bytes(*n));
    numbers.any(|n| n.is_nan() || n.abs() >= from)
}
