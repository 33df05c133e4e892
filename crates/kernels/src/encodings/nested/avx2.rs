//! AVX2. Functions are always inlined, as those of [`Simd`](crate::simd::Simd) are.

use std::arch::x86_64::*;

use super::simd::{BYTES, HALVES, NestedSimd};
use crate::Avx2;
use crate::encodings::bf11::avx2::{Tiers256, exponents, join};
use crate::scalar::BLOCK;

impl NestedSimd for Avx2 {
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
/// The CPU must have AVX2, BMI1, BMI2 and POPCNT. 48 bytes must be readable at `rest` and 34 at `top`.
#[inline(always)]
unsafe fn nested(
    distances: Tiers256,
    rest: *const u8,
    top: *const u8,
    patches: &mut &[u8],
) -> [[__m256; 2]; 4] {
    /// Four columns of the first sixteen, of the third, of the second and of the last, in the order
    /// of a block's bytes.
    const ORDER: [u8; 16] = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15];
    // SAFETY: by this function's contract.
    unsafe {
        let [first, second] = [nibbles(top), nibbles(top.add(16))];
        let order = halves(&ORDER);
        let codes = [
            turned(_mm256_unpacklo_epi32(first, second), order),
            turned(_mm256_unpackhi_epi32(first, second), order),
        ];
        let planes = [
            plane(_mm256_slli_epi16::<6>(codes[0]), _mm256_slli_epi16::<6>(codes[1])),
            plane(_mm256_slli_epi16::<5>(codes[0]), _mm256_slli_epi16::<5>(codes[1])),
        ];
        // The upper two bits of six, at 4 and 5 of each byte.
        let upper = _mm_loadu_si128(rest.add(BLOCK / 2).cast());
        let upper = _mm256_broadcastsi128_si256(upper);
        let upper = [
            _mm256_sllv_epi32(upper, _mm256_set_epi32(2, 2, 2, 2, 4, 4, 4, 4)),
            _mm256_srlv_epi32(upper, _mm256_set_epi32(2, 2, 2, 2, 0, 0, 0, 0)),
        ];
        let bytes = [
            whole(codes[0], upper[0], nibbles(rest)),
            whole(codes[1], upper[1], nibbles(rest.add(16))),
        ];
        let powers = top.add(BLOCK / 2).cast::<i16>().read_unaligned();
        let powers = _mm256_shuffle_epi8(_mm256_set1_epi16(powers), halves(&HALVES));
        let [first, second] = exponents(distances, planes, patches);
        join(bytes, [_mm256_subs_epu8(powers, first), _mm256_subs_epu8(powers, second)])
    }
}

/// Four columns of each sixteen next to each other.
#[inline(always)]
unsafe fn turned(quarters: __m256i, order: __m256i) -> __m256i {
    // SAFETY: by the contract of the caller.
    unsafe { _mm256_shuffle_epi8(_mm256_permute4x64_epi64::<0b1101_1000>(quarters), order) }
}

/// The highest bits of 64 bytes.
#[inline(always)]
unsafe fn plane(first: __m256i, second: __m256i) -> u64 {
    // SAFETY: by the contract of the caller.
    let [first, second] = unsafe { [_mm256_movemask_epi8(first), _mm256_movemask_epi8(second)] };
    u64::from(first as u32) | u64::from(second as u32) << 32
}

/// Bytes of signs and mantissas from codes, the upper two bits of six and the lower four.
#[inline(always)]
unsafe fn whole(codes: __m256i, upper: __m256i, lower: __m256i) -> __m256i {
    // SAFETY: by the contract of the caller.
    unsafe {
        let six = _mm256_or_si256(_mm256_and_si256(upper, _mm256_set1_epi8(0x30)), lower);
        _mm256_or_si256(six, _mm256_shuffle_epi8(halves(&BYTES), codes))
    }
}

/// The nibbles of 16 bytes, the low one of each first.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: by the contract of the caller.
    unsafe {
        let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
        let both = _mm256_or_si256(bytes, _mm256_slli_epi16::<4>(bytes));
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

#[inline(always)]
unsafe fn halves(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: 16 bytes; and by the contract of the callers.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())) }
}
