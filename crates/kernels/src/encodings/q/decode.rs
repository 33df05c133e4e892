//! Decoder of q8: codes in groups of 64 columns.

use crate::encodings::{Decoder, RowCursor};
use crate::scalar::{BLOCK, bf16_to_f32};
use crate::simd::Simd;
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Q8;

impl<S: Simd> Decoder<S> for Q8 {
    const ENCODING: Encoding = Encoding::Q8;
    const BYTES: usize = BLOCK;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q8
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let scale = s.splat(bf16_scale(at, b));
            let p = at.codes.add(BLOCK * b);
            let mut parts = [scale; 4];
            for k in 0..4 {
                parts[k] = s.mul(s.load_i8(p.add(16 * k)), scale);
            }
            parts
        }
    }
}

/// The scale of a block.
///
/// # Safety
///
/// As for [`Decoder::block`]. The encoding must have a two-byte scale for each block.
#[inline(always)]
unsafe fn bf16_scale(at: &RowCursor, b: usize) -> f32 {
    // SAFETY: each block has a scale, by this function's contract.
    bf16_to_f32(u16::from_le(unsafe { at.scales.cast::<u16>().add(b).read_unaligned() }))
}
