//! bf12 with AVX-512.

use std::arch::x86_64::*;

use super::simd::{Bf12Simd, by_lanes};
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

impl Bf12Simd for Avx512 {
    /// 32 × u16: each exponent twice, at bits 7 to 14; the entries of code 15 also have [`ESCAPE`]
    /// set.
    type Exponents = __m512i;

    #[inline(always)]
    fn patch(self, exponents: &mut [Self::U; 4], codes: &[Self::U; 4], patches: &mut &[u8]) {
        allowed!(patch512(self, exponents, codes, patches))
    }
    #[inline(always)]
    fn exponents(self, table: &[u8; 16]) -> Self::Exponents {
        let mut words = [0u16; 32];
        for (i, word) in words.iter_mut().enumerate() {
            *word = u16::from(table[i % 16]) << 7 | if i % 16 == 15 { ESCAPE } else { 0 };
        }
        allowed!(_mm512_loadu_epi16(words.as_ptr().cast()))
    }
    /// Uses 16-bit lanes, so that an instruction serves 32 columns: 15 instructions per block
    /// instead of 25 with 32-bit lanes. Their number is the bottleneck when the weights are in
    /// cache.
    #[inline(always)]
    unsafe fn bf12(
        self,
        exponents: Self::Exponents,
        p: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4] {
        allowed! {
            // A word of `bytes` holds columns i and 16 + i, or 32 + i and 48 + i, and so does one
            // of `codes`.
            let bytes = _mm512_loadu_epi8(p.cast());
            let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.add(64).cast()));
            // The fifth bit of an index belongs to the neighbouring code. It does not matter,
            // because the table holds every entry twice.
            let even = _mm512_permutexvar_epi16(codes, exponents);
            let odd = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), exponents);
            let both = _mm512_or_si512(even, odd);
            if _mm512_test_epi16_mask(both, _mm512_set1_epi16(ESCAPE as i16)) != 0 {
                return escaped(self, exponents, p, patches);
            }
            let rest = _mm512_set1_epi16(0x807f_u16 as i16);
            // (byte & rest) | exponent, with the sign spread over the upper half of the word.
            let low = _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
            let even = _mm512_ternarylogic_epi32::<0xea>(low, rest, even);
            let odd = _mm512_ternarylogic_epi32::<0xea>(_mm512_srai_epi16(bytes, 8), rest, odd);
            let upper = self.splat_u(0xffff_0000);
            [
                self.float(self.shl::<16>(even)),
                self.float(self.shl::<16>(odd)),
                self.float(self.and(even, upper)),
                self.float(self.and(odd, upper)),
            ]
        }
    }
}

/// Marks the exponent of an escape, in a bit that no exponent uses.
const ESCAPE: u16 = 1;

/// [`Bf12Simd::bf12`] of a block with escapes.
///
/// # Safety
///
/// As for [`Bf12Simd::bf12`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[cold]
#[inline(never)]
unsafe fn escaped(s: Avx512, exponents: __m512i, p: *const u8, patches: &mut &[u8]) -> [__m512; 4] {
    // Only escapes have the mark, and patching overwrites it.
    let lanes = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(exponents));
    // SAFETY: by this function's contract.
    unsafe { by_lanes(s, s.float(s.shl::<16>(lanes)), p, patches) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[cold]
#[inline(never)]
fn patch512(s: Avx512, exponents: &mut [__m512i; 4], codes: &[__m512i; 4], patches: &mut &[u8]) {
    let fifteen = s.splat_u(15);
    for (exponents, codes) in exponents.iter_mut().zip(codes) {
        let escaped = _mm512_cmpeq_epi32_mask(s.and(*codes, fifteen), fifteen);
        let n = (escaped.count_ones() as usize).min(patches.len());
        let mut bytes = [255; 16];
        bytes[..n].copy_from_slice(&patches[..n]);
        *patches = &patches[n..];
        // SAFETY: 16 bytes.
        let new = s.shl::<23>(unsafe { s.load_u8(bytes.as_ptr()) });
        *exponents = _mm512_mask_expand_epi32(*exponents, escaped, new);
    }
}
