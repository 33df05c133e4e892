//! Decoder of bf11.

use super::{Decoder, RowCursor};
use crate::reference::{BF11_BLOCK, BLOCK};
use crate::simd::{Simd, bf11_tail};
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Bf11<S: Simd> {
    tiers: S::Tiers,
}

impl<S: Simd> Decoder<S> for Bf11<S> {
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
        let tail = &m.row_bytes(0, at.row)[whole * BF11_BLOCK..];
        bf11_tail(s, &self.tiers, tail, n, &mut at.beside)
    }
}
