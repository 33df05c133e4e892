//! The formats of GGUF files with blocks of 256 columns. A quarter of one is decoded at a time.

use super::gguf::{TO_15, load, nibbles, word};
use super::{Cursor, Decoder};
use crate::reference::IQ4;
use crate::simd::Simd;
use crate::{Encoding, GgufBlocks, Matrix};

/// Decoder of a format from the quarters of its blocks.
pub(in crate::matmul) trait Quarter<S: Simd>: Copy {
    const FORMAT: GgufBlocks;

    fn new(s: S) -> Self;

    /// Decodes columns `64·q` to `64·q + 63` of the block at `p`, in order.
    ///
    /// # Safety
    ///
    /// The bytes of a block must be readable at `p`, and `q` must be below four.
    unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4];
}

/// [`Decoder`] of such quarters.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Quarters<Q>(Q);

impl<S: Simd, Q: Quarter<S>> Decoder<S> for Quarters<Q> {
    const ENCODING: Encoding = Encoding::Gguf(Q::FORMAT);
    const BYTES: usize = Q::FORMAT.bytes().div_ceil(4);
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Quarters(Q::new(s))
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait. A row has whole blocks of 256 columns.
        unsafe { self.0.quarter(s, at.codes.add(Q::FORMAT.bytes() * (b / 4)), b % 4) }
    }
}

/// Four bytes as one number.
///
/// # Safety
///
/// They must be readable.
#[inline(always)]
unsafe fn four(p: *const u8) -> u32 {
    // SAFETY: by this function's contract.
    u32::from_le(unsafe { p.cast::<u32>().read_unaligned() })
}

/// An f16 scale at `p` times each of these whole numbers.
///
/// # Safety
///
/// Two bytes must be readable at `p`.
#[inline(always)]
unsafe fn scaled<S: Simd, const N: usize>(s: S, p: *const u8, numbers: [i32; N]) -> [S::F; N] {
    // SAFETY: by this function's contract.
    let scale = s.splat_f16(unsafe { word(p) });
    numbers.map(|number| s.mul(scale, s.splat(number as f32)))
}

/// As [`scaled`], with the other sign.
///
/// # Safety
///
/// As for [`scaled`].
#[inline(always)]
unsafe fn negated<S: Simd, const N: usize>(s: S, p: *const u8, numbers: [i32; N]) -> [S::F; N] {
    // SAFETY: by this function's contract.
    let scale = s.splat_f16(unsafe { word(p) } ^ 0x8000);
    numbers.map(|number| s.mul(scale, s.splat(number as f32)))
}

/// The scales and the minima of the two groups of a quarter, of the eight groups whose six bits
/// begin at `p`.
///
/// # Safety
///
/// 12 bytes must be readable at `p`.
#[inline(always)]
unsafe fn scales_and_minima(p: *const u8, q: usize) -> ([i32; 2], [i32; 2]) {
    // SAFETY: by this function's contract.
    let (scales, minima, rest) = unsafe { (four(p), four(p.add(4)), four(p.add(8))) };
    let top = |packed: u32| packed >> 2 & 0x3030_3030;
    let (scales, minima) = match q {
        0 | 1 => (scales & 0x3f3f_3f3f, minima & 0x3f3f_3f3f),
        _ => (rest & 0x0f0f_0f0f | top(scales), rest >> 4 & 0x0f0f_0f0f | top(minima)),
    };
    let two = |all: u32| {
        let two = all >> (16 * (q % 2));
        [(two & 255) as i32, (two >> 8 & 255) as i32]
    };
    (two(scales), two(minima))
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q4K<S: Simd>(S::F);

impl<S: Simd> Quarter<S> for Q4K<S> {
    const FORMAT: GgufBlocks = GgufBlocks::Q4K;

    #[inline(always)]
    fn new(s: S) -> Self {
        Q4K(load(s, &TO_15))
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let (scales, minima) = scales_and_minima(p.add(4), q);
            let (scales, minima) = (scaled(s, p, scales), negated(s, p.add(2), minima));
            let low = s.fma(self.0, scales[0], minima[0]);
            let high = s.fma(self.0, scales[1], minima[1]);
            let codes = p.add(16 + 32 * q);
            let (a, b) = (s.load_u8(codes), s.load_u8(codes.add(16)));
            [
                s.lookup(low, a),
                s.lookup(low, b),
                s.lookup(high, s.shr::<4>(a)),
                s.lookup(high, s.shr::<4>(b)),
            ]
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q5K;

impl<S: Simd> Quarter<S> for Q5K {
    const FORMAT: GgufBlocks = GgufBlocks::Q5K;

    #[inline(always)]
    fn new(_: S) -> Self {
        Q5K
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let (scales, minima) = scales_and_minima(p.add(4), q);
            let (scales, minima) = (scaled(s, p, scales), negated(s, p.add(2), minima));
            let shift = s.splat_u(2 * q as u32);
            let (fifteen, sixteen) = (s.splat_u(15), s.splat_u(16));
            let half = |at: usize| {
                let codes = s.load_u8(p.add(48 + 32 * q + at));
                let fifths = s.shl::<3>(s.shr_each(s.load_u8(p.add(16 + at)), shift));
                let low = s.or(s.and(codes, fifteen), s.and(s.shl::<1>(fifths), sixteen));
                let high = s.or(s.shr::<4>(codes), s.and(fifths, sixteen));
                (s.number(low), s.number(high))
            };
            let ((a, c), (b, d)) = (half(0), half(16));
            [
                s.fma(a, scales[0], minima[0]),
                s.fma(b, scales[0], minima[0]),
                s.fma(c, scales[1], minima[1]),
                s.fma(d, scales[1], minima[1]),
            ]
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q6K;

impl<S: Simd> Quarter<S> for Q6K {
    const FORMAT: GgufBlocks = GgufBlocks::Q6K;

    #[inline(always)]
    fn new(_: S) -> Self {
        Q6K
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4] {
        let (half, odd) = (q / 2, q % 2);
        // SAFETY: by the contract of the trait.
        unsafe {
            let scales = p.add(192 + 4 * q);
            let scales =
                scaled(s, p.add(208), [0, 1, 2, 3].map(|k| i32::from(*scales.add(k) as i8)));
            let shift = s.splat_u(4 * odd as u32);
            let (fifteen, top) = (s.splat_u(15), s.splat_u(48));
            let less = s.splat_u(-32i32 as u32);
            let low =
                |at: usize| s.and(s.shr_each(s.load_u8(p.add(64 * half + at)), shift), fifteen);
            let high = |at: usize| s.shr_each(s.load_u8(p.add(128 + 32 * half + at)), shift);
            let weights = |low: S::U, high: S::U, scale: S::F| {
                s.mul(s.number(s.add_u(s.or(low, s.and(high, top)), less)), scale)
            };
            let (a, b) = (high(0), high(16));
            [
                weights(low(0), s.shl::<4>(a), scales[0]),
                weights(low(16), s.shl::<4>(b), scales[1]),
                weights(low(32), s.shl::<2>(a), scales[2]),
                weights(low(48), s.shl::<2>(b), scales[3]),
            ]
        }
    }
}

/// The codes of two bits of a quarter, of which four runs of 32 columns share 32 bytes from `p` on.
///
/// # Safety
///
/// 64 bytes must be readable at `p`, and `q` must be below four.
#[inline(always)]
unsafe fn two_bits<S: Simd>(s: S, p: *const u8, q: usize) -> [S::U; 4] {
    let (shift, three) = (s.splat_u(4 * (q % 2) as u32), s.splat_u(3));
    // SAFETY: by this function's contract.
    let codes = |at: usize| unsafe { s.shr_each(s.load_u8(p.add(32 * (q / 2) + at)), shift) };
    let (a, b) = (codes(0), codes(16));
    [a, b, s.shr::<2>(a), s.shr::<2>(b)].map(|codes| s.and(codes, three))
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q2K;

impl<S: Simd> Quarter<S> for Q2K {
    const FORMAT: GgufBlocks = GgufBlocks::Q2K;

    #[inline(always)]
    fn new(_: S) -> Self {
        Q2K
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let packed = four(p.add(4 * q));
            let byte = |k: u32| (packed >> (8 * k)) as i32;
            let scales = scaled(s, p.add(80), [0, 1, 2, 3].map(|k| byte(k) & 15));
            let minima = negated(s, p.add(82), [0, 1, 2, 3].map(|k| byte(k) >> 4 & 15));
            let [a, b, c, d] = two_bits(s, p.add(16), q);
            [
                s.fma(s.number(a), scales[0], minima[0]),
                s.fma(s.number(b), scales[1], minima[1]),
                s.fma(s.number(c), scales[2], minima[2]),
                s.fma(s.number(d), scales[3], minima[3]),
            ]
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q3K;

impl<S: Simd> Quarter<S> for Q3K {
    const FORMAT: GgufBlocks = GgufBlocks::Q3K;

    #[inline(always)]
    fn new(_: S) -> Self {
        Q3K
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let low = four(p.add(96 + 4 * (q % 2))) >> (4 * (q / 2)) & 0x0f0f_0f0f;
            let packed = low | (four(p.add(104)) >> (2 * q) & 0x0303_0303) << 4;
            let scale = |k: u32| (packed >> (8 * k) & 63) as i32 - 32;
            let scales = scaled(s, p.add(108), [scale(0), scale(1), scale(2), scale(3)]);
            let [a, b, c, d] = two_bits(s, p.add(32), q);
            let (shift, bit) = (s.splat_u(2 * q as u32), s.splat_u(4));
            let less = s.splat_u(-4i32 as u32);
            let third = |at: usize| s.shl::<1>(s.shr_each(s.load_u8(p.add(at)), shift));
            let (first, second) = (third(0), third(16));
            let weights = |codes: S::U, third: S::U, scale: S::F| {
                s.mul(s.number(s.add_u(s.or(codes, s.and(third, bit)), less)), scale)
            };
            [
                weights(a, s.shl::<1>(first), scales[0]),
                weights(b, s.shl::<1>(second), scales[1]),
                weights(c, first, scales[2]),
                weights(d, second, scales[3]),
            ]
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Iq4Xs<S: Simd>(S::F);

impl<S: Simd> Quarter<S> for Iq4Xs<S> {
    const FORMAT: GgufBlocks = GgufBlocks::Iq4Xs;

    #[inline(always)]
    fn new(s: S) -> Self {
        Iq4Xs(load(s, &IQ4))
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let (low, high) = (i32::from(*p.add(4 + q)), i32::from(word(p.add(2)) >> (4 * q)));
            let first = (low & 15 | (high & 3) << 4) - 32;
            let second = (low >> 4 | (high >> 2 & 3) << 4) - 32;
            let [first, second] = scaled(s, p, [first, second]);
            let codes = p.add(8 + 32 * q);
            let [a, b] = nibbles(s, s.mul(self.0, first), codes);
            let [c, d] = nibbles(s, s.mul(self.0, second), codes.add(16));
            [a, b, c, d]
        }
    }
}
