//! bf12 in bytes, four columns in a lane of 32 bits. Functions are always inlined, as those of
//! [`Simd`](crate::simd::Simd) are.

use std::arch::x86_64::*;

use super::simd::{Bf12Simd, by_lanes, exponent_lanes, patch_lanes};
use crate::Avx2;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

impl Bf12Simd for Avx2 {
    type Exponents = Exponents256;

    #[inline(always)]
    fn patch(self, exponents: &mut [Self::U; 4], codes: &[Self::U; 4], patches: &mut &[u8]) {
        // SAFETY: four times 16 × u32 each, for which any bits are valid.
        unsafe {
            let exponents = &mut *std::ptr::from_mut(exponents).cast();
            patch_lanes(exponents, &*std::ptr::from_ref(codes).cast(), patches);
        }
    }
    #[inline(always)]
    fn exponents(self, table: &[u8; 16]) -> Self::Exponents {
        allowed!(exponents(table, exponent_lanes(self, table)))
    }
    #[inline(always)]
    unsafe fn bf12(
        self,
        exponents: Self::Exponents,
        p: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4] {
        allowed! {
            if let Some(columns) = without_escapes(&exponents, p) {
                return columns;
            }
            std::hint::cold_path();
            let (columns, rest) = escaped(self, exponents.lanes, p, patches);
            *patches = rest;
            columns
        }
    }
}

/// Lookup tables of exponents.
#[derive(Clone, Copy)]
pub(crate) struct Exponents256 {
    /// Rotated right by one bit: bf16 has all but the lowest bit of an exponent beside its sign, and the
    /// lowest beside its mantissa. In both halves of the register.
    rotated: __m256i,
    /// In lanes of 32 bits, for blocks with escapes.
    lanes: [__m256; 2],
}

/// # Safety
///
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn exponents(table: &[u8; 16], lanes: [__m256; 2]) -> Exponents256 {
    let mut rotated = *table;
    for exponent in &mut rotated {
        *exponent = exponent.rotate_right(1);
    }
    // SAFETY: 16 bytes; and by this function's contract.
    let rotated = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(rotated.as_ptr().cast())) };
    Exponents256 { rotated, lanes }
}

/// Decodes the 64 columns of a whole block at `p`; `None` if it has escapes.
///
/// # Safety
///
/// The CPU must have AVX2. 96 bytes at `p` must be readable.
#[inline(always)]
unsafe fn without_escapes(exponents: &Exponents256, p: *const u8) -> Option<[[__m256; 2]; 4]> {
    // SAFETY: by this function's contract; 32 of 96 bytes each.
    unsafe {
        // Each half of the register gets four words of every eight.
        let codes = _mm256_permute4x64_epi64::<0xd8>(_mm256_loadu_si256(p.add(64).cast()));
        let fifteen = _mm256_set1_epi8(15);
        // Of each lane to come the first column and the third, and the second and the fourth.
        let odd = _mm256_and_si256(codes, fifteen);
        let even = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), fifteen);
        let escapes = _mm256_cmpeq_epi8(_mm256_max_epu8(odd, even), fifteen);
        if _mm256_movemask_epi8(escapes) != 0 {
            return None;
        }
        let odd = _mm256_shuffle_epi8(exponents.rotated, odd);
        let even = _mm256_shuffle_epi8(exponents.rotated, even);
        let bytes: *const __m256i = p.cast();
        let a = joined(_mm256_loadu_si256(bytes), _mm256_unpacklo_epi8(odd, even));
        let b = joined(_mm256_loadu_si256(bytes.add(1)), _mm256_unpackhi_epi8(odd, even));
        Some([[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]]])
    }
}

/// The four columns of each lane, from their signs and mantissas and their rotated exponents.
///
/// # Safety
///
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn joined(bytes: __m256i, rotated: __m256i) -> [__m256; 4] {
    // SAFETY: by this function's contract.
    unsafe {
        // The upper byte of each number is a sign and an exponent, the lower one an exponent's last bit
        // and a mantissa: seven bits change places.
        let moved = _mm256_xor_si256(bytes, rotated);
        let moved = _mm256_and_si256(moved, _mm256_set1_epi8(0x7f));
        let upper = _mm256_xor_si256(bytes, moved);
        let lower = _mm256_xor_si256(rotated, moved);
        let low_bytes = _mm256_set1_epi16(0xff);
        let high_bytes = _mm256_set1_epi16(-256);
        let odd =
            _mm256_or_si256(_mm256_and_si256(lower, low_bytes), _mm256_slli_epi16::<8>(upper));
        let even =
            _mm256_or_si256(_mm256_srli_epi16::<8>(lower), _mm256_and_si256(upper, high_bytes));
        let high_words = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(odd)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(even)),
            _mm256_castsi256_ps(_mm256_and_si256(odd, high_words)),
            _mm256_castsi256_ps(_mm256_and_si256(even, high_words)),
        ]
    }
}

/// A block of bf12 with escapes. Everything is passed by value, so that nothing of other blocks has to be
/// in memory.
///
/// # Safety
///
/// As for [`Bf12Simd::bf12`].
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[cold]
#[inline(never)]
unsafe fn escaped(
    s: Avx2,
    exponents: [__m256; 2],
    p: *const u8,
    mut patches: &[u8],
) -> ([[__m256; 2]; 4], &[u8]) {
    // SAFETY: by this function's contract.
    let columns = unsafe { by_lanes(s, exponents, p, &mut patches) };
    (columns, patches)
}
