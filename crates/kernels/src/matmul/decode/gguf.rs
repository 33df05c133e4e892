//! Decoders of the blocks of GGUF files.

use super::{Cursor, Decoder};
use crate::reference::{Q8_0_BYTES, f16_to_f32};
use crate::simd::Simd;
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q8_0;

impl<S: Simd> Decoder<S> for Q8_0 {
    const ENCODING: Encoding = Encoding::Q8_0;
    const BYTES: usize = 2 * Q8_0_BYTES;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q8_0
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait. A block is two units of a scale and 32 codes.
        unsafe {
            let p = at.codes.add(2 * Q8_0_BYTES * b);
            let q = p.add(Q8_0_BYTES);
            let scale =
                |p: *const u8| s.splat(f16_to_f32(u16::from_le(p.cast::<u16>().read_unaligned())));
            let (low, high) = (scale(p), scale(q));
            [
                s.mul(s.load_i8(p.add(2)), low),
                s.mul(s.load_i8(p.add(18)), low),
                s.mul(s.load_i8(q.add(2)), high),
                s.mul(s.load_i8(q.add(18)), high),
            ]
        }
    }
}
