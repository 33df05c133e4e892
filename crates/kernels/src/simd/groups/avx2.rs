//! [`Groups`] with AVX2.

use std::arch::x86_64::*;

use super::{Groups, ScaleMap, bf16s};
use crate::Avx2;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

/// A register of bytes, of which both halves are given.
#[target_feature(enable = "avx2")]
#[inline]
fn register(low: [i8; 16], high: [i8; 16]) -> __m256i {
    // SAFETY: 16 bytes each.
    unsafe {
        let [low, high] = [low.as_ptr().cast(), high.as_ptr().cast()];
        _mm256_set_m128i(_mm_loadu_si128(high), _mm_loadu_si128(low))
    }
}

/// 16 bytes, twice.
///
/// # Safety
///
/// They must be readable.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn twice(p: *const u8) -> __m256i {
    // SAFETY: by this function's contract.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(p.cast()) })
}

/// The numbers for codes whose order is such that those of 16 columns after another come out, twice:
/// as words of two bytes, then as upper halves of lanes. The upper bytes of numbers come first.
#[target_feature(enable = "avx2")]
#[inline]
fn looked_up([upper, lower]: [__m256i; 2], codes: __m256i) -> [[__m256; 2]; 2] {
    let upper = _mm256_shuffle_epi8(upper, codes);
    let lower = _mm256_shuffle_epi8(lower, codes);
    let zero = _mm256_setzero_si256();
    [
        widened(zero, _mm256_unpacklo_epi8(lower, upper)),
        widened(zero, _mm256_unpackhi_epi8(lower, upper)),
    ]
}

/// The mapped numbers for codes in the order of [`looked_up`].
#[inline(always)]
fn mapped<M: ScaleMap<Avx2>>(
    s: Avx2,
    numbers: [__m256i; 2],
    maps: [M; 2],
    codes: __m256i,
) -> [[__m256; 2]; 2] {
    allowed! {
        if let (Some(first), Some(second)) = (maps[0].kept(), maps[1].kept())
            && std::ptr::eq(first, second)
        {
            return looked_up([twice(first[0].as_ptr()), twice(first[1].as_ptr())], codes);
        }
        let [first, second] = looked_up(numbers, codes);
        [maps[0].of(s, first), maps[1].of(s, second)]
    }
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
    fn sixteen(self, numbers: &[f32; 16]) -> Self::Sixteen {
        let [upper, lower] = bf16s(numbers);
        allowed!([twice(upper.as_ptr()), twice(lower.as_ptr())])
    }
    #[inline(always)]
    unsafe fn halves<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        allowed! {
            // Low nibbles in the first eight bytes of each half of the register, high ones in the
            // others, for which one shift does.
            let own = register(
                [0, 1, 2, 3, 8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11],
                [4, 5, 6, 7, 12, 13, 14, 15, 4, 5, 6, 7, 12, 13, 14, 15],
            );
            let codes = _mm256_shuffle_epi8(twice(p), own);
            let codes = _mm256_srlv_epi64(codes, _mm256_set_epi64x(4, 0, 4, 0));
            let codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
            mapped(self, numbers, maps, codes)
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
            // A byte in the lower half of each word, then its high nibble in the upper half.
            let own = register(
                [0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1],
                [2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1],
            );
            let codes = _mm256_shuffle_epi8(twice(p), own);
            let codes = _mm256_or_si256(codes, _mm256_slli_epi16(codes, 4));
            let codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
            mapped(self, numbers, maps, codes)
        }
    }
    #[inline(always)]
    unsafe fn gather(self, p: *const u8, last: usize, mut index: [Self::U; 4]) -> [Self::U; 4] {
        for k in 0..4 {
            allowed! {
                let last = _mm256_set1_epi32(last as i32);
                let [first, second] = index[k];
                index[k] = [
                    _mm256_i32gather_epi32::<4>(p.cast(), _mm256_min_epu32(first, last)),
                    _mm256_i32gather_epi32::<4>(p.cast(), _mm256_min_epu32(second, last)),
                ];
            }
        }
        index
    }
}
