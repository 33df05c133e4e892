//! fp7 with AVX2. The function is always inlined, as those of [`Simd`](crate::simd::Simd) are.

use std::arch::x86_64::*;

use super::simd::Fp7Simd;
use crate::Avx2;
use crate::encodings::bf11::avx2::{Tiers256, exponents, join};
use crate::encodings::bf11::simd::planes_at;
use crate::scalar::BLOCK;

impl Fp7Simd for Avx2 {
    #[inline(always)]
    unsafe fn fp7(
        self,
        tiers: &Self::Tiers,
        p: *const u8,
        patches: &mut &[u8],
    ) -> ([Self::F; 4], bool) {
        // SAFETY: `self` proves that this CPU has the instructions; and by the contract of the trait.
        unsafe { fp7(*tiers, p, patches) }
    }
}

/// [`Fp7Simd::fp7`].
///
/// # Safety
///
/// The CPU must have AVX2, BMI1, BMI2 and POPCNT. 48 bytes must be readable at `p`.
#[inline(always)]
unsafe fn fp7(tiers: Tiers256, p: *const u8, patches: &mut &[u8]) -> ([[__m256; 2]; 4], bool) {
    // SAFETY: by this function's contract.
    unsafe {
        let nibbles = _mm256_loadu_si256(p.cast());
        let upper = _mm256_set1_epi8(0xf0u8 as i8);
        let bytes = [_mm256_slli_epi16::<4>(nibbles), nibbles];
        let bytes = bytes.map(|bytes| _mm256_and_si256(bytes, upper));
        let exponents = exponents(tiers, planes_at(p.add(BLOCK / 2)), patches);
        let fifteen = _mm256_set1_epi8(15);
        let exponents = exponents.map(|exponents| _mm256_and_si256(exponents, fifteen));
        // The mantissa behind the exponent: all ones in a NaN.
        let is_nan = |bytes: __m256i, exponents: __m256i| {
            let mantissas = _mm256_and_si256(bytes, _mm256_set1_epi8(0x70));
            let codes = _mm256_or_si256(mantissas, exponents);
            _mm256_cmpeq_epi8(codes, _mm256_set1_epi8(0x7f))
        };
        let nan = _mm256_or_si256(is_nan(bytes[0], exponents[0]), is_nan(bytes[1], exponents[1]));
        (join(bytes, exponents), _mm256_movemask_epi8(nan) != 0)
    }
}
