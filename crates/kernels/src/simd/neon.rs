//! NEON: four registers of 4 lanes for decoding, two for tiles.

mod bytes;
mod codes;
mod groups;

use std::arch::aarch64::*;

use super::{Compiled, Operands, Simd, SimdJob, tile};
use crate::Neon;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read or
        // written are valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}
pub(crate) use allowed;

/// A function of each of four registers.
macro_rules! each {
    ($function:ident, $($a:expr),*) => {
        [
            $function($($a[0]),*),
            $function($($a[1]),*),
            $function($($a[2]),*),
            $function($($a[3]),*),
        ]
    };
}
pub(crate) use each;

/// Four registers of floats.
type F = [float32x4_t; 4];
/// Four registers of 32-bit integers.
type U = [uint32x4_t; 4];
/// Four registers of bytes.
type B = [uint8x16_t; 4];

impl Simd for Neon {
    type T = [float32x4_t; 2];
    const TILE_LANES: usize = 8;
    const TILE_ROWS: usize = ROWS;
    const TILE_TOKENS: usize = 2;
    const IN_REGISTERS: bool = true;
    const SPAN: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        allowed!([vdupq_n_f32(value); 4])
    }
    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::F {
        allowed!([vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))); 4])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        allowed!(each!(vmulq_f32, a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        allowed!(each!(vfmaq_f32, c, a, b))
    }
    #[inline(always)]
    fn float(self, bits: Self::U) -> Self::F {
        allowed!(each!(vreinterpretq_f32_u32, bits))
    }
    #[inline(always)]
    fn lookup(self, table: Self::F, index: Self::U) -> Self::F {
        allowed! {
            let table = uint8x16x4_t(
                vreinterpretq_u8_f32(table[0]),
                vreinterpretq_u8_f32(table[1]),
                vreinterpretq_u8_f32(table[2]),
                vreinterpretq_u8_f32(table[3]),
            );
            let fifteen = vdupq_n_u32(15);
            let four = vdupq_n_u32(0x0404_0404);
            let bytes = vdupq_n_u32(0x0302_0100);
            let mut found = self.splat(0.0);
            for i in 0..4 {
                let index = vmlaq_u32(bytes, vandq_u32(index[i], fifteen), four);
                let number = vqtbl4q_u8(table, vreinterpretq_u8_u32(index));
                found[i] = vreinterpretq_f32_u8(number);
            }
            found
        }
    }
    #[inline(always)]
    fn reduce(self, low: Self::F, high: Self::F) -> f32 {
        allowed! {
            let a = each!(vaddq_f32, low, high);
            let a = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let a = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            vget_lane_f32::<0>(a) + vget_lane_f32::<1>(a)
        }
    }
    #[inline(always)]
    fn splat_u(self, value: u32) -> Self::U {
        allowed!([vdupq_n_u32(value); 4])
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::U) -> Self::U {
        // A variable shift by a constant becomes the immediate form.
        allowed! {
            let n = [vdupq_n_s32(N as i32); 4];
            each!(vshlq_u32, a, n)
        }
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::U) -> Self::U {
        allowed! {
            let n = [vdupq_n_s32(-(N as i32)); 4];
            each!(vshlq_u32, a, n)
        }
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: Self::U) -> Self::U {
        allowed! {
            let n = [vdupq_n_s32(-(N as i32)); 4];
            let a = each!(vreinterpretq_s32_u32, a);
            let a = each!(vshlq_s32, a, n);
            each!(vreinterpretq_u32_s32, a)
        }
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(each!(vandq_u32, a, b))
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(each!(vorrq_u32, a, b))
    }
    #[inline(always)]
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(each!(vaddq_u32, a, b))
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::U {
        allowed!(each!(vreinterpretq_u32_f32, a))
    }
    #[inline(always)]
    fn any(self, a: Self::U) -> bool {
        allowed!(vmaxvq_u32(vorrq_u32(vorrq_u32(a[0], a[1]), vorrq_u32(a[2], a[3]))) != 0)
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        allowed!([vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))])
    }
    #[inline(always)]
    unsafe fn load_u32(self, p: *const u8) -> Self::U {
        allowed! {
            let bytes = load_bytes(p);
            each!(vreinterpretq_u32_u8, bytes)
        }
    }
    #[inline(always)]
    unsafe fn load_u16(self, p: *const u8) -> Self::U {
        allowed! {
            let first = vreinterpretq_u16_u8(vld1q_u8(p));
            let second = vreinterpretq_u16_u8(vld1q_u8(p.add(16)));
            [
                vmovl_u16(vget_low_u16(first)),
                vmovl_high_u16(first),
                vmovl_u16(vget_low_u16(second)),
                vmovl_high_u16(second),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::U {
        allowed!(lanes(vld1q_u8(p)))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::F {
        allowed! {
            let lanes = signed_lanes(vld1q_u8(p));
            each!(vcvtq_f32_s32, lanes)
        }
    }
    #[inline(always)]
    unsafe fn load_s8(self, p: *const u8) -> Self::U {
        allowed! {
            let lanes = signed_lanes(vld1q_u8(p));
            each!(vreinterpretq_u32_s32, lanes)
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        allowed! {
            let first = vreinterpretq_f16_u8(vld1q_u8(p));
            let second = vreinterpretq_f16_u8(vld1q_u8(p.add(16)));
            [
                vcvt_f32_f16(vget_low_f16(first)),
                vcvt_high_f32_f16(first),
                vcvt_f32_f16(vget_low_f16(second)),
                vcvt_high_f32_f16(second),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::U {
        allowed! {
            let low = vld1_u8(p);
            let high = vshr_n_u8::<4>(low);
            lanes(vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high)))
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch of any address has no effect but on caches.
        unsafe {
            std::arch::asm!(
                "prfm pldl1keep, [{p}]",
                p = in(reg) p,
                options(nostack, readonly, preserves_flags),
            );
        }
    }
    #[inline(always)]
    unsafe fn store_slices(self, a: Self::F, p: *mut f32, stride: usize) {
        allowed! {
            self.store_t(p, [a[0], a[1]]);
            self.store_t(p.add(stride), [a[2], a[3]]);
        }
    }
    #[inline(always)]
    unsafe fn load_t(self, p: *const f32) -> Self::T {
        allowed!([vld1q_f32(p), vld1q_f32(p.add(4))])
    }
    #[inline(always)]
    unsafe fn store_t(self, p: *mut f32, a: Self::T) {
        allowed! {
            vst1q_f32(p, a[0]);
            vst1q_f32(p.add(4), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn reduce_slices(self, p: *const f32, stride: usize) -> f32 {
        allowed! {
            let ([a, b], [c, d]) = (self.load_t(p), self.load_t(p.add(stride)));
            let p = p.add(2 * stride);
            let ([e, f], [g, h]) = (self.load_t(p), self.load_t(p.add(stride)));
            self.reduce([a, b, c, d], [e, f, g, h])
        }
    }
    #[inline(always)]
    fn zero_t(self) -> Self::T {
        allowed!([vdupq_n_f32(0.0); 2])
    }
    #[inline(always)]
    fn mul_t(self, a: Self::T, b: Self::T) -> Self::T {
        allowed!([vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])])
    }
    #[inline(always)]
    fn fma_t(self, a: Self::T, b: Self::T, c: Self::T) -> Self::T {
        allowed!([vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn tile(
        self,
        tokens: usize,
        steps: usize,
        operands: Operands,
        acc: *mut f32,
        first: bool,
    ) {
        // SAFETY: by the contract of `tile`.
        unsafe { tiled(self, tokens, steps, operands, acc, first) }
    }
}

impl Compiled for Neon {
    #[inline(never)]
    fn compiled<J: SimdJob<Self>>(self, job: J) {
        job.run(self);
    }
}

/// The lanes of 64 bytes.
///
/// # Safety
///
/// The CPU must have NEON. 64 bytes at `p` must be readable.
#[inline(always)]
pub(crate) unsafe fn load_bytes(p: *const u8) -> B {
    // SAFETY: by this function's contract.
    unsafe { [vld1q_u8(p), vld1q_u8(p.add(16)), vld1q_u8(p.add(32)), vld1q_u8(p.add(48))] }
}

/// Sixteen bytes in lanes of 32 bits.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
unsafe fn lanes(bytes: uint8x16_t) -> U {
    // SAFETY: by this function's contract.
    unsafe {
        let low = vmovl_u8(vget_low_u8(bytes));
        let high = vmovl_high_u8(bytes);
        [
            vmovl_u16(vget_low_u16(low)),
            vmovl_high_u16(low),
            vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high),
        ]
    }
}

/// Sixteen signed bytes in lanes of 32 bits.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
unsafe fn signed_lanes(bytes: uint8x16_t) -> [int32x4_t; 4] {
    // SAFETY: by this function's contract.
    unsafe {
        let bytes = vreinterpretq_s8_u8(bytes);
        let low = vmovl_s8(vget_low_s8(bytes));
        let high = vmovl_high_s8(bytes);
        [
            vmovl_s16(vget_low_s16(low)),
            vmovl_high_s16(low),
            vmovl_s16(vget_low_s16(high)),
            vmovl_high_s16(high),
        ]
    }
}

/// All bits of the bytes whose bit is set.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
pub(crate) unsafe fn spread(bits: u16) -> uint8x16_t {
    // SAFETY: by this function's contract.
    unsafe {
        let both = vreinterpretq_u8_u16(vdupq_n_u16(bits));
        let own = vcombine_u8(vget_low_u8(both), vget_low_u8(both));
        let own = vqtbl1q_u8(own, vcombine_u8(vdup_n_u8(0), vdup_n_u8(1)));
        vtstq_u8(own, vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)))
    }
}

/// Sixteen bf16 numbers from their signs and mantissas, and their exponents.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
pub(crate) unsafe fn halves(bytes: uint8x16_t, exponents: uint8x16_t) -> [uint16x8_t; 2] {
    // SAFETY: by this function's contract.
    unsafe {
        // The upper byte has a sign and all but the lowest bit of an exponent, the lower byte that
        // bit and a mantissa.
        let upper = vsriq_n_u8::<1>(bytes, exponents);
        let lower = vsliq_n_u8::<7>(bytes, exponents);
        words(lower, upper)
    }
}

/// Words of two bytes.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
unsafe fn words(lower: uint8x16_t, upper: uint8x16_t) -> [uint16x8_t; 2] {
    // SAFETY: by this function's contract.
    unsafe {
        [
            vreinterpretq_u16_u8(vzip1q_u8(lower, upper)),
            vreinterpretq_u16_u8(vzip2q_u8(lower, upper)),
        ]
    }
}

/// Numbers of bf16 as f32.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
pub(crate) unsafe fn widened([first, second]: [uint16x8_t; 2]) -> F {
    // SAFETY: by this function's contract.
    unsafe {
        [
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(first))),
            vreinterpretq_f32_u32(vshll_high_n_u16::<16>(first)),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(second))),
            vreinterpretq_f32_u32(vshll_high_n_u16::<16>(second)),
        ]
    }
}

/// 4 rows by 2 tokens: 16 registers of sums hide the latency of four units for multiply-adds.
const ROWS: usize = 4;

#[inline(never)]
unsafe fn tiled(
    s: Neon,
    tokens: usize,
    steps: usize,
    operands: Operands,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: by the contract of `tile`.
    unsafe {
        match tokens {
            1 => tile::<_, ROWS, 1>(s, steps, operands, acc, first),
            _ => tile::<_, ROWS, 2>(s, steps, operands, acc, first),
        }
    }
}
