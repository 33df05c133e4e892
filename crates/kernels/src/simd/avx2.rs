//! AVX2: two registers of 8 lanes for decoding, one for tiles.

use std::arch::x86_64::*;

use super::{Compiled, Operands, Simd, SimdJob, tile};
use crate::Avx2;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read or
        // written are valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

impl Simd for Avx2 {
    type T = __m256;
    const TILE_LANES: usize = 8;
    const TILE_ROWS: usize = ROWS;
    const TILE_TOKENS: usize = 3;
    const IN_REGISTERS: bool = true;
    const SPAN: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        allowed!([_mm256_set1_ps(value); 2])
    }
    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::F {
        allowed!([_mm256_cvtph_ps(_mm_set1_epi16(bits as i16)); 2])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        allowed!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        allowed!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn float(self, bits: Self::U) -> Self::F {
        allowed!([_mm256_castsi256_ps(bits[0]), _mm256_castsi256_ps(bits[1])])
    }
    #[inline(always)]
    fn lookup(self, table: Self::F, index: Self::U) -> Self::F {
        let upper = self.float(self.shl::<28>(index));
        let mut found = [table[0]; 2];
        for i in 0..2 {
            allowed! {
                let low = _mm256_permutevar8x32_ps(table[0], index[i]);
                let high = _mm256_permutevar8x32_ps(table[1], index[i]);
                found[i] = _mm256_blendv_ps(low, high, upper[i]);
            }
        }
        found
    }
    #[inline(always)]
    fn reduce(self, low: Self::F, high: Self::F) -> f32 {
        allowed! {
            let a = [_mm256_add_ps(low[0], high[0]), _mm256_add_ps(low[1], high[1])];
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    fn splat_u(self, value: u32) -> Self::U {
        allowed!([_mm256_set1_epi32(value as i32); 2])
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::U) -> Self::U {
        // A variable shift by a constant becomes the immediate form.
        allowed! {
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_sll_epi32(a[0], n), _mm256_sll_epi32(a[1], n)]
        }
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::U) -> Self::U {
        allowed! {
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_srl_epi32(a[0], n), _mm256_srl_epi32(a[1], n)]
        }
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: Self::U) -> Self::U {
        allowed! {
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_sra_epi32(a[0], n), _mm256_sra_epi32(a[1], n)]
        }
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!([_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])])
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!([_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])])
    }
    #[inline(always)]
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!([_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::U {
        allowed!([_mm256_castps_si256(a[0]), _mm256_castps_si256(a[1])])
    }
    #[inline(always)]
    fn any(self, a: Self::U) -> bool {
        allowed! {
            let all = _mm256_or_si256(a[0], a[1]);
            _mm256_testz_si256(all, all) == 0
        }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        allowed!([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
    }
    #[inline(always)]
    unsafe fn load_u32(self, p: *const u8) -> Self::U {
        allowed!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())])
    }
    #[inline(always)]
    unsafe fn load_u16(self, p: *const u8) -> Self::U {
        allowed! {
            [
                _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::U {
        allowed! {
            [
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::F {
        allowed! {
            let both = self.load_s8(p);
            [_mm256_cvtepi32_ps(both[0]), _mm256_cvtepi32_ps(both[1])]
        }
    }
    #[inline(always)]
    unsafe fn load_s8(self, p: *const u8) -> Self::U {
        allowed! {
            [
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        allowed! {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::U {
        allowed! {
            let shifts = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
            let [first, second] = p.cast::<[i32; 2]>().read_unaligned();
            [
                _mm256_srlv_epi32(_mm256_set1_epi32(first), shifts),
                _mm256_srlv_epi32(_mm256_set1_epi32(second), shifts),
            ]
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        allowed!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_slices(self, a: Self::F, p: *mut f32, stride: usize) {
        allowed! {
            _mm256_storeu_ps(p, a[0]);
            _mm256_storeu_ps(p.add(stride), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_t(self, p: *const f32) -> Self::T {
        allowed!(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store_t(self, p: *mut f32, a: Self::T) {
        allowed!(_mm256_storeu_ps(p, a))
    }
    #[inline(always)]
    unsafe fn reduce_slices(self, p: *const f32, stride: usize) -> f32 {
        allowed! {
            let low = [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(stride))];
            let p = p.add(2 * stride);
            self.reduce(low, [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(stride))])
        }
    }
    #[inline(always)]
    fn zero_t(self) -> Self::T {
        allowed!(_mm256_setzero_ps())
    }
    #[inline(always)]
    fn mul_t(self, a: Self::T, b: Self::T) -> Self::T {
        allowed!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma_t(self, a: Self::T, b: Self::T, c: Self::T) -> Self::T {
        allowed!(_mm256_fmadd_ps(a, b, c))
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
        allowed!(tile256(self, tokens, steps, operands, acc, first))
    }
}

impl Compiled for Avx2 {
    #[inline(always)]
    fn compiled<J: SimdJob<Self>>(self, job: J) {
        allowed!(compiled256(self, job))
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline(never)]
fn compiled256<J: SimdJob<Avx2>>(s: Avx2, job: J) {
    job.run(s);
}

/// 4 rows by 3 tokens: 12 sums, 3 tokens and a row fill the 16 registers.
const ROWS: usize = 4;

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline(never)]
unsafe fn tile256(
    s: Avx2,
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
            _ => tile::<_, ROWS, 3>(s, steps, operands, acc, first),
        }
    }
}
