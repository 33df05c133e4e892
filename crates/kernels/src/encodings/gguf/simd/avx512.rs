//! [`Codebook`] with AVX-512.
//!
//! The 32 codes of a block are looked up together in registers of 32 words of two bytes, in which
//! an entry takes two bits for each of eight numbers, or three of four bits for each of four. With
//! signs they make up codes of four bits, and 16 of these are looked up among their numbers. Instructions
//! that read 16 or 8 entries from memory (`vpgatherdd`, `vpgatherqq`) take 17 cycles of a Zen 5 core; the
//! lookups of 32 entries among 256 take 4.

mod lookups;

use std::arch::x86_64::*;

use lookups::{CodebookWords, EVENED, selected, stored};

use super::Codebook;
use crate::encodings::gguf::{codebook, codes};
use crate::simd::{Groups, Simd};
use crate::{Avx512, GgufBlocks};

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

/// A block of 256 columns.
#[derive(Clone, Copy)]
pub(crate) struct CodebookCodes {
    /// Nibbles of the even columns, then of the odd ones.
    nibbles: [[u8; 64]; 2],
    /// Of 16 columns each, or in the first half of 32 columns.
    scales: [f32; 16],
}

static IQ2_XXS: CodebookWords<8> = codes::words(codebook::IQ2_XXS_FIRST);
static IQ2_XS: CodebookWords<16> = codes::words(codebook::IQ2_XS_FIRST);
static IQ2_S: CodebookWords<32> = codes::words(codebook::IQ2_S_FIRST);
static IQ3_XXS: CodebookWords<8> = codes::words_of_four(codebook::IQ3_XXS_FIRST);
static IQ3_S: CodebookWords<16> = codes::words_of_four(codebook::IQ3_S_FIRST);

impl Codebook for Avx512 {
    type Block = CodebookCodes;
    /// Times 1, 2⁸, 2¹⁶ and 2²⁴.
    type Numbers = [__m512; 4];

    #[inline(always)]
    fn numbers_of_codebook(self, format: GgufBlocks) -> [__m512; 4] {
        let less = self.splat(f32::from(codebook::less(format)));
        // SAFETY: 16 numbers.
        let numbers = unsafe { self.load(codes::numbers(format).as_ptr()) };
        let mut times = [numbers; 4];
        for k in 0..4 {
            let unit = (1u32 << (8 * k)) as f32;
            times[k] = self.mul(self.fma(numbers, self.splat(1.0), less), self.splat(unit));
        }
        times
    }

    #[inline(always)]
    unsafe fn codebook_block(self, format: GgufBlocks, p: *const u8) -> CodebookCodes {
        // SAFETY: by the contract of the trait.
        let block = unsafe { std::slice::from_raw_parts(p, format.bytes()) };
        let (bits, power) = codebook::scale(format, block);
        let scale = self.mul(self.splat_f16(bits), self.splat(power));
        // SAFETY: by the contract of the trait.
        unsafe {
            match format {
                GgufBlocks::Iq2Xxs => self.iq2_xxs(scale, p),
                GgufBlocks::Iq2Xs => self.iq2_xs(scale, p),
                GgufBlocks::Iq2S => self.iq2_s(scale, p),
                GgufBlocks::Iq3Xxs => self.iq3_xxs(scale, p),
                GgufBlocks::Iq3S => self.iq3_s(scale, p),
                GgufBlocks::Iq1S => self.iq1_s(scale, p),
                GgufBlocks::Iq1M => self.iq1_m(scale, p),
                _ => unreachable!("a format without points"),
            }
        }
    }

    #[inline(always)]
    unsafe fn scales_of_codebook(
        self,
        _: GgufBlocks,
        block: &CodebookCodes,
        _: *const u8,
        to: *mut f32,
    ) {
        // SAFETY: by the contract of the trait.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(block.scales) };
    }
    #[inline(always)]
    unsafe fn codebook(
        self,
        _: GgufBlocks,
        numbers: [__m512; 4],
        block: &CodebookCodes,
        _: *const u8,
        q: usize,
    ) -> [__m512; 4] {
        allowed! {
            let even = block.nibbles[0].as_ptr().add(16 * q);
            let odd = block.nibbles[1].as_ptr().add(16 * q);
            let even = _mm512_cvtepu8_epi32(_mm_loadu_si128(even.cast()));
            let odd = _mm512_cvtepu8_epi32(_mm_loadu_si128(odd.cast()));
            [
                _mm512_permutexvar_ps(even, numbers[0]),
                _mm512_permutexvar_ps(odd, numbers[1]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(even), numbers[2]),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(odd), numbers[3]),
            ]
        }
    }
}

/// Decoders of the formats. Each takes the scale of the block at `p`.
///
/// # Safety
///
/// The bytes of a block of the format must be readable at `p`.
impl Avx512 {
    #[inline(always)]
    unsafe fn iq2_xxs(self, scale: __m512, p: *const u8) -> CodebookCodes {
        allowed! {
            // Eight times four codes, then four times seven signs and a factor.
            let all = _mm512_loadu_epi64(p.add(2).cast());
            let first = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
            let apart = _mm512_permutexvar_epi32(first, all);
            let codes = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(apart));
            let rest = _mm512_extracti64x4_epi64::<1>(apart);
            let signs = self.sevens(_mm512_shuffle_epi32::<0xf5>(all));
            CodebookCodes {
                nibbles: self.of_eights_by_two(self.of_words(&IQ2_XXS, codes), signs),
                scales: self.upper_factors(scale, rest),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq2_xs(self, scale: __m512, p: *const u8) -> CodebookCodes {
        allowed! {
            let codes = _mm512_loadu_epi16(p.add(2).cast());
            let signs = self.of_words(&EVENED, _mm512_srli_epi16::<9>(codes));
            CodebookCodes {
                nibbles: self.of_eights_by_two(self.of_words(&IQ2_XS, codes), signs),
                scales: self.factors(scale, _mm_loadl_epi64(p.add(66).cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq2_s(self, scale: __m512, p: *const u8) -> CodebookCodes {
        allowed! {
            let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.add(2).cast()));
            // Two more bits of four codes in each of eight bytes, which go to the upper half of words.
            let eight = _mm512_set1_epi64(p.add(66).cast::<i64>().read_unaligned());
            let own = _mm512_set_epi64(
                0x0780_0780_0780_0780, 0x0680_0680_0680_0680, 0x0580_0580_0580_0580,
                0x0480_0480_0480_0480, 0x0380_0380_0380_0380, 0x0280_0280_0280_0280,
                0x0180_0180_0180_0180, 0x0080_0080_0080_0080,
            );
            let by = _mm512_set1_epi64(0x0006_0004_0002_0000);
            let top = _mm512_srlv_epi16(_mm512_shuffle_epi8(eight, own), by);
            let codes = selected(top, codes, _mm512_set1_epi16(0x0300));
            CodebookCodes {
                nibbles: self.of_eights_by_two(
                    self.of_words(&IQ2_S, codes),
                    self.spread(p.add(34)),
                ),
                scales: self.factors(scale, _mm_loadl_epi64(p.add(74).cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq3_xxs(self, scale: __m512, p: *const u8) -> CodebookCodes {
        allowed! {
            let codes = _mm512_loadu_epi8(p.add(2).cast());
            let rest = _mm256_loadu_si256(p.add(66).cast());
            let signs = self.sevens(_mm512_shuffle_epi32::<0xa0>(_mm512_cvtepu32_epi64(rest)));
            let first = self.of_words(&IQ3_XXS, codes);
            let second = self.of_words(&IQ3_XXS, _mm512_srli_epi16::<8>(codes));
            CodebookCodes {
                nibbles: self.of_fours([first, second], signs),
                scales: self.upper_factors(scale, rest),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq3_s(self, scale: __m512, p: *const u8) -> CodebookCodes {
        allowed! {
            let codes = _mm512_loadu_epi8(p.add(2).cast());
            let top = p.add(66).cast::<u64>().read_unaligned();
            let even = _pext_u64(top, u64::MAX / 3);
            let odd = _pext_u64(top, u64::MAX / 3 * 2);
            let first = self.ninth(even as u32, codes);
            let second = self.ninth(odd as u32, _mm512_srli_epi16::<8>(codes));
            let factors = _mm_cvtsi32_si128(p.add(106).cast::<i32>().read_unaligned());
            CodebookCodes {
                nibbles: self.of_fours([first, second], self.spread(p.add(74))),
                scales: self.factors(scale, factors),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq1_s(self, scale: __m512, p: *const u8) -> CodebookCodes {
        allowed! {
            let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.add(2).cast()));
            // Three more bits of four codes, a factor, and a bit for the shift of all.
            let rest = _mm_loadu_si128(p.add(34).cast());
            let lane = _mm512_castsi128_si512(rest);
            let own = _mm512_set_epi64(
                0x0007_0007_0007_0007, 0x0006_0006_0006_0006, 0x0005_0005_0005_0005,
                0x0004_0004_0004_0004, 0x0003_0003_0003_0003, 0x0002_0002_0002_0002,
                0x0001_0001_0001_0001, 0,
            );
            let fours = _mm512_permutexvar_epi16(own, lane);
            let left = _mm512_sllv_epi16(fours, _mm512_set1_epi64(0x0000_0002_0005_0008));
            let top = _mm512_srlv_epi16(left, _mm512_set1_epi64(0x0001_0000_0000_0000));
            let codes = selected(top, codes, _mm512_set1_epi16(0x0700));
            let factors = _mm256_srli_epi32::<11>(_mm256_cvtepu16_epi32(rest));
            let factors = _mm256_and_si256(factors, _mm256_set1_epi32(14));
            CodebookCodes {
                nibbles: self.of_eights_read(codes, _mm512_srai_epi16::<15>(fours)),
                scales: self.odd_factors(scale, factors),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq1_m(self, scale: __m512, p: *const u8) -> CodebookCodes {
        allowed! {
            let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
            // Nibbles with three more bits of a code, and one for its shift.
            let two = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.add(32).cast()));
            let own = _mm512_set1_epi32(0xffff);
            let top = selected(_mm512_slli_epi32::<8>(two), _mm512_slli_epi32::<20>(two), own);
            let codes = selected(top, codes, _mm512_set1_epi16(0x0700));
            let less = _mm512_srai_epi16::<15>(_mm512_slli_epi16::<4>(top));
            // Twelve bits of every 16 are factors of three.
            let factors = _pext_u64(p.add(48).cast::<u64>().read_unaligned(), 0x0fff_0fff_0fff_0fff);
            const EIGHT: u64 = 0x0707_0707_0707_0707;
            let [first, second] = [_pdep_u64(factors, EIGHT), _pdep_u64(factors >> 24, EIGHT)];
            const ONES: u64 = 0x0101_0101_0101_0101;
            let factors = [(2 * first) | ONES, (2 * second) | ONES];
            CodebookCodes {
                nibbles: self.of_eights_read(codes, less),
                scales: stored(self.times_bytes(scale, factors)),
            }
        }
    }

    /// The entries of [`IQ3_S`] with these ninth bits and eight lowest bits.
    #[inline(always)]
    fn ninth(self, top: u32, codes: __m512i) -> __m512i {
        allowed! {
            let low = _mm512_and_si512(codes, _mm512_set1_epi16(0xff));
            let codes = _mm512_mask_add_epi16(low, top, low, _mm512_set1_epi16(0x100));
            self.of_words(&IQ3_S, codes)
        }
    }
}
