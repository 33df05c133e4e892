//! [`Groups`] with AVX-512.

use std::arch::x86_64::*;

use super::{Groups, ScaleMap};
use crate::Avx512;
use crate::simd::Simd;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

impl Groups for Avx512 {
    type F = __m512;
    type U = __m512i;
    type Sixteen = __m512;

    #[inline(always)]
    fn halves_f16(self, bits: [u16; 2]) -> Self::F {
        allowed! {
            let first = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_set1_epi16(bits[0] as i16)));
            _mm512_insertf32x8::<1>(first, _mm256_cvtph_ps(_mm_set1_epi16(bits[1] as i16)))
        }
    }
    #[inline(always)]
    fn times_bytes(self, a: Self::F, [low, high]: [u64; 2]) -> Self::F {
        allowed! {
            let bytes = _mm_set_epi64x(high as i64, low as i64);
            _mm512_mul_ps(a, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
        }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        allowed!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn integers(self, a: Self::U) -> Self::F {
        allowed!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn sub_u(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn sixteen(self, numbers: &[f32; 16]) -> Self::Sixteen {
        allowed!(_mm512_loadu_ps(numbers.as_ptr()))
    }
    #[inline(always)]
    unsafe fn halves<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        allowed! {
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            [
                _mm512_permutexvar_ps(codes, maps[0].of(self, numbers)),
                _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), maps[1].of(self, numbers)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn pairs<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        allowed! {
            [
                _mm512_permutexvar_ps(self.load_nibbles(p), maps[0].of(self, numbers)),
                _mm512_permutexvar_ps(self.load_nibbles(p.add(8)), maps[1].of(self, numbers)),
            ]
        }
    }
    /// In registers where there are at most 64, which a gather takes ten times as long for.
    #[inline(always)]
    unsafe fn gather(self, p: *const u8, last: usize, mut index: [Self::U; 4]) -> [Self::U; 4] {
        allowed! {
            for k in 0..4 {
                index[k] = _mm512_min_epu32(index[k], _mm512_set1_epi32(last as i32));
            }
            // Sixteen numbers, or those that there are.
            let some = |first: usize| ((1u32 << (last + 1 - first).min(16)) as u16).wrapping_sub(1);
            if last < 16 {
                let table = _mm512_maskz_loadu_epi32(some(0), p.cast());
                for k in 0..4 {
                    index[k] = _mm512_permutexvar_epi32(index[k], table);
                }
            } else if last < 32 {
                let first = _mm512_loadu_epi32(p.cast());
                let second = _mm512_maskz_loadu_epi32(some(16), p.add(64).cast());
                for k in 0..4 {
                    index[k] = _mm512_permutex2var_epi32(first, index[k], second);
                }
            } else if last < 64 {
                let first = _mm512_loadu_epi32(p.cast());
                let second = _mm512_loadu_epi32(p.add(64).cast());
                let third = _mm512_maskz_loadu_epi32(some(32), p.add(128).cast());
                let fourth = if last < 48 { 0 } else { some(48) };
                let fourth = _mm512_maskz_loadu_epi32(fourth, p.add(192).cast());
                for k in 0..4 {
                    let low = _mm512_permutex2var_epi32(first, index[k], second);
                    let high = _mm512_permutex2var_epi32(third, index[k], fourth);
                    let is_high = _mm512_test_epi32_mask(index[k], _mm512_set1_epi32(32));
                    index[k] = _mm512_mask_blend_epi32(is_high, low, high);
                }
            } else {
                for k in 0..4 {
                    index[k] = _mm512_i32gather_epi32::<4>(index[k], p.cast());
                }
            }
        }
        index
    }
}
