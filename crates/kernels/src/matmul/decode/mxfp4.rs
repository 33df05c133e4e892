//! Decoder of mxfp4.

use super::{Cursor, Decoder};
use crate::reference::{BLOCK, E2M1, e8m0_to_f32};
use crate::simd::Simd;
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Mxfp4<S: Simd> {
    values: S::F,
}

impl<S: Simd> Decoder<S> for Mxfp4<S> {
    const ENCODING: Encoding = Encoding::Mxfp4;
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        // SAFETY: 16 × f32 are 64 bytes.
        Mxfp4 { values: unsafe { s.load(E2M1.as_ptr()) } }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(BLOCK / 2 * b);
            let scale = |h: usize| {
                let byte = *at.scales.add(2 * b + h);
                s.mul(self.values, s.splat(SCALES[usize::from(byte)]))
            };
            let (low, high) = (scale(0), scale(1));
            [
                s.lookup(low, s.load_nibbles(p)),
                s.lookup(low, s.load_nibbles(p.add(8))),
                s.lookup(high, s.load_nibbles(p.add(16))),
                s.lookup(high, s.load_nibbles(p.add(24))),
            ]
        }
    }
}

static SCALES: [f32; 256] = {
    let mut scales = [0.0; 256];
    let mut s = 0;
    while s < 256 {
        scales[s] = e8m0_to_f32(s as u8);
        s += 1;
    }
    scales
};
