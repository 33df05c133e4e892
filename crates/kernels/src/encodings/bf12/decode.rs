//! Decoder of bf12.

use super::simd::{Bf12Simd, exponent_lanes, tail};
use crate::encodings::{Decoder, RowCursor};
use crate::scalar::BLOCK;
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Bf12<S: Bf12Simd> {
    exponents: S::Exponents,
    of_tail: S::F,
}

impl<S: Bf12Simd> Decoder<S> for Bf12<S> {
    const ENCODING: Encoding = Encoding::Bf12;
    const BYTES: usize = BLOCK + BLOCK / 2;
    const ROWS: usize = 2;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        let table = m.exponents();
        Bf12 { exponents: s.exponents(&table), of_tail: exponent_lanes(s, &table) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add((BLOCK + BLOCK / 2) * b);
            s.bf12(self.exponents, p, &mut at.beside)
        }
    }
    /// Vectorised, because the scalar reference took more than a quarter of the run time of a model
    /// whose experts are 96 columns wide.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        let whole = m.cols() / BLOCK;
        let n = m.cols() % BLOCK;
        let bytes = &m.row_bytes(0, at.row)[whole * (BLOCK + BLOCK / 2)..];
        tail(s, self.of_tail, bytes, n, &mut at.beside)
    }
}
