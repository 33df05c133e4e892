//! Rows that are encoded.

use super::error::ErrorSums;

/// One encoded block of rows. Its buffers are kept for reuse.
#[derive(Clone, Debug, Default)]
pub struct EncodedRows {
    /// The bytes of these rows in each part that is split by rows, in the order of
    /// [`Encoding::parts`](crate::Encoding::parts).
    pub parts: [Vec<u8>; 2],
    /// Bytes of the patches of each row, where an encoding has some.
    pub escapes: Vec<u32>,
    /// The patches: the exponents of the escapes, or their codes.
    pub exponents: Vec<u8>,
    /// Error of a lossy encoding.
    pub error: ErrorSums,
    /// Numbers widened to f32.
    pub(super) wide: Vec<f32>,
}
