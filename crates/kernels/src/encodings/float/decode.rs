//! Decoders of plain numbers.

use crate::encodings::{Decoder, RowCursor};
use crate::scalar::BLOCK;
use crate::simd::Simd;
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::encodings) struct F32;

impl<S: Simd> Decoder<S> for F32 {
    const ENCODING: Encoding = Encoding::F32;
    const BYTES: usize = 4 * BLOCK;
    const ROWS: usize = 1;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        F32
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(4 * BLOCK * b);
            let mut parts = [s.splat(0.0); 4];
            for k in 0..4 {
                parts[k] = s.float(s.load_u32(p.add(64 * k)));
            }
            parts
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::encodings) struct F16;

impl<S: Simd> Decoder<S> for F16 {
    const ENCODING: Encoding = Encoding::F16;
    const BYTES: usize = 2 * BLOCK;
    const ROWS: usize = 1;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        F16
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * BLOCK * b);
            [s.load_f16(p), s.load_f16(p.add(32)), s.load_f16(p.add(64)), s.load_f16(p.add(96))]
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Bf16;

impl<S: Simd> Decoder<S> for Bf16 {
    const ENCODING: Encoding = Encoding::Bf16;
    const BYTES: usize = 2 * BLOCK;
    const ROWS: usize = 1;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Bf16
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * BLOCK * b);
            let mut parts = [s.splat(0.0); 4];
            for k in 0..4 {
                parts[k] = s.float(s.shl::<16>(s.load_u16(p.add(32 * k))));
            }
            parts
        }
    }
}
