//! Portable implementation, on arrays that the compiler can vectorise.
//!
//! What takes more than an instruction is a function of its own: where this tier runs, a fused
//! multiply-add is a call for each number, and inlined code was 1 MB of the program.

use std::array::from_fn;

use super::{Compiled, Operands, Simd, SimdJob, tile};
use crate::scalar::{f16_to_f32, fma, reduce};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// # Safety
///
/// `N` bytes at `p` must be readable.
unsafe fn read<const N: usize>(p: *const u8) -> [u8; N] {
    // SAFETY: by this function's contract.
    unsafe { p.cast::<[u8; N]>().read_unaligned() }
}

impl Simd for Portable {
    type T = [f32; 8];
    const TILE_LANES: usize = 8;
    const TILE_ROWS: usize = 4;
    const TILE_TOKENS: usize = 2;
    const IN_REGISTERS: bool = false;
    const SPAN: usize = 1;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; 16]
    }
    #[inline(never)]
    fn splat_f16(self, bits: u16) -> Self::F {
        [f16_to_f32(bits); 16]
    }
    #[inline(never)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(never)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| fma(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn float(self, bits: Self::U) -> Self::F {
        bits.map(f32::from_bits)
    }
    #[inline(never)]
    fn lookup(self, table: Self::F, index: Self::U) -> Self::F {
        index.map(|i| table[(i & 15) as usize])
    }
    #[inline(never)]
    fn reduce(self, low: Self::F, high: Self::F) -> f32 {
        reduce(from_fn(|i| if i < 16 { low[i] } else { high[i - 16] }))
    }
    #[inline(always)]
    fn splat_u(self, value: u32) -> Self::U {
        [value; 16]
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::U) -> Self::U {
        a.map(|a| a << N)
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::U) -> Self::U {
        a.map(|a| a >> N)
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: Self::U) -> Self::U {
        a.map(|a| (a as i32 >> N) as u32)
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::U {
        a.map(f32::to_bits)
    }
    #[inline(always)]
    fn any(self, a: Self::U) -> bool {
        a.iter().fold(0, |all, a| all | a) != 0
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn load_u32(self, p: *const u8) -> Self::U {
        // SAFETY: by the contract of the trait.
        let bytes: [u8; 64] = unsafe { read(p) };
        from_fn(|i| u32::from_le_bytes(from_fn(|k| bytes[4 * i + k])))
    }
    #[inline(never)]
    unsafe fn load_u16(self, p: *const u8) -> Self::U {
        // SAFETY: by the contract of the trait.
        let bytes: [u8; 32] = unsafe { read(p) };
        from_fn(|i| u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::U {
        // SAFETY: by the contract of the trait.
        unsafe { read::<16>(p) }.map(u32::from)
    }
    #[inline(never)]
    unsafe fn load_i8(self, p: *const u8) -> Self::F {
        // SAFETY: by the contract of the trait.
        unsafe { read::<16>(p) }.map(|b| f32::from(b as i8))
    }
    #[inline(never)]
    unsafe fn load_s8(self, p: *const u8) -> Self::U {
        // SAFETY: by the contract of the trait.
        unsafe { read::<16>(p) }.map(|b| b as i8 as u32)
    }
    #[inline(never)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        // SAFETY: by the contract of the trait.
        unsafe { self.load_u16(p) }.map(|b| f16_to_f32(b as u16))
    }
    #[inline(never)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::U {
        // SAFETY: by the contract of the trait.
        let bytes: [u8; 8] = unsafe { read(p) };
        from_fn(|i| u32::from(bytes[i / 2] >> (4 * (i % 2))))
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    #[inline(always)]
    unsafe fn store_slices(self, a: Self::F, p: *mut f32, stride: usize) {
        let [low, high]: [Self::T; 2] = from_fn(|half| from_fn(|i| a[8 * half + i]));
        // SAFETY: by the contract of the trait.
        unsafe {
            self.store_t(p, low);
            self.store_t(p.add(stride), high);
        }
    }
    #[inline(always)]
    unsafe fn load_t(self, p: *const f32) -> Self::T {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::T>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_t(self, p: *mut f32, a: Self::T) {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::T>().write_unaligned(a) }
    }
    #[inline(never)]
    unsafe fn reduce_slices(self, p: *const f32, stride: usize) -> f32 {
        // SAFETY: by the contract of the trait.
        let slice = |i: usize| unsafe { self.load_t(p.add(i * stride)) };
        let slices = [slice(0), slice(1), slice(2), slice(3)];
        reduce(from_fn(|i| slices[i / 8][i % 8]))
    }
    #[inline(always)]
    fn zero_t(self) -> Self::T {
        [0.0; 8]
    }
    #[inline(always)]
    fn mul_t(self, a: Self::T, b: Self::T) -> Self::T {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(never)]
    fn fma_t(self, a: Self::T, b: Self::T, c: Self::T) -> Self::T {
        from_fn(|i| fma(a[i], b[i], c[i]))
    }
    unsafe fn tile(
        self,
        tokens: usize,
        steps: usize,
        operands: Operands,
        acc: *mut f32,
        first: bool,
    ) {
        // SAFETY: by the contract of `tile`.
        unsafe {
            match tokens {
                1 => tile::<_, 4, 1>(self, steps, operands, acc, first),
                _ => tile::<_, 4, 2>(self, steps, operands, acc, first),
            }
        }
    }
}

impl Compiled for Portable {
    #[inline(never)]
    fn compiled<J: SimdJob<Self>>(self, job: J) {
        job.run(self);
    }
}
