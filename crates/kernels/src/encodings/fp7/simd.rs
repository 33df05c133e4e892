//! Decoding of fp7: signs and mantissas from nibbles, then as bf11.

use super::{Simd, bf11, planes_at};
use crate::reference::{BLOCK, FP7_BLOCK, paired};

/// [`Simd::fp7`], byte by byte but for the exponents.
///
/// # Safety
///
/// As for [`Simd::fp7`].
#[inline(always)]
pub(super) unsafe fn by_bytes<S: Simd>(
    s: S,
    tiers: &S::Tiers,
    p: *const u8,
    patches: &mut &[u8],
) -> ([S::F; 4], bool) {
    // SAFETY: by this function's contract.
    let (nibbles, planes) = unsafe {
        let nibbles = p.cast::<[u8; BLOCK / 2]>().read_unaligned();
        (nibbles, planes_at(p.add(BLOCK / 2)))
    };
    let found = s.bf11_exponents(tiers, planes, patches);
    let mut bytes = [0; BLOCK];
    let mut exponents = [0; BLOCK];
    let mut has_nan = false;
    for c in 0..BLOCK {
        let at = paired(c);
        bytes[c] = if at < BLOCK / 2 { nibbles[at] << 4 } else { nibbles[at - BLOCK / 2] & 0xf0 };
        exponents[c] = found[at] & 15;
        has_nan |= bytes[c] & 0x70 | exponents[c] == 0x7f;
    }
    (bf11::joined(s, &bytes, &exponents), has_nan)
}

const _: () = assert!(FP7_BLOCK == BLOCK / 2 + 16);

/// AVX-512. The function is always inlined, as those of [`Simd`] are.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::simd::bf11::avx512::{Tiers512, exponents, join};

    /// [`Simd::fp7`].
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512 F and BW, BMI1, BMI2 and POPCNT. 48 bytes must be readable at `p`.
    #[inline(always)]
    pub(in crate::simd) unsafe fn fp7(
        tiers: Tiers512,
        p: *const u8,
        patches: &mut &[u8],
    ) -> ([__m512; 4], bool) {
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
}

/// AVX2. The function is always inlined, as those of [`Simd`] are.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::simd::bf11::avx2::{Tiers256, exponents, join};

    /// [`Simd::fp7`].
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2, BMI1, BMI2 and POPCNT. 48 bytes must be readable at `p`.
    #[inline(always)]
    pub(in crate::simd) unsafe fn fp7(
        tiers: Tiers256,
        p: *const u8,
        patches: &mut &[u8],
    ) -> ([[__m256; 2]; 4], bool) {
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
            let nan =
                _mm256_or_si256(is_nan(bytes[0], exponents[0]), is_nan(bytes[1], exponents[1]));
            (join(bytes, exponents), _mm256_movemask_epi8(nan) != 0)
        }
    }
}
