//! [`Groups`] with AVX2.

use std::arch::x86_64::*;

use super::{Groups, Map};
use crate::Avx2;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

/// The numbers for 32 codes in order: as words of two bytes, then as upper halves of lanes. Few of
/// these instructions are shuffles or shifts, of which the CPU has half as many units.
#[target_feature(enable = "avx2")]
#[inline]
fn looked_up([upper, lower]: [__m256i; 2], codes: __m256i) -> [[__m256; 2]; 2] {
    let own = _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0);
    let codes = _mm256_permutevar8x32_epi32(codes, own);
    let (upper, lower) = (_mm256_shuffle_epi8(upper, codes), _mm256_shuffle_epi8(lower, codes));
    let zero = _mm256_setzero_si256();
    [
        widened(zero, _mm256_unpacklo_epi8(lower, upper)),
        widened(zero, _mm256_unpackhi_epi8(lower, upper)),
    ]
}

/// Words of bf16 as f32.
#[target_feature(enable = "avx2")]
#[inline]
fn widened(zero: __m256i, words: __m256i) -> [__m256; 2] {
    [
        _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, words)),
        _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, words)),
    ]
}

impl Groups for Avx2 {
    type F = [__m256; 2];
    type U = [__m256i; 2];
    /// The upper and the lower bytes of bf16 numbers, twice.
    type Sixteen = [__m256i; 2];

    #[inline(always)]
    fn halves_f16(self, bits: [u16; 2]) -> Self::F {
        allowed! {
            [
                _mm256_cvtph_ps(_mm_set1_epi16(bits[0] as i16)),
                _mm256_cvtph_ps(_mm_set1_epi16(bits[1] as i16)),
            ]
        }
    }
    #[inline(always)]
    fn times_bytes(self, a: Self::F, [low, high]: [u64; 2]) -> Self::F {
        allowed! {
            let low = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(low as i64));
            let high = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(high as i64));
            [
                _mm256_mul_ps(a[0], _mm256_cvtepi32_ps(low)),
                _mm256_mul_ps(a[1], _mm256_cvtepi32_ps(high)),
            ]
        }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        allowed!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn integers(self, a: Self::U) -> Self::F {
        allowed!([_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])])
    }
    #[inline(always)]
    fn sub_u(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!([_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn numbers(self, a: Self::B) -> [Self::F; 4] {
        let zero = allowed!(_mm256_setzero_si256());
        let mut numbers = [[allowed!(_mm256_setzero_ps()); 2]; 4];
        for half in 0..2 {
            allowed! {
                // Each half of the register gets four bytes of every eight.
                let own = _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0);
                let a = _mm256_permutevar8x32_epi32(a[half], own);
                let (low, high) = (_mm256_unpacklo_epi8(zero, a), _mm256_unpackhi_epi8(zero, a));
                numbers[2 * half] = [
                    _mm256_cvtepi32_ps(_mm256_unpacklo_epi16(zero, low)),
                    _mm256_cvtepi32_ps(_mm256_unpackhi_epi16(zero, low)),
                ];
                numbers[2 * half + 1] = [
                    _mm256_cvtepi32_ps(_mm256_unpacklo_epi16(zero, high)),
                    _mm256_cvtepi32_ps(_mm256_unpackhi_epi16(zero, high)),
                ];
            }
        }
        numbers
    }
    #[inline(always)]
    fn sixteen(self, numbers: &[f32; 16]) -> Self::Sixteen {
        let mut bytes = [[0u8; 16]; 2];
        for i in 0..16 {
            [bytes[0][i], bytes[1][i], _, _] = numbers[i].to_bits().to_be_bytes();
        }
        allowed! {
            [
                _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes[0].as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes[1].as_ptr().cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn halves<M: Map<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        allowed! {
            let (codes, fifteen) = (_mm_loadu_si128(p.cast()), _mm_set1_epi8(15));
            let low = _mm_and_si128(codes, fifteen);
            let high = _mm_and_si128(_mm_srli_epi16(codes, 4), fifteen);
            let [low, high] = looked_up(numbers, _mm256_set_m128i(high, low));
            [maps[0].of(self, low), maps[1].of(self, high)]
        }
    }
    #[inline(always)]
    unsafe fn pairs<M: Map<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        allowed! {
            let (codes, fifteen) = (_mm_loadu_si128(p.cast()), _mm_set1_epi8(15));
            let low = _mm_and_si128(codes, fifteen);
            let high = _mm_and_si128(_mm_srli_epi16(codes, 4), fifteen);
            let (first, second) = (_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high));
            let [first, second] = looked_up(numbers, _mm256_set_m128i(second, first));
            [maps[0].of(self, first), maps[1].of(self, second)]
        }
    }
    #[inline(always)]
    unsafe fn words<M: Map<Self>>(
        self,
        numbers: Self::Sixteen,
        map: M,
        p: *const u8,
    ) -> [Self::F; 4] {
        let mut weights = [[allowed!(_mm256_setzero_ps()); 2]; 4];
        allowed! {
            // Each half of the register gets four words of every eight.
            let words = _mm256_permute4x64_epi64::<0xd8>(_mm256_loadu_si256(p.cast()));
            let fifteen = _mm256_set1_epi8(15);
            let nibbles = [
                _mm256_and_si256(words, fifteen),
                _mm256_and_si256(_mm256_srli_epi16(words, 4), fifteen),
            ];
            let (zero, byte) = (_mm256_setzero_si256(), _mm256_set1_epi16(0xff));
            for odd in 0..2 {
                // The codes of two quarters, in the lower bytes of words and in the upper.
                let upper = _mm256_shuffle_epi8(numbers[0], nibbles[odd]);
                let lower = _mm256_shuffle_epi8(numbers[1], nibbles[odd]);
                let first =
                    _mm256_or_si256(_mm256_slli_epi16(upper, 8), _mm256_and_si256(lower, byte));
                let second =
                    _mm256_or_si256(_mm256_andnot_si256(byte, upper), _mm256_srli_epi16(lower, 8));
                weights[odd] = map.of(self, widened(zero, first));
                weights[2 + odd] = map.of(self, widened(zero, second));
            }
        }
        weights
    }
    #[inline(always)]
    unsafe fn gather(self, p: *const u8, last: usize, index: Self::U) -> Self::U {
        allowed! {
            let last = _mm256_set1_epi32(last as i32);
            [
                _mm256_i32gather_epi32::<4>(p.cast(), _mm256_min_epu32(index[0], last)),
                _mm256_i32gather_epi32::<4>(p.cast(), _mm256_min_epu32(index[1], last)),
            ]
        }
    }
}
