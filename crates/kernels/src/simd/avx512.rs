//! AVX-512: one register of 16 lanes.

use std::arch::x86_64::*;

use super::{Compiled, Operands, Simd, SimdJob, tile};
use crate::Avx512;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read or
        // written are valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

impl Simd for Avx512 {
    type T = __m512;
    const TILE_LANES: usize = 16;
    const TILE_ROWS: usize = ROWS;
    const TILE_TOKENS: usize = 4;
    const IN_REGISTERS: bool = true;
    const SPAN: usize = 1;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        allowed!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::F {
        allowed!(_mm512_cvtph_ps(_mm256_set1_epi16(bits as i16)))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        allowed!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        allowed!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn float(self, bits: Self::U) -> Self::F {
        allowed!(_mm512_castsi512_ps(bits))
    }
    #[inline(always)]
    fn lookup(self, table: Self::F, index: Self::U) -> Self::F {
        allowed!(_mm512_permutexvar_ps(index, table))
    }
    #[inline(always)]
    fn reduce(self, low: Self::F, high: Self::F) -> f32 {
        allowed! {
            let a = _mm512_add_ps(low, high);
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    fn splat_u(self, value: u32) -> Self::U {
        allowed!(_mm512_set1_epi32(value as i32))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::U) -> Self::U {
        allowed!(_mm512_slli_epi32(a, N))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::U) -> Self::U {
        allowed!(_mm512_srli_epi32(a, N))
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: Self::U) -> Self::U {
        allowed!(_mm512_srai_epi32(a, N))
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::U {
        allowed!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn any(self, a: Self::U) -> bool {
        allowed!(_mm512_test_epi32_mask(a, a) != 0)
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        allowed!(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_u32(self, p: *const u8) -> Self::U {
        allowed!(_mm512_loadu_epi32(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_u16(self, p: *const u8) -> Self::U {
        allowed!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::U {
        allowed!(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::F {
        allowed!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_s8(self, p: *const u8) -> Self::U {
        allowed!(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        allowed!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::U {
        allowed! {
            let both = _mm512_set1_epi64(p.cast::<i64>().read_unaligned());
            // Each lane takes the byte it needs from the copy of all eight in its own quarter.
            let own = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
            let bytes = _mm512_shuffle_epi8(both, own);
            let high = _mm512_set_epi32(4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0);
            _mm512_srlv_epi32(bytes, high)
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        allowed!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_slices(self, a: Self::F, p: *mut f32, _: usize) {
        allowed!(_mm512_storeu_ps(p, a))
    }
    #[inline(always)]
    unsafe fn load_t(self, p: *const f32) -> Self::T {
        allowed!(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store_t(self, p: *mut f32, a: Self::T) {
        allowed!(_mm512_storeu_ps(p, a))
    }
    #[inline(always)]
    unsafe fn reduce_slices(self, p: *const f32, stride: usize) -> f32 {
        allowed!(self.reduce(self.load(p), self.load(p.add(stride))))
    }
    #[inline(always)]
    fn zero_t(self) -> Self::T {
        allowed!(_mm512_setzero_ps())
    }
    #[inline(always)]
    fn mul_t(self, a: Self::T, b: Self::T) -> Self::T {
        self.mul(a, b)
    }
    #[inline(always)]
    fn fma_t(self, a: Self::T, b: Self::T, c: Self::T) -> Self::T {
        self.fma(a, b, c)
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
        allowed!(tile512(self, tokens, steps, operands, acc, first))
    }
}

impl Compiled for Avx512 {
    #[inline(always)]
    fn compiled<J: SimdJob<Self>>(self, job: J) {
        allowed!(compiled512(self, job))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline(never)]
fn compiled512<J: SimdJob<Avx512>>(s: Avx512, job: J) {
    job.run(s);
}

/// 6 rows by 4 tokens: 24 sums, 4 tokens and a row take 29 of 32 registers. 7 by 4 spills and ran
/// 5 % slower; 8 by 3 was as fast.
const ROWS: usize = 6;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline(never)]
unsafe fn tile512(
    s: Avx512,
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
            2 => tile::<_, ROWS, 2>(s, steps, operands, acc, first),
            3 => tile::<_, ROWS, 3>(s, steps, operands, acc, first),
            _ => tile::<_, ROWS, 4>(s, steps, operands, acc, first),
        }
    }
}
