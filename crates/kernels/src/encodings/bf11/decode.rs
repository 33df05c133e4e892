//! Decoder of bf11.

use super::BF11_BLOCK;
use super::simd::{Bf11Simd, tail};
use crate::encodings::{Decoder, RowCursor};
use crate::scalar::BLOCK;
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Bf11<S: Bf11Simd> {
    tiers: S::Tiers,
}

impl<S: Bf11Simd> Decoder<S> for Bf11<S> {
    const ENCODING: Encoding = Encoding::Bf11;
    const BYTES: usize = BF11_BLOCK;
    const ROWS: usize = 2;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        Bf11 { tiers: s.tiers(&m.tiers()) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe { s.bf11(&self.tiers, at.codes.add(BF11_BLOCK * b), &mut at.beside) }
    }
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        let whole = m.cols() / BLOCK;
        let n = m.cols() % BLOCK;
        let bytes = &m.row_bytes(0, at.row)[whole * BF11_BLOCK..];
        tail(s, &self.tiers, bytes, n, &mut at.beside)
    }
}
