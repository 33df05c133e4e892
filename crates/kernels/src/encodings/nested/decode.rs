//! Decoders of nested, and of its top alone.

use super::reference::TOP_VALUES;
use super::simd::NestedSimd;
use super::{DISTANCES, REST_BLOCK, TOP_BLOCK};
use crate::encodings::{Decoder, RowCursor};
use crate::scalar::{BLOCK, E8M0, e8m0_to_f32};
use crate::simd::{Bf16s, ScaleMap, Simd, keep, scaled};
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Nested<S: NestedSimd> {
    distances: S::Tiers,
}

impl<S: NestedSimd> Decoder<S> for Nested<S> {
    const ENCODING: Encoding = Encoding::Nested;
    const BYTES: usize = REST_BLOCK;
    const ROWS: usize = 2;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Nested { distances: s.tiers(&DISTANCES) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait; the top has as many blocks as the rest.
        unsafe {
            let rest = at.codes.add(REST_BLOCK * b);
            let top = at.scales.add(TOP_BLOCK * b);
            s.nested(&self.distances, rest, top, &mut at.beside)
        }
    }
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        let n = m.cols() % BLOCK;
        if n == 0 {
            return [s.splat(0.0); 4];
        }
        // SAFETY: the last block is stored whole.
        keep(s, unsafe { self.block(s, at, m.cols() / BLOCK) }, n)
    }
}

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Top<S: Simd> {
    values: S::Sixteen,
}

impl<S: Simd> Decoder<S> for Top<S> {
    const ENCODING: Encoding = Encoding::Top;
    const BYTES: usize = TOP_BLOCK;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Top { values: s.sixteen(&TOP_VALUES) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(TOP_BLOCK * b);
            let [low, high] = p.add(BLOCK / 2).cast::<[u8; 2]>().read_unaligned().map(HalfExponent);
            let [a, b] = s.pairs(self.values, [low; 2], p);
            let [c, d] = s.pairs(self.values, [high; 2], p.add(BLOCK / 4));
            [a, b, c, d]
        }
    }
}

/// The largest exponent of a half.
#[derive(Clone, Copy)]
struct HalfExponent(u8);

impl<S: Simd> ScaleMap<S> for HalfExponent {
    #[inline(always)]
    fn of(self, s: S, number: S::F) -> S::F {
        s.mul(number, s.splat(E8M0[usize::from(self.0)]))
    }
    #[inline(always)]
    fn kept(self) -> Option<&'static Bf16s> {
        Some(&SCALED[usize::from(self.0)])
    }
}

/// The values of codes by the exponent of their half.
static SCALED: [Bf16s; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut code = 0;
    while code < 256 {
        tables[code] = scaled(&TOP_VALUES, e8m0_to_f32(code as u8));
        code += 1;
    }
    tables
};
