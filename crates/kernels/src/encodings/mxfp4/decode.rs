//! Decoder of e2m1 with powers of two as scales, of which tables of all scaled numbers are kept.

use crate::encodings::{Decoder, RowCursor};
use crate::scalar::{BLOCK, E2M1, E8M0, e8m0_to_f32};
use crate::simd::{Bf16s, ScaleMap, Simd, scaled};
use crate::{Encoding, Matrix};

/// Two codes in a byte, in the order of columns.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Mxfp4<S: Simd>(S::Sixteen);

impl<S: Simd> Decoder<S> for Mxfp4<S> {
    const ENCODING: Encoding = Encoding::Mxfp4;
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Mxfp4(s.sixteen(&E2M1))
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let [low, high] = at.scales.add(2 * b).cast::<[u8; 2]>().read_unaligned().map(Power);
            let p = at.codes.add(BLOCK / 2 * b);
            let [a, b] = s.pairs(self.0, [low; 2], p);
            let [c, d] = s.pairs(self.0, [high; 2], p.add(BLOCK / 4));
            [a, b, c, d]
        }
    }
}

/// A scale of e8m0 for numbers of e2m1.
#[derive(Clone, Copy)]
struct Power(u8);

impl<S: Simd> ScaleMap<S> for Power {
    #[inline(always)]
    fn of(self, s: S, number: S::F) -> S::F {
        s.mul(number, s.splat(E8M0[usize::from(self.0)]))
    }
    #[inline(always)]
    fn kept(self) -> Option<&'static Bf16s> {
        Some(&SCALED[usize::from(self.0)])
    }
}

/// The numbers of e2m1 by their scale.
static SCALED: [Bf16s; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut s = 0;
    while s < 256 {
        tables[s] = scaled(&E2M1, e8m0_to_f32(s as u8));
        s += 1;
    }
    tables
};
