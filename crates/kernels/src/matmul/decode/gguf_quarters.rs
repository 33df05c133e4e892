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

/// An f16 scale at `p` times each of these signed bytes.
///
/// # Safety
///
/// Two bytes must be readable at `p`.
#[inline(always)]
unsafe fn scaled<S: Simd>(s: S, p: *const u8, bytes: u32) -> [S::F; 4] {
    // SAFETY: by this function's contract.
    s.products(s.splat_f16(unsafe { word(p) }), bytes)
}

/// As [`scaled`], with the other sign.
///
/// # Safety
///
/// As for [`scaled`].
#[inline(always)]
unsafe fn negated<S: Simd>(s: S, p: *const u8, bytes: u32) -> [S::F; 4] {
    // SAFETY: by this function's contract.
    s.products(s.splat_f16(unsafe { word(p) } ^ 0x8000), bytes)
}

/// The scales and the minima of the two groups of a quarter, in the two lowest bytes, of the eight
/// groups whose six bits begin at `p`.
///
/// # Safety
///
/// 12 bytes must be readable at `p`.
#[inline(always)]
unsafe fn scales_and_minima(p: *const u8, q: usize) -> [u32; 2] {
    // SAFETY: by this function's contract.
    let (scales, minima, rest) = unsafe { (four(p), four(p.add(4)), four(p.add(8))) };
    let [scales, minima] = match q {
        0 | 1 => [scales & 0x3f3f_3f3f, minima & 0x3f3f_3f3f],
        _ => [
            rest & 0x0f0f_0f0f | scales >> 2 & 0x3030_3030,
            rest >> 4 & 0x0f0f_0f0f | minima >> 2 & 0x3030_3030,
        ],
    };
    let by = 16 * (q % 2);
    [scales >> by, minima >> by]
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
            let [scales, minima] = scales_and_minima(p.add(4), q);
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
            let [scales, minima] = scales_and_minima(p.add(4), q);
            let (scales, minima) = (scaled(s, p, scales), negated(s, p.add(2), minima));
            let codes = s.and_b(s.load_b_shifted(p.add(48 + 32 * q), [0, 4]), 15);
            let fifths = s.load_b_shifted(p.add(16), [0, 0]);
            let mut numbers =
                s.numbers(s.add_tested(codes, fifths, [1 << (2 * q), 2 << (2 * q)], 16));
            for k in 0..4 {
                numbers[k] = s.fma(numbers[k], scales[k / 2], minima[k / 2]);
            }
            numbers
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
        let (half, odd) = (q / 2, 4 * (q % 2) as u32);
        // SAFETY: by the contract of the trait.
        unsafe {
            let scales = scaled(s, p.add(208), four(p.add(192 + 4 * q)));
            let low = s.and_b(s.shr_b(s.load_b(p.add(64 * half)), odd), 15);
            let high = s.and_b(s.load_b_shifted(p.add(128 + 32 * half), [odd, odd + 2]), 3);
            let codes = s.or_b(low, s.shl4_b(high));
            let mut numbers = s.numbers(s.add_b(codes, -32i8 as u8));
            for k in 0..4 {
                numbers[k] = s.mul(numbers[k], scales[k]);
            }
            numbers
        }
    }
}

/// The codes of two bits of a quarter, of which four runs of 32 columns share 32 bytes from `p` on.
///
/// # Safety
///
/// 64 bytes must be readable at `p`, and `q` must be below four.
#[inline(always)]
unsafe fn two_bits<S: Simd>(s: S, p: *const u8, q: usize) -> S::B {
    let by = 4 * (q % 2) as u32;
    // SAFETY: by this function's contract.
    s.and_b(unsafe { s.load_b_shifted(p.add(32 * (q / 2)), [by, by + 2]) }, 3)
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
            let scales = scaled(s, p.add(80), packed & 0x0f0f_0f0f);
            let minima = negated(s, p.add(82), packed >> 4 & 0x0f0f_0f0f);
            let mut numbers = s.numbers(two_bits(s, p.add(16), q));
            for k in 0..4 {
                numbers[k] = s.fma(numbers[k], scales[k], minima[k]);
            }
            numbers
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
            let scales = scaled(s, p.add(108), less_32(packed));
            let codes = s.add_b(two_bits(s, p.add(32), q), -4i8 as u8);
            let thirds = s.load_b_shifted(p, [0, 0]);
            let mut numbers =
                s.numbers(s.add_tested(codes, thirds, [1 << (2 * q), 2 << (2 * q)], 4));
            for k in 0..4 {
                numbers[k] = s.mul(numbers[k], scales[k]);
            }
            numbers
        }
    }
}

/// Four codes of six bits, less 32 each, as signed bytes.
#[inline(always)]
fn less_32(codes: u32) -> u32 {
    // No byte borrows from another: each is at least 0x80 before.
    ((codes | 0x8080_8080) - 0x2020_2020) ^ 0x8080_8080
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
            let (low, high) = (u32::from(*p.add(4 + q)), u32::from(word(p.add(2)) >> (4 * q)));
            let first = low & 15 | (high & 3) << 4;
            let second = low >> 4 | (high >> 2 & 3) << 4;
            let [first, second, _, _] = scaled(s, p, less_32(first | second << 8));
            let codes = p.add(8 + 32 * q);
            let [a, b] = nibbles(s, s.mul(self.0, first), codes);
            let [c, d] = nibbles(s, s.mul(self.0, second), codes.add(16));
            [a, b, c, d]
        }
    }
}
