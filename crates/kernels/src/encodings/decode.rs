//! Decoders from blocks of 64 columns to f32, one per encoding, for any instruction set.

use super::{Encoding, Matrix, RowCursor, reference};
use crate::scalar::BLOCK;
use crate::simd::{Simd, load_block};

/// Code for the decoder of each encoding.
pub(crate) trait ForDecoder<S: Simd> {
    /// Runs the code with this decoder.
    fn run<D: Decoder<S>>(self, s: S);
}

/// Use of decoded blocks. It is no closure, which would be compiled for the baseline CPU where it is not
/// inlined.
pub(crate) trait Take<S: Simd> {
    /// Takes the columns of block `k` of a span.
    fn take(&mut self, s: S, k: usize, weights: [S::F; 4]);
}

/// Decoder of one encoding.
pub(crate) trait Decoder<S: Simd>: Copy {
    /// The encoding that it decodes.
    const ENCODING: Encoding;

    /// Bytes of a block in the first part.
    const BYTES: usize;

    /// Blocks that are decoded together by [`span`](Self::span), the first of which has a number
    /// that is a multiple of this.
    const SPAN: usize = 1;

    /// Number of rows decoded at once, as measured to be fastest: 1, 2 or 4 (see `matmul/one.rs`).
    const ROWS: usize;

    fn new(s: S, m: &Matrix) -> Self;

    /// Decodes columns `64·b` to `64·b + 63`, in order. Blocks must be decoded in ascending order.
    ///
    /// # Safety
    ///
    /// The cursor must belong to a matrix in this encoding that has at least `64·b + 64` columns.
    /// `Matrix::block` checked that the row's parts are as long as the encoding says, so the reads
    /// below are inside them.
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4];

    /// What the blocks of a span have in common: scales, or codes that are decoded together.
    type Shared: Copy;

    /// Decodes what `SPAN` blocks from `b` on have in common.
    ///
    /// # Safety
    ///
    /// As for [`block`](Self::block), for all of them.
    unsafe fn shared(self, s: S, at: &RowCursor, b: usize) -> Self::Shared;

    /// Decodes `SPAN` blocks from `b` on.
    ///
    /// # Safety
    ///
    /// As for [`block`](Self::block), for all of them. `shared` must be what they have in common.
    #[inline(always)]
    unsafe fn span(
        self,
        s: S,
        at: &mut RowCursor,
        b: usize,
        _: &Self::Shared,
        to: &mut impl Take<S>,
    ) {
        for k in 0..Self::SPAN {
            // SAFETY: by this method's contract.
            to.take(s, k, unsafe { self.block(s, at, b + k) });
        }
    }

    /// Decodes the columns after the last whole block (fewer than 64) and pads them with zeros. The
    /// cursor must belong to this matrix and be past its whole blocks.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        load_block(s, &tail_by_reference(at, m))
    }
}

/// [`Decoder::tail`] through the scalar reference.
pub(super) fn tail_by_reference<'a>(at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [f32; BLOCK] {
    let mut out = [0.0; BLOCK];
    let n = m.cols() % BLOCK;
    reference::decode_block(m, at.row, m.cols() / BLOCK, &mut at.beside, &mut out[..n]);
    out
}
