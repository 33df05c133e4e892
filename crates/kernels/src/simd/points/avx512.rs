//! [`Points`] with AVX-512.
//!
//! The 32 codes of a block are looked up together in registers of 32 words of two bytes, in which
//! a point takes two bits for each of eight numbers, or three of four bits for each of four. With
//! signs they make up codes of four bits, and 16 of these are looked up among numbers that were
//! scaled before. Instructions that read 16 or 8 points from memory (`vpgatherdd`, `vpgatherqq`)
//! take 17 cycles of a Zen 5 core; the lookups of 32 points among 256 take 4.

use std::arch::x86_64::*;

use super::Points;
use crate::gguf::{codes, points};
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
pub(crate) struct Codes {
    /// Nibbles of 16 columns each, the even ones in the lower half and the odd ones in the upper:
    /// the first two of every quarter, then the last two.
    sixteens: [u64; 16],
    /// Of 16 columns each, or in the first half of 32 columns.
    scales: [f32; 16],
}

/// Sixteen words with two bytes for each of 32 points, to be looked up.
type Words<const N: usize> = [[u16; 32]; N];

static IQ2_XXS: Words<8> = codes::words(points::IQ2_XXS_FIRST);
static IQ2_XS: Words<16> = codes::words(points::IQ2_XS_FIRST);
static IQ2_S: Words<32> = codes::words(points::IQ2_S_FIRST);
static IQ3_XXS: Words<8> = codes::words_of_four(points::IQ3_XXS_FIRST);
static IQ3_S: Words<16> = codes::words_of_four(points::IQ3_S_FIRST);
/// The codes of two bits apart: in the lower half those of even columns.
static IQ1: [u64; 2048] = codes::apart(points::IQ1_FIRST);
/// Signs of eight columns, of which seven are given and an even number is set: those of even columns
/// at bits 2, 6 and so on, those of odd ones a bit higher.
static EVENED: Words<4> = {
    let mut words = [[0; 32]; 4];
    let mut i = 0usize;
    while i < 128 {
        let signs = i as u16 | ((i.count_ones() as u16) & 1) << 7;
        let mut column = 0;
        while column < 8 {
            words[i / 32][i % 32] |= (signs >> column & 1) << (2 + column / 2 * 4 + column % 2);
            column += 1;
        }
        i += 1;
    }
    words
};

impl Points for Avx512 {
    type Block = Codes;

    #[inline(always)]
    unsafe fn points_block(self, format: GgufBlocks, p: *const u8) -> Codes {
        // SAFETY: by the contract of the trait.
        let block = unsafe { std::slice::from_raw_parts(p, format.bytes()) };
        let (bits, power) = points::scale(format, block);
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
    unsafe fn points(
        self,
        format: GgufBlocks,
        block: &Codes,
        _: *const u8,
        q: usize,
    ) -> [__m512; 4] {
        let numbers = codes::numbers(format);
        let is_of_16 = matches!(format, GgufBlocks::Iq1M | GgufBlocks::Iq2Xs | GgufBlocks::Iq2S);
        let mut weights = [self.splat(0.0); 4];
        for k in 0..4 {
            let scale = block.scales[if is_of_16 { 4 * q + k } else { 2 * q + k / 2 }];
            let sixteen = block.sixteens[8 * (k / 2) + 2 * q + k % 2];
            allowed! {
                let scaled = _mm512_mul_ps(_mm512_loadu_ps(numbers.as_ptr()), _mm512_set1_ps(scale));
                let own =
                    _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
                let codes = _mm512_srlv_epi32(_mm512_set1_epi64(sixteen as i64), own);
                weights[k] = _mm512_permutexvar_ps(codes, scaled);
            }
        }
        weights
    }
}

/// Decoders of the formats. Each takes the scale of the block at `p`.
///
/// # Safety
///
/// The bytes of a block of the format must be readable at `p`.
impl Avx512 {
    #[inline(always)]
    unsafe fn iq2_xxs(self, scale: __m512, p: *const u8) -> Codes {
        allowed! {
            // Eight times four codes, then four times seven signs and a factor.
            let all = _mm512_loadu_epi64(p.add(2).cast());
            let first = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
            let apart = _mm512_permutexvar_epi32(first, all);
            let codes = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(apart));
            let rest = _mm512_extracti64x4_epi64::<1>(apart);
            let signs = self.sevens(_mm512_shuffle_epi32::<0xf5>(all));
            Codes {
                sixteens: self.of_eights_by_two(self.of_words(&IQ2_XXS, codes), signs),
                scales: self.upper_factors(scale, rest),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq2_xs(self, scale: __m512, p: *const u8) -> Codes {
        allowed! {
            let codes = _mm512_loadu_epi16(p.add(2).cast());
            let signs = self.of_words(&EVENED, _mm512_srli_epi16::<9>(codes));
            Codes {
                sixteens: self.of_eights_by_two(self.of_words(&IQ2_XS, codes), signs),
                scales: self.factors(scale, _mm_loadl_epi64(p.add(66).cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq2_s(self, scale: __m512, p: *const u8) -> Codes {
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
            Codes {
                sixteens: self.of_eights_by_two(
                    self.of_words(&IQ2_S, codes),
                    self.spread(p.add(34)),
                ),
                scales: self.factors(scale, _mm_loadl_epi64(p.add(74).cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq3_xxs(self, scale: __m512, p: *const u8) -> Codes {
        allowed! {
            let codes = _mm512_loadu_epi8(p.add(2).cast());
            let rest = _mm256_loadu_si256(p.add(66).cast());
            let signs = self.sevens(_mm512_shuffle_epi32::<0xa0>(_mm512_cvtepu32_epi64(rest)));
            let first = self.of_words(&IQ3_XXS, codes);
            let second = self.of_words(&IQ3_XXS, _mm512_srli_epi16::<8>(codes));
            Codes {
                sixteens: self.of_fours([first, second], signs),
                scales: self.upper_factors(scale, rest),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq3_s(self, scale: __m512, p: *const u8) -> Codes {
        allowed! {
            let codes = _mm512_loadu_epi8(p.add(2).cast());
            let top = p.add(66).cast::<u64>().read_unaligned();
            let (even, odd) = (_pext_u64(top, u64::MAX / 3), _pext_u64(top, u64::MAX / 3 * 2));
            let first = self.ninth(even as u32, codes);
            let second = self.ninth(odd as u32, _mm512_srli_epi16::<8>(codes));
            let factors = _mm_cvtsi32_si128(p.add(106).cast::<i32>().read_unaligned());
            Codes {
                sixteens: self.of_fours([first, second], self.spread(p.add(74))),
                scales: self.factors(scale, factors),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq1_s(self, scale: __m512, p: *const u8) -> Codes {
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
            Codes {
                sixteens: self.of_eights_read(codes, _mm512_srai_epi16::<15>(fours)),
                scales: self.odd_factors(scale, factors),
            }
        }
    }

    #[inline(always)]
    unsafe fn iq1_m(self, scale: __m512, p: *const u8) -> Codes {
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
            Codes {
                sixteens: self.of_eights_read(codes, less),
                scales: stored(self.times_bytes(scale, factors)),
            }
        }
    }
}

/// Steps of the decoders.
impl Avx512 {
    /// The words at these places in a table of at most 1024, by bits 0 to 9. Bits above are ignored.
    #[inline(always)]
    fn of_words<const N: usize>(self, words: &'static Words<N>, places: __m512i) -> __m512i {
        let mut found = [places; 16];
        allowed! {
            for i in 0..N / 2 {
                found[i] = pair(words, i, places);
            }
            for bit in 0..(N / 2).trailing_zeros() {
                let bits = _mm512_set1_epi16(1 << (6 + bit));
                let is_second = _mm512_test_epi16_mask(places, bits);
                for i in 0..N >> (2 + bit) {
                    found[i] =
                        _mm512_mask_blend_epi16(is_second, found[2 * i], found[2 * i + 1]);
                }
            }
        }
        found[0]
    }

    /// The points of [`IQ3_S`] with these ninth bits and eight lowest bits.
    #[inline(always)]
    fn ninth(self, top: u32, codes: __m512i) -> __m512i {
        allowed! {
            let low = _mm512_and_si512(codes, _mm512_set1_epi16(0xff));
            let codes = _mm512_mask_add_epi16(low, top, low, _mm512_set1_epi16(0x100));
            self.of_words(&IQ3_S, codes)
        }
    }

    /// Signs in the places of [`EVENED`] from four times seven bits in each half of eight numbers.
    #[inline(always)]
    fn sevens(self, twice: __m512i) -> __m512i {
        allowed! {
            let two = _mm512_srlv_epi32(twice, _mm512_set1_epi64(14 << 32));
            let upper = _mm512_slli_epi32::<9>(two);
            self.of_words(&EVENED, selected(two, upper, _mm512_set1_epi32(0xffff)))
        }
    }

    /// Signs in the places of [`EVENED`] from 32 bytes.
    ///
    /// # Safety
    ///
    /// They must be readable.
    #[inline(always)]
    unsafe fn spread(self, p: *const u8) -> __m512i {
        allowed! {
            let eight = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
            let four = _mm512_or_si512(eight, _mm512_slli_epi16::<4>(eight));
            let four = _mm512_and_si512(four, _mm512_set1_epi16(0x0f0f));
            let two = _mm512_or_si512(_mm512_slli_epi16::<2>(four), _mm512_slli_epi16::<4>(four));
            _mm512_and_si512(two, _mm512_set1_epi16(0xccccu16 as i16))
        }
    }

    /// Codes of points of eight numbers with two bits each, and signs.
    #[inline(always)]
    fn of_eights_by_two(self, points: __m512i, signs: __m512i) -> [u64; 16] {
        allowed! {
            let own = _mm512_set1_epi16(0x3333);
            let even = selected(points, signs, own);
            let odd =
                selected(_mm512_srli_epi16::<2>(points), _mm512_srli_epi16::<1>(signs), own);
            joined(even, odd)
        }
    }

    /// Codes of the first and second points of eight numbers, which have three bits each, and signs.
    #[inline(always)]
    fn of_fours(self, [first, second]: [__m512i; 2], signs: __m512i) -> [u64; 16] {
        allowed! {
            let own = _mm512_set1_epi16(0xff);
            let even = selected(first, _mm512_slli_epi16::<8>(second), own);
            let odd = selected(_mm512_srli_epi16::<8>(first), second, own);
            let own = _mm512_set1_epi16(0x8888u16 as i16);
            joined(selected(_mm512_slli_epi16::<1>(signs), even, own), selected(signs, odd, own))
        }
    }

    /// Codes of points that are read one by one, as these are too many for registers, and shifts.
    #[inline(always)]
    fn of_eights_read(self, places: __m512i, less: __m512i) -> [u64; 16] {
        let mut index = [0u16; 32];
        allowed! {
            _mm512_storeu_si512(index.as_mut_ptr().cast(), places);
            let less = _mm512_and_si512(less, _mm512_set1_epi16(0x4444));
            let shifts = joined(less, less);
            // Opaque to the compiler, which would take them from registers.
            let (index, shifts) = std::hint::black_box((&index, &shifts));
            let mut codes = [0; 16];
            for i in 0..16 {
                let of_two = (i / 4 * 2) + (i % 2) + 8 * (i / 2 % 2);
                // Places have eleven bits.
                let first = *IQ1.get_unchecked(usize::from(index[2 * i]));
                let second = *IQ1.get_unchecked(usize::from(index[2 * i + 1]));
                codes[of_two] = first | second << 16 | shifts[of_two];
            }
            codes
        }
    }

    /// Scales from factors in the nibbles of bytes, the low ones first.
    #[inline(always)]
    fn factors(self, scale: __m512, bytes: __m128i) -> [f32; 16] {
        allowed! {
            let fifteen = _mm_set1_epi8(15);
            let low = _mm_and_si128(bytes, fifteen);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), fifteen);
            let all = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high));
            let odd = _mm512_or_si512(_mm512_slli_epi32::<1>(all), _mm512_set1_epi32(1));
            stored(_mm512_mul_ps(_mm512_cvtepi32_ps(odd), scale))
        }
    }

    /// Scales from factors in the upper four bits of eight numbers.
    #[inline(always)]
    fn upper_factors(self, scale: __m512, rest: __m256i) -> [f32; 16] {
        allowed! {
            let double = _mm256_slli_epi32::<1>(_mm256_srli_epi32::<28>(rest));
            self.odd_factors(scale, double)
        }
    }

    /// Scales from eight times two factors.
    #[inline(always)]
    fn odd_factors(self, scale: __m512, double: __m256i) -> [f32; 16] {
        allowed! {
            let odd = _mm256_cvtepi32_ps(_mm256_or_si256(double, _mm256_set1_epi32(1)));
            let eight = _mm256_mul_ps(odd, _mm512_castps512_ps256(scale));
            stored(_mm512_castps256_ps512(eight))
        }
    }
}

/// The words at these places of registers `2·i` and `2·i + 1`.
#[inline(always)]
fn pair<const N: usize>(words: &'static Words<N>, i: usize, places: __m512i) -> __m512i {
    // SAFETY: only called where the CPU has the instructions, as its callers have a token.
    unsafe {
        let first = _mm512_loadu_epi16(words[2 * i].as_ptr().cast());
        let second = _mm512_loadu_epi16(words[2 * i + 1].as_ptr().cast());
        _mm512_permutex2var_epi16(first, places, second)
    }
}

/// The bits of `a` that the mask has, and those of `b` that it has not.
#[inline(always)]
fn selected(a: __m512i, b: __m512i, mask: __m512i) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_ternarylogic_epi32::<0xe4>(a, b, mask) }
}

/// Sixteens from the nibbles of even columns and those of odd ones.
#[inline(always)]
fn joined(even: __m512i, odd: __m512i) -> [u64; 16] {
    let mut sixteens = [0u64; 16];
    // SAFETY: as above; 64 bytes each.
    unsafe {
        _mm512_storeu_si512(sixteens.as_mut_ptr().cast(), _mm512_unpacklo_epi32(even, odd));
        _mm512_storeu_si512(sixteens.as_mut_ptr().add(8).cast(), _mm512_unpackhi_epi32(even, odd));
    }
    sixteens
}

#[inline(always)]
fn stored(numbers: __m512) -> [f32; 16] {
    let mut stored = [0.0; 16];
    // SAFETY: as above; 64 bytes.
    unsafe { _mm512_storeu_ps(stored.as_mut_ptr(), numbers) };
    stored
}
