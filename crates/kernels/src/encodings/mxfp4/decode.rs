//! Decoders of e2m1 with powers of two as scales, of which tables of all scaled numbers are kept.

use super::fp8::E8M0;
use super::{Decoder, RowCursor};
use crate::matmul::one::load_block;
use crate::reference::{BLOCK, DOUBLE_E2M1, E2M1, e8m0_to_f32, half_e8m0_to_f32};
use crate::simd::{Bf16s, ScaleMap, Simd, bf16s};
use crate::{Encoding, GgufBlocks, Matrix};

/// Two codes in a byte, in the order of columns.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Mxfp4<S: Simd>(S::Sixteen);

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

/// Blocks of GGUF files: low nibbles are codes of 16 columns, and high ones of the next 16.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct OfGguf<S: Simd>(S::Sixteen);

/// Bytes of 32 columns.
const UNIT: usize = GgufBlocks::Mxfp4.bytes();

impl<S: Simd> OfGguf<S> {
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

impl<S: Simd> Decoder<S> for OfGguf<S> {
    const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::Mxfp4);
    const BYTES: usize = 2 * UNIT;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        OfGguf(s.sixteen(&DOUBLE_E2M1))
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * UNIT * b);
            let ([a, b], [c, d]) = (self.unit(s, p), self.unit(s, p.add(UNIT)));
            [a, b, c, d]
        }
    }
    /// Vectorised for a whole unit, which is every tail of a file.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        if m.cols() % BLOCK != BLOCK / 2 {
            return load_block(s, &at.tail(m));
        }
        let whole = m.cols() / BLOCK;
        let zero = s.splat(0.0);
        // SAFETY: the row ends with a unit behind its whole blocks.
        let [a, b] = unsafe { self.unit(s, at.codes.add(2 * UNIT * whole)) };
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

/// Numbers that bf16 has, times a power of two, with which it has them too.
pub(super) const fn scaled(numbers: &[f32; 16], scale: f32) -> Bf16s {
    let mut products = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        products[i] = numbers[i] * scale;
        i += 1;
    }
    bf16s(&products)
}
