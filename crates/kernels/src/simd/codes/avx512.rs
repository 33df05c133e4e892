//! [`Codes`] with AVX-512.

use std::arch::x86_64::*;

use super::Codes;
use super::avx2::{allowed, bf16_h, f16_h, fold, scales_and_minima, zeros_h};
use crate::Avx512;

impl Codes for Avx512 {
    type H = __m256;
    /// The codes as numbers, times 1, 2⁸, 2¹⁶ and 2²⁴.
    type Table = [__m512; 4];

    #[inline(always)]
    fn zero_h(self) -> Self::H {
        allowed!(_mm256_setzero_ps())
    }
    #[inline(always)]
    unsafe fn load_h(self, p: *const f32) -> Self::H {
        allowed!(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store_h(self, a: Self::H, p: *mut f32) {
        allowed!(_mm256_storeu_ps(p, a))
    }
    #[inline(always)]
    fn fma_h(self, a: Self::H, b: Self::H, c: Self::H) -> Self::H {
        allowed!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fold_h(self, a: Self::H) -> f32 {
        allowed!(fold(a))
    }
    #[inline(always)]
    unsafe fn f16_h(self, p: *const u8, stride: usize) -> Self::H {
        allowed!(f16_h(p, stride))
    }
    #[inline(always)]
    unsafe fn bf16_h(self, p: *const u8, times: usize) -> Self::H {
        allowed!(bf16_h(p, times))
    }
    #[inline(always)]
    unsafe fn zeros_h(self, p: *const u8, times: usize) -> [Self::H; 2] {
        allowed!(zeros_h(p, times))
    }
    #[inline(always)]
    unsafe fn in_eights(self, p: *const f32, pair: usize) -> Self::F {
        allowed! {
            let eight = _mm512_castps256_ps512(_mm256_loadu_ps(p));
            let first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
            let own = _mm512_add_epi32(first, _mm512_set1_epi32(2 * pair as i32));
            _mm512_permutexvar_ps(own, eight)
        }
    }
    #[inline(always)]
    unsafe fn in_fours(self, p: *const f32) -> Self::F {
        allowed! {
            let four = _mm512_castps128_ps512(_mm_loadu_ps(p));
            let own = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            _mm512_permutexvar_ps(own, four)
        }
    }
    #[inline(always)]
    fn fields(self, bytes: Self::B, mask: u8) -> [Self::F; 4] {
        let mut fields = [allowed!(_mm512_setzero_ps()); 4];
        for k in 0..4 {
            let own = (u32::from(mask) << (8 * k)) as i32;
            fields[k] = allowed! {
                _mm512_cvtepu32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(own)))
            };
        }
        fields
    }
    #[inline(always)]
    fn table(self, codes: &[u8; 16]) -> Self::Table {
        allowed! {
            let bytes = _mm_loadu_si128(codes.as_ptr().cast());
            let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
            let mut tables = [numbers; 4];
            for k in 1..4 {
                tables[k] = _mm512_mul_ps(numbers, _mm512_set1_ps((1 << (8 * k)) as f32));
            }
            tables
        }
    }
    #[inline(always)]
    fn looked_up(self, tables: Self::Table, bytes: Self::B) -> [Self::F; 4] {
        allowed! {
            [
                _mm512_permutexvar_ps(bytes, tables[0]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<8>(bytes), tables[1]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<16>(bytes), tables[2]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<24>(bytes), tables[3]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn nibbles(self, tables: Self::Table, p: *const u8) -> [Self::F; 4] {
        allowed! {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            [
                _mm512_permutexvar_ps(words, tables[0]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(words), tables[1]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<8>(words), tables[2]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<12>(words), tables[3]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn plain_nibbles(self, table: Self::Table, p: *const u8) -> [Self::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe { self.nibbles(table, p) }
    }
    #[inline(always)]
    unsafe fn apart(self, p: *const u8) -> [Self::F; 4] {
        allowed! {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            let words = _mm512_xor_si512(words, _mm512_set1_epi32(0x8888));
            let mut fields = [_mm512_setzero_ps(); 4];
            for k in 0..4 {
                let own = _mm512_set1_epi32(15 << (4 * k));
                fields[k] = _mm512_cvtepi32_ps(_mm512_and_si512(words, own));
            }
            fields
        }
    }
    #[inline(always)]
    unsafe fn scales_and_minima(self, p: *const u8) -> [Self::H; 2] {
        allowed!(scales_and_minima(p))
    }
}
