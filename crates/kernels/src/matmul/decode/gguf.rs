//! The formats of GGUF files with blocks of 32 columns.

use std::marker::PhantomData;

use super::nibbles::scaled;
use super::{Cursor, Decoder, Times, TimesPlus};
use crate::matmul::one::load_block;
use crate::reference::{BLOCK, DOUBLE_E2M1, IQ4, half_e8m0_to_f32};
use crate::simd::{Bf16s, Map, Simd, UNIT};
use crate::{Encoding, GgufBlocks, Matrix};

/// Decoder of a format from its blocks of 32 columns.
pub(in crate::matmul) trait Unit<S: Simd>: Copy {
    const FORMAT: GgufBlocks;

    fn new(s: S) -> Self;

    /// Decodes the block at `p`, in order.
    ///
    /// # Safety
    ///
    /// The bytes of a block must be readable at `p`.
    unsafe fn unit(self, s: S, p: *const u8) -> [S::F; 2];
}

/// [`Decoder`] of pairs of such blocks.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Units<U>(U);

impl<S: Simd, U: Unit<S>> Decoder<S> for Units<U> {
    const ENCODING: Encoding = Encoding::Gguf(U::FORMAT);
    const BYTES: usize = 2 * U::FORMAT.bytes();
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Units(U::new(s))
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * U::FORMAT.bytes() * b);
            let ([a, b], [c, d]) = (self.0.unit(s, p), self.0.unit(s, p.add(U::FORMAT.bytes())));
            [a, b, c, d]
        }
    }
    /// Vectorised for a whole unit, which is every tail of a file.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut Cursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        if m.cols() % BLOCK != BLOCK / 2 {
            return load_block(s, &at.tail(m));
        }
        let (whole, zero) = (m.cols() / BLOCK, s.splat(0.0));
        // SAFETY: the row ends with a unit behind its whole blocks.
        let [a, b] = unsafe { self.0.unit(s, at.codes.add(2 * U::FORMAT.bytes() * whole)) };
        [a, b, zero, zero]
    }
}

/// A number of two bytes.
///
/// # Safety
///
/// They must be readable.
#[inline(always)]
pub(super) unsafe fn word(p: *const u8) -> u16 {
    // SAFETY: by this function's contract.
    u16::from_le(unsafe { p.cast::<u16>().read_unaligned() })
}

#[inline(always)]
pub(super) fn load<S: Simd>(s: S, values: &[f32; 16]) -> S::F {
    // SAFETY: 16 × f32 are 64 bytes.
    unsafe { s.load(values.as_ptr()) }
}

/// A format of codes of four bits, each of which stands for one of sixteen values.
pub(in crate::matmul) trait Sixteen: Copy {
    const FORMAT: GgufBlocks;
    const VALUES: [f32; 16];
    /// Offset of the codes in a block.
    const CODES: usize;

    /// What is done to them.
    type Map<S: Simd>: Map<S>;

    /// The scale of the block at `p`.
    ///
    /// # Safety
    ///
    /// The bytes of a block must be readable at `p`.
    unsafe fn map<S: Simd>(s: S, p: *const u8) -> Self::Map<S>;
}

/// [`Unit`] of such a format.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Nibbles<S: Simd, T> {
    values: S::Sixteen,
    format: PhantomData<T>,
}

impl<S: Simd, T: Sixteen> Unit<S> for Nibbles<S, T> {
    const FORMAT: GgufBlocks = T::FORMAT;

    #[inline(always)]
    fn new(s: S) -> Self {
        Nibbles { values: s.sixteen(&T::VALUES), format: PhantomData }
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, p: *const u8) -> [S::F; 2] {
        // SAFETY: by the contract of the trait. Sixteen bytes of codes end the block.
        unsafe { s.halves(self.values, [T::map(s, p); 2], p.add(T::CODES)) }
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q4_0;

impl Sixteen for Q4_0 {
    const FORMAT: GgufBlocks = GgufBlocks::Q4_0;
    const VALUES: [f32; 16] =
        [-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.];
    const CODES: usize = 2;
    type Map<S: Simd> = Times<S::F>;

    #[inline(always)]
    unsafe fn map<S: Simd>(s: S, p: *const u8) -> Self::Map<S> {
        // SAFETY: by the contract of the trait.
        Times(s.splat_f16(unsafe { word(p) }))
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q4_1;

impl Sixteen for Q4_1 {
    const FORMAT: GgufBlocks = GgufBlocks::Q4_1;
    const VALUES: [f32; 16] = TO_15;
    const CODES: usize = 4;
    type Map<S: Simd> = TimesPlus<S::F>;

    #[inline(always)]
    unsafe fn map<S: Simd>(s: S, p: *const u8) -> Self::Map<S> {
        // SAFETY: by the contract of the trait.
        let (scale, min) = unsafe { (word(p), word(p.add(2))) };
        TimesPlus(s.splat_f16(scale), s.splat_f16(min))
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Iq4Nl;

impl Sixteen for Iq4Nl {
    const FORMAT: GgufBlocks = GgufBlocks::Iq4Nl;
    const VALUES: [f32; 16] = IQ4;
    const CODES: usize = 2;
    type Map<S: Simd> = Times<S::F>;

    #[inline(always)]
    unsafe fn map<S: Simd>(s: S, p: *const u8) -> Self::Map<S> {
        // SAFETY: by the contract of the trait.
        Times(s.splat_f16(unsafe { word(p) }))
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Mxfp4;

impl Sixteen for Mxfp4 {
    const FORMAT: GgufBlocks = GgufBlocks::Mxfp4;
    const VALUES: [f32; 16] = DOUBLE_E2M1;
    const CODES: usize = 1;
    type Map<S: Simd> = HalfPower;

    #[inline(always)]
    unsafe fn map<S: Simd>(_: S, p: *const u8) -> HalfPower {
        // SAFETY: by the contract of the trait.
        HalfPower(unsafe { *p })
    }
}

/// Half of a power of two, for doubled numbers of e2m1.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct HalfPower(u8);

impl<S: Simd> Map<S> for HalfPower {
    #[inline(always)]
    fn of(self, s: S, number: S::F) -> S::F {
        s.mul(number, s.splat(HALF_POWERS[usize::from(self.0)]))
    }
    #[inline(always)]
    fn kept(self) -> Option<&'static Bf16s> {
        Some(&SCALED[usize::from(self.0)])
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
static SCALED: [Bf16s; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut s = 0;
    while s < 256 {
        tables[s] = scaled(&DOUBLE_E2M1, HALF_POWERS[s]);
        s += 1;
    }
    tables
};

pub(super) const TO_15: [f32; 16] =
    [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// [`Decoder`] of pairs of blocks of five-bit codes, whose fifth bits lie before the others.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Fives<T>(PhantomData<T>);

/// Five bits, and a scale or a scale and a minimum.
pub(in crate::matmul) trait Five: Copy {
    const FORMAT: GgufBlocks;
    /// True if codes are counted up from a minimum, which follows the scale.
    const HAS_MINIMUM: bool;
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q5_0;

impl Five for Q5_0 {
    const FORMAT: GgufBlocks = GgufBlocks::Q5_0;
    const HAS_MINIMUM: bool = false;
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q5_1;

impl Five for Q5_1 {
    const FORMAT: GgufBlocks = GgufBlocks::Q5_1;
    const HAS_MINIMUM: bool = true;
}

impl<T: Five> Fives<T> {
    /// Decodes the blocks at `first` and at `second`.
    ///
    /// # Safety
    ///
    /// The bytes of a block must be readable at both.
    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, first: *const u8, second: *const u8) -> [S::F; 4] {
        let bits = if T::HAS_MINIMUM { 4 } else { 2 };
        // SAFETY: by this function's contract.
        let (codes, fifths) = unsafe {
            let low = first.add(bits).cast::<u32>().read_unaligned();
            let high = second.add(bits).cast::<u32>().read_unaligned();
            let fifths = u64::from(u32::from_le(high)) << 32 | u64::from(u32::from_le(low));
            (s.load_halved(first.add(bits + 4), second.add(bits + 4)), fifths)
        };
        // SAFETY: likewise.
        let [low, high] = unsafe { [s.splat_f16(word(first)), s.splat_f16(word(second))] };
        let scales = [s.mul(low, s.splat(UNIT)), s.mul(high, s.splat(UNIT))];
        if T::HAS_MINIMUM {
            // SAFETY: likewise.
            let minima =
                unsafe { [s.splat_f16(word(first.add(2))), s.splat_f16(word(second.add(2)))] };
            let mut numbers = s.numbers(s.add_where(codes, fifths, 16));
            for k in 0..4 {
                numbers[k] = s.fma(numbers[k], scales[k / 2], minima[k / 2]);
            }
            return numbers;
        }
        // A code is 16 too large; one with its fifth bit is not.
        let mut numbers = s.numbers(s.add_where(codes, !fifths, -16i8 as u8));
        for k in 0..4 {
            numbers[k] = s.mul(numbers[k], scales[k / 2]);
        }
        numbers
    }
}

impl<S: Simd, T: Five> Decoder<S> for Fives<T> {
    const ENCODING: Encoding = Encoding::Gguf(T::FORMAT);
    const BYTES: usize = 2 * T::FORMAT.bytes();
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Fives(PhantomData)
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * T::FORMAT.bytes() * b);
            Self::pair(s, p, p.add(T::FORMAT.bytes()))
        }
    }
    /// Vectorised for a whole block, which is every tail of a file.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut Cursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        if m.cols() % BLOCK != BLOCK / 2 {
            return load_block(s, &at.tail(m));
        }
        let (whole, zero) = (m.cols() / BLOCK, s.splat(0.0));
        // SAFETY: the row ends with a block behind its pairs.
        let [a, b, _, _] = unsafe {
            let p = at.codes.add(2 * T::FORMAT.bytes() * whole);
            Self::pair(s, p, p)
        };
        [a, b, zero, zero]
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q8_0;

impl<S: Simd> Unit<S> for Q8_0 {
    const FORMAT: GgufBlocks = GgufBlocks::Q8_0;

    #[inline(always)]
    fn new(_: S) -> Self {
        Q8_0
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, p: *const u8) -> [S::F; 2] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let scale = s.splat_f16(word(p));
            [s.mul(s.load_i8(p.add(2)), scale), s.mul(s.load_i8(p.add(18)), scale)]
        }
    }
}
