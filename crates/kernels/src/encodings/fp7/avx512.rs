//! fp7 with AVX-512. The function is always inlined, as those of [`Simd`](crate::simd::Simd) are.

use std::arch::x86_64::*;

use super::simd::Fp7Simd;
use crate::Avx512;
use crate::encodings::bf11::avx512::{Tiers512, exponents, join};
use crate::encodings::bf11::simd::planes_at;
use crate::scalar::BLOCK;

impl Fp7Simd for Avx512 {
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
/// The CPU must have AVX-512 F and BW, BMI1, BMI2 and POPCNT. 48 bytes must be readable at `p`.
#[inline(always)]
unsafe fn fp7(tiers: Tiers512, p: *const u8, patches: &mut &[u8]) -> ([__m512; 4], bool) {
    // SAFETY: by this function's contract.
    unsafe {
        let nibbles = _mm256_loadu_si256(p.cast());
        let both = _mm512_castsi256_si512(_mm256_slli_epi16::<4>(nibbles));
        let both = _mm512_inserti64x4::<1>(both, nibbles);
        let bytes = _mm512_and_si512(both, _mm512_set1_epi8(0xf0u8 as i8));
        let exponents = exponents(tiers, planes_at(p.add(BLOCK / 2)), patches);
        let exponents = _mm512_and_si512(exponents, _mm512_set1_epi8(15));
        // The mantissa behind the exponent: all ones in a NaN.
        let codes = _mm512_ternarylogic_epi32::<0xf8>(exponents, bytes, _mm512_set1_epi8(0x70));
        let nan = _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(0x7f));
        (join(bytes, exponents), nan != 0)
    }
}
