//! Decoders of the formats whose weights are not summed as codes: q8_0, signed bytes with an f16 scale for 32
//! columns, and mxfp4.

use super::reference::{DOUBLE_E2M1, half_e8m0_to_f32};
use crate::encodings::decode::tail_by_reference;
use crate::encodings::{Decoder, RowCursor};
use crate::scalar::BLOCK;
use crate::simd::{Bf16s, ScaleMap, Simd, load_block, scaled};
use crate::{Encoding, GgufBlocks, Matrix};

/// Bytes of 32 columns.
const Q8_0_BYTES: usize = GgufBlocks::Q8_0.bytes();
const MXFP4_BYTES: usize = GgufBlocks::Mxfp4.bytes();

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Q8_0;

impl Q8_0 {
    /// Decodes 32 columns.
    ///
    /// # Safety
    ///
    /// Their bytes must be readable at `p`.
    #[inline(always)]
    unsafe fn unit<S: Simd>(s: S, p: *const u8) -> [S::F; 2] {
        // SAFETY: by this function's contract.
        unsafe {
            let scale = s.splat_f16(u16::from_le(p.cast::<u16>().read_unaligned()));
            [s.mul(s.load_i8(p.add(2)), scale), s.mul(s.load_i8(p.add(18)), scale)]
        }
    }
}

impl<S: Simd> Decoder<S> for Q8_0 {
    const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::Q8_0);
    const BYTES: usize = 2 * Q8_0_BYTES;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q8_0
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * Q8_0_BYTES * b);
            let ([a, b], [c, d]) = (Self::unit(s, p), Self::unit(s, p.add(Q8_0_BYTES)));
            [a, b, c, d]
        }
    }
    /// Vectorised for a whole unit, which is every tail of a file.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        if m.cols() % BLOCK != BLOCK / 2 {
            return load_block(s, &tail_by_reference(at, m));
        }
        let whole = m.cols() / BLOCK;
        let zero = s.splat(0.0);
        // SAFETY: the row ends with a unit behind its whole blocks.
        let [a, b] = unsafe { Self::unit(s, at.codes.add(2 * Q8_0_BYTES * whole)) };
        [a, b, zero, zero]
    }
}

/// mxfp4: low nibbles are codes of 16 columns, and high ones of the next 16.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Mxfp4<S: Simd>(S::Sixteen);

impl<S: Simd> Mxfp4<S> {
    /// Decodes 32 columns.
    ///
    /// # Safety
    ///
    /// Their bytes must be readable at `p`.
    #[inline(always)]
    unsafe fn unit(self, s: S, p: *const u8) -> [S::F; 2] {
        // SAFETY: by this function's contract.
        unsafe { s.halves(self.0, [HalfPower(*p); 2], p.add(1)) }
    }
}

impl<S: Simd> Decoder<S> for Mxfp4<S> {
    const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::Mxfp4);
    const BYTES: usize = 2 * MXFP4_BYTES;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Mxfp4(s.sixteen(&DOUBLE_E2M1))
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * MXFP4_BYTES * b);
            let ([a, b], [c, d]) = (self.unit(s, p), self.unit(s, p.add(MXFP4_BYTES)));
            [a, b, c, d]
        }
    }
    /// Vectorised for a whole unit, which is every tail of a file.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        if m.cols() % BLOCK != BLOCK / 2 {
            return load_block(s, &tail_by_reference(at, m));
        }
        let whole = m.cols() / BLOCK;
        let zero = s.splat(0.0);
        // SAFETY: the row ends with a unit behind its whole blocks.
        let [a, b] = unsafe { self.unit(s, at.codes.add(2 * MXFP4_BYTES * whole)) };
        [a, b, zero, zero]
    }
}

/// Half of a power of two, for doubled numbers of e2m1.
#[derive(Clone, Copy)]
struct HalfPower(u8);

impl<S: Simd> ScaleMap<S> for HalfPower {
    #[inline(always)]
    fn of(self, s: S, number: S::F) -> S::F {
        s.mul(number, s.splat(HALF_POWERS[usize::from(self.0)]))
    }
    #[inline(always)]
    fn kept(self) -> Option<&'static Bf16s> {
        Some(&HALF_SCALED[usize::from(self.0)])
    }
}

static HALF_POWERS: [f32; 256] = {
    let mut powers = [0.0; 256];
    let mut s = 0;
    while s < 256 {
        powers[s] = half_e8m0_to_f32(s as u8);
        s += 1;
    }
    powers
};

/// The doubled numbers of e2m1 by half of their scale.
static HALF_SCALED: [Bf16s; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut s = 0;
    while s < 256 {
        tables[s] = scaled(&DOUBLE_E2M1, half_e8m0_to_f32(s as u8));
        s += 1;
    }
    tables
};
