//! Decoder of q8_0 of GGUF files: signed bytes with an f16 scale for 32 columns.

use super::{Decoder, RowCursor};
use crate::matmul::one::load_block;
use crate::reference::BLOCK;
use crate::simd::Simd;
use crate::{Encoding, GgufBlocks, Matrix};

/// Bytes of 32 columns.
const UNIT: usize = GgufBlocks::Q8_0.bytes();

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q8_0;

impl Q8_0 {
    /// Decodes 32 columns.
    ///
    /// # Safety
    ///
    /// Their bytes must be readable at `p`.
    #[inline(always)]
    unsafe fn unit<S: Simd>(s: S, p: *const u8) -> [S::F; 2] {
        // SAFETY: by this function's contract.
        unsafe {
            let scale = s.splat_f16(u16::from_le(p.cast::<u16>().read_unaligned()));
            [s.mul(s.load_i8(p.add(2)), scale), s.mul(s.load_i8(p.add(18)), scale)]
        }
    }
}

impl<S: Simd> Decoder<S> for Q8_0 {
    const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::Q8_0);
    const BYTES: usize = 2 * UNIT;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q8_0
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * UNIT * b);
            let ([a, b], [c, d]) = (Self::unit(s, p), Self::unit(s, p.add(UNIT)));
            [a, b, c, d]
        }
    }
    /// Vectorised for a whole unit, which is every tail of a file.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        if m.cols() % BLOCK != BLOCK / 2 {
            return load_block(s, &at.tail(m));
        }
        let whole = m.cols() / BLOCK;
        let zero = s.splat(0.0);
        // SAFETY: the row ends with a unit behind its whole blocks.
        let [a, b] = unsafe { Self::unit(s, at.codes.add(2 * UNIT * whole)) };
        [a, b, zero, zero]
    }
}
