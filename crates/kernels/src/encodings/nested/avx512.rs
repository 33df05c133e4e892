//! AVX-512. Functions are always inlined, as those of [`Simd`](crate::simd::Simd) are.

use std::arch::x86_64::*;

use super::simd::{BYTES, HALVES, NestedSimd};
use crate::Avx512;
use crate::encodings::bf11::avx512::{Tiers512, exponents, join};
use crate::scalar::BLOCK;

impl NestedSimd for Avx512 {
    #[inline(always)]
    unsafe fn nested(
        self,
        distances: &Self::Tiers,
        rest: *const u8,
        top: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4] {
        // SAFETY: `self` proves that this CPU has the instructions; and by the contract of the trait.
        unsafe { nested(*distances, rest, top, patches) }
    }
}

/// [`NestedSimd::nested`].
///
/// # Safety
///
/// The CPU must have AVX-512 F and BW, BMI1, BMI2 and POPCNT. 48 bytes must be readable at `rest` and 34
/// at `top`.
#[inline(always)]
unsafe fn nested(
    distances: Tiers512,
    rest: *const u8,
    top: *const u8,
    patches: &mut &[u8],
) -> [__m512; 4] {
    /// Columns `4k + d` of quarter `a` of each sixteen, in the order of a block's bytes.
    const ORDER: [u8; 16] = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];
    // SAFETY: by this function's contract.
    unsafe {
        let turned = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        let codes = _mm512_permutexvar_epi32(turned, nibbles(top));
        let codes = _mm512_shuffle_epi8(codes, quarters(&ORDER));
        // The upper two bits of six, at 4 and 5 of each byte.
        let high = _mm512_broadcast_i32x4(_mm_loadu_si128(rest.add(BLOCK / 2).cast()));
        let by = _mm512_set_epi32(2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30, 28, 28, 28, 28);
        let high = _mm512_rorv_epi32(high, by);
        let six = _mm512_ternarylogic_epi32::<0xf8>(nibbles(rest), high, _mm512_set1_epi8(0x30));
        let bytes = _mm512_or_si512(six, _mm512_shuffle_epi8(quarters(&BYTES), codes));
        let planes = [
            _mm512_test_epi8_mask(codes, _mm512_set1_epi8(2)),
            _mm512_test_epi8_mask(codes, _mm512_set1_epi8(4)),
        ];
        let powers = top.add(BLOCK / 2).cast::<i16>().read_unaligned();
        let powers = _mm512_shuffle_epi8(_mm512_set1_epi16(powers), quarters(&HALVES));
        let distances = exponents(distances, planes, patches);
        join(bytes, _mm512_subs_epu8(powers, distances))
    }
}

/// The nibbles of 32 bytes, the low one of each first.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m512i {
    // SAFETY: by the contract of the caller.
    unsafe {
        let bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
        let shifted = _mm512_slli_epi16::<4>(bytes);
        _mm512_ternarylogic_epi32::<0xa8>(bytes, shifted, _mm512_set1_epi8(15))
    }
}

#[inline(always)]
unsafe fn quarters(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: 16 bytes; and by the contract of the callers.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())) }
}
