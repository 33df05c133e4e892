//! The formats of GGUF files with blocks of 256 columns. A quarter of one is decoded at a time.

use std::sync::atomic::{Ordering, compiler_fence};

use super::gguf::{TO_15, load, word};
use super::{Cursor, Decoder, Take, Times, TimesPlus, in_memory};
use crate::reference::IQ4;
use crate::simd::{Simd, UNIT};
use crate::{Encoding, GgufBlocks, Matrix};

/// Decoder of a format from the quarters of its blocks.
pub(in crate::matmul) trait Quarter<S: Simd>: Copy {
    const FORMAT: GgufBlocks;
    /// What the quarters of a block share: its scales.
    type Shared: Copy;

    fn new(s: S) -> Self;

    /// Decodes what the quarters of the block at `p` share.
    ///
    /// # Safety
    ///
    /// The bytes of a block must be readable at `p`.
    unsafe fn shared(self, s: S, p: *const u8) -> Self::Shared;

    /// Decodes columns `64·q` to `64·q + 63` of the block at `p`, in order.
    ///
    /// # Safety
    ///
    /// The bytes of a block must be readable at `p`, and `q` must be below four.
    unsafe fn quarter(self, s: S, shared: &Self::Shared, p: *const u8, q: usize) -> [S::F; 4];
}

/// [`Decoder`] of such quarters.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Quarters<Q>(Q);

impl<S: Simd, Q: Quarter<S>> Decoder<S> for Quarters<Q> {
    const ENCODING: Encoding = Encoding::Gguf(Q::FORMAT);
    const BYTES: usize = Q::FORMAT.bytes().div_ceil(4);
    const ROWS: usize = 4;
    const SPAN: usize = 4;
    type Shared = Q::Shared;

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Quarters(Q::new(s))
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait. A row has whole blocks of 256 columns.
        unsafe {
            let p = at.codes.add(Q::FORMAT.bytes() * (b / 4));
            self.0.quarter(s, &self.0.shared(s, p), p, b % 4)
        }
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, at: &Cursor, b: usize) -> Q::Shared {
        // SAFETY: as above.
        unsafe { self.0.shared(s, at.codes.add(Q::FORMAT.bytes() * (b / 4))) }
    }
    #[inline(always)]
    unsafe fn span(
        self,
        s: S,
        at: &mut Cursor,
        b: usize,
        shared: &Q::Shared,
        to: &mut impl Take<S>,
    ) {
        // SAFETY: as above.
        unsafe {
            let p = at.codes.add(Q::FORMAT.bytes() * (b / 4));
            // No loop: it was not unrolled, and shifts by its variable took twice the time.
            to.take(s, 0, self.0.quarter(s, shared, p, 0));
            apart::<S>();
            to.take(s, 1, self.0.quarter(s, shared, p, 1));
            apart::<S>();
            to.take(s, 2, self.0.quarter(s, shared, p, 2));
            apart::<S>();
            to.take(s, 3, self.0.quarter(s, shared, p, 3));
        }
    }
}

/// Keeps the compiler from decoding the next quarter before the sums of this one where there are registers
/// for one quarter only: it kept all numbers of four in memory, and Q4_K took 4.5 ns instead of 3.8 for 64
/// weights.
#[inline(always)]
fn apart<S: Simd>() {
    if S::SPAN > 1 {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Four bytes as one number.
///
/// # Safety
///
/// They must be readable.
#[inline(always)]
pub(super) unsafe fn four(p: *const u8) -> u32 {
    // SAFETY: by this function's contract.
    u32::from_le(unsafe { p.cast::<u32>().read_unaligned() })
}

/// Eight bytes as one number.
///
/// # Safety
///
/// They must be readable.
#[inline(always)]
pub(super) unsafe fn eight(p: *const u8) -> u64 {
    // SAFETY: by this function's contract.
    u64::from_le(unsafe { p.cast::<u64>().read_unaligned() })
}

/// An f16 scale at `p` times each of these signed bytes.
///
/// # Safety
///
/// Two bytes must be readable at `p`.
#[inline(always)]
pub(super) unsafe fn scaled<S: Simd>(s: S, p: *const u8, bytes: [u64; 2]) -> S::F {
    // SAFETY: by this function's contract.
    s.times_bytes(s.splat_f16(unsafe { word(p) }), bytes)
}

/// As [`scaled`], with the other sign.
///
/// # Safety
///
/// As for [`scaled`].
#[inline(always)]
pub(super) unsafe fn negated<S: Simd>(s: S, p: *const u8, bytes: [u64; 2]) -> S::F {
    // SAFETY: by this function's contract.
    s.times_bytes(s.splat_f16(unsafe { word(p) } ^ 0x8000), bytes)
}

/// The scales of eight groups in the first lanes, and their minima with the other sign in the rest,
/// of a block that begins with an f16 number for each and six bits for each of the groups.
///
/// # Safety
///
/// 16 bytes must be readable at `p`.
#[inline(always)]
unsafe fn scales_and_minima<S: Simd>(s: S, p: *const u8) -> S::F {
    // SAFETY: by this function's contract.
    unsafe {
        let (scales, minima, rest) = (four(p.add(4)), four(p.add(8)), four(p.add(12)));
        let [low_scales, low_minima] = [scales & 0x3f3f_3f3f, minima & 0x3f3f_3f3f];
        let high_scales = rest & 0x0f0f_0f0f | scales >> 2 & 0x3030_3030;
        let high_minima = rest >> 4 & 0x0f0f_0f0f | minima >> 2 & 0x3030_3030;
        let bytes = [both(low_scales, high_scales), both(low_minima, high_minima)];
        s.times_bytes(s.halves_f16([word(p), word(p.add(2)) ^ 0x8000]), bytes)
    }
}

#[inline(always)]
pub(super) fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q4K<S: Simd>(S::Sixteen);

impl<S: Simd> Quarter<S> for Q4K<S> {
    const FORMAT: GgufBlocks = GgufBlocks::Q4K;
    /// Scales, then minima.
    type Shared = [f32; 16];

    #[inline(always)]
    fn new(s: S) -> Self {
        Q4K(s.sixteen(&TO_15))
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, p: *const u8) -> [f32; 16] {
        // SAFETY: by the contract of the trait.
        in_memory(s, unsafe { scales_and_minima(s, p) })
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, shared: &[f32; 16], p: *const u8, q: usize) -> [S::F; 4] {
        let maps = [
            TimesPlus(s.splat(shared[2 * q]), s.splat(shared[8 + 2 * q])),
            TimesPlus(s.splat(shared[2 * q + 1]), s.splat(shared[9 + 2 * q])),
        ];
        // SAFETY: by the contract of the trait.
        unsafe {
            let codes = p.add(16 + 32 * q);
            let [a, c] = s.halves(self.0, maps, codes);
            let [b, d] = s.halves(self.0, maps, codes.add(16));
            [a, b, c, d]
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q5K;

impl<S: Simd> Quarter<S> for Q5K {
    const FORMAT: GgufBlocks = GgufBlocks::Q5K;
    /// Scales, then minima; and the fifth bits of all quarters.
    type Shared = ([f32; 16], S::B);

    #[inline(always)]
    fn new(_: S) -> Self {
        Q5K
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, p: *const u8) -> Self::Shared {
        const UNITS: [f32; 16] = {
            let mut units = [1.0; 16];
            let mut i = 0;
            while i < 8 {
                units[i] = UNIT;
                i += 1;
            }
            units
        };
        // SAFETY: by the contract of the trait.
        unsafe {
            let groups = s.mul(scales_and_minima(s, p), load(s, &UNITS));
            (in_memory(s, groups), s.load_b_shifted(p.add(16), [0, 0]))
        }
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, shared: &Self::Shared, p: *const u8, q: usize) -> [S::F; 4] {
        let (groups, fifths) = shared;
        // SAFETY: by the contract of the trait.
        let codes = unsafe { s.and_b(s.load_b_shifted(p.add(48 + 32 * q), [0, 4]), 15) };
        let mut numbers = s.numbers(s.add_tested(codes, *fifths, [1 << (2 * q), 2 << (2 * q)], 16));
        for half in 0..2 {
            let scale = s.splat(groups[2 * q + half]);
            let minimum = s.splat(groups[8 + 2 * q + half]);
            for k in 2 * half..2 * half + 2 {
                numbers[k] = s.fma(numbers[k], scale, minimum);
            }
        }
        numbers
    }
}

/// Numbers of 16 columns each, times their scales, of which those of this quarter begin at `4·q`.
#[inline(always)]
pub(super) fn times<S: Simd>(
    s: S,
    mut numbers: [S::F; 4],
    scales: &[f32; 16],
    q: usize,
) -> [S::F; 4] {
    for k in 0..4 {
        numbers[k] = s.mul(numbers[k], s.splat(scales[4 * q + k]));
    }
    numbers
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q6K;

impl<S: Simd> Quarter<S> for Q6K {
    const FORMAT: GgufBlocks = GgufBlocks::Q6K;
    type Shared = [f32; 16];

    #[inline(always)]
    fn new(_: S) -> Self {
        Q6K
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, p: *const u8) -> [f32; 16] {
        // SAFETY: by the contract of the trait.
        let scales = unsafe { scaled(s, p.add(208), [eight(p.add(192)), eight(p.add(200))]) };
        in_memory(s, s.mul(scales, s.splat(UNIT)))
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, shared: &[f32; 16], p: *const u8, q: usize) -> [S::F; 4] {
        let (half, odd) = (q / 2, 4 * (q % 2) as u32);
        // SAFETY: by the contract of the trait.
        unsafe {
            let low = s.and_b(s.shr_b(s.load_b(p.add(64 * half)), odd), 15);
            let high = s.and_b(s.load_b_shifted(p.add(128 + 32 * half), [odd, odd + 2]), 3);
            let codes = s.or_b(low, s.shl4_b(high));
            times(s, s.numbers(s.add_b(codes, -32i8 as u8)), shared, q)
        }
    }
}

/// Eight codes of six bits, less 32 each, as signed bytes.
#[inline(always)]
pub(super) fn less_32(codes: u64) -> u64 {
    // No byte borrows from another: each is at least 0x80 before.
    const TOP: u64 = 0x8080_8080_8080_8080;
    ((codes | TOP) - 0x2020_2020_2020_2020) ^ TOP
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Iq4Xs<S: Simd>(S::Sixteen);

impl<S: Simd> Quarter<S> for Iq4Xs<S> {
    const FORMAT: GgufBlocks = GgufBlocks::Iq4Xs;
    /// Eight scales.
    type Shared = [f32; 16];

    #[inline(always)]
    fn new(s: S) -> Self {
        Iq4Xs(s.sixteen(&IQ4))
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, p: *const u8) -> [f32; 16] {
        // SAFETY: by the contract of the trait.
        let (low, high) = unsafe { (u64::from(four(p.add(4))), u64::from(word(p.add(2)))) };
        // Eight times four bits, and eight times two, each in a byte of its own.
        let low = (low | low << 16) & 0x0000_ffff_0000_ffff;
        let low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
        let low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        let high = (high | high << 24) & 0x0000_00ff_0000_00ff;
        let high = (high | high << 12) & 0x000f_000f_000f_000f;
        let high = (high | high << 6) & 0x0303_0303_0303_0303;
        // SAFETY: by the contract of the trait.
        in_memory(s, unsafe { scaled(s, p, [less_32(low | high << 4), 0]) })
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, shared: &[f32; 16], p: *const u8, q: usize) -> [S::F; 4] {
        let maps = [Times(s.splat(shared[2 * q])), Times(s.splat(shared[2 * q + 1]))];
        // SAFETY: by the contract of the trait.
        unsafe {
            let codes = p.add(8 + 32 * q);
            let [a, b] = s.halves(self.0, [maps[0]; 2], codes);
            let [c, d] = s.halves(self.0, [maps[1]; 2], codes.add(16));
            [a, b, c, d]
        }
    }
}
