//! Decoder of fp7.

use std::marker::PhantomData;

use super::FP7_BLOCK;
use super::simd::Fp7Simd;
use crate::encodings::fp8::decode::{BlockScales, scaled};
use crate::encodings::{Decoder, RowCursor};
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Fp7<S: Fp7Simd, K> {
    tiers: S::Tiers,
    scales: PhantomData<K>,
}

impl<S: Fp7Simd, K: BlockScales> Decoder<S> for Fp7<S, K> {
    const ENCODING: Encoding = Encoding::Fp7(K::KIND);
    const BYTES: usize = FP7_BLOCK;
    const ROWS: usize = 2;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        Fp7 { tiers: s.tiers(&m.tiers()), scales: PhantomData }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        let (scales, (fields, has_nan)) = unsafe {
            let p = at.codes.add(FP7_BLOCK * b);
            (K::of(at.scales, b), s.fp7(&self.tiers, p, &mut at.beside))
        };
        scaled(s, fields, has_nan, scales)
    }
}
