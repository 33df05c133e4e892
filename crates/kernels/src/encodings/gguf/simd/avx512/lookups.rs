//! Lookups of codes, and of the signs and scales that go with them.

use std::arch::x86_64::*;

use crate::Avx512;
use crate::encodings::gguf::{codebook, codes};

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

/// Two bytes for each of the entries of a codebook, 32 in a register.
pub(super) type CodebookWords<const N: usize> = [[u16; 32]; N];

/// Codes in nibbles: in the lower half those of even columns.
static IQ1: [u32; 2048] = codes::apart(codebook::IQ1_FIRST);
/// Signs of eight columns, of which seven are given and an even number is set: those of even columns
/// at bits 2, 6 and so on, those of odd ones a bit higher.
pub(super) static EVENED: CodebookWords<4> = {
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

/// Steps of the decoders.
impl Avx512 {
    /// The words at these places in a table of at most 1024, by bits 0 to 9. Bits above are ignored.
    #[inline(always)]
    pub(super) fn of_words<const N: usize>(
        self,
        words: &'static CodebookWords<N>,
        places: __m512i,
    ) -> __m512i {
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

    /// Signs in the places of [`EVENED`] from four times seven bits in each half of eight numbers.
    #[inline(always)]
    pub(super) fn sevens(self, twice: __m512i) -> __m512i {
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
    pub(super) unsafe fn spread(self, p: *const u8) -> __m512i {
        allowed! {
            let eight = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
            let four = _mm512_or_si512(eight, _mm512_slli_epi16::<4>(eight));
            let four = _mm512_and_si512(four, _mm512_set1_epi16(0x0f0f));
            let two = _mm512_or_si512(_mm512_slli_epi16::<2>(four), _mm512_slli_epi16::<4>(four));
            _mm512_and_si512(two, _mm512_set1_epi16(0xccccu16 as i16))
        }
    }

    /// Codes of entries of eight numbers with two bits each, and signs.
    #[inline(always)]
    pub(super) fn of_eights_by_two(self, points: __m512i, signs: __m512i) -> [[u8; 64]; 2] {
        allowed! {
            let own = _mm512_set1_epi16(0x3333);
            let even = selected(points, signs, own);
            let odd =
                selected(_mm512_srli_epi16::<2>(points), _mm512_srli_epi16::<1>(signs), own);
            joined(even, odd)
        }
    }

    /// Codes of the first and second entries of eight numbers, which have three bits each, and signs.
    #[inline(always)]
    pub(super) fn of_fours(self, [first, second]: [__m512i; 2], signs: __m512i) -> [[u8; 64]; 2] {
        allowed! {
            let own = _mm512_set1_epi16(0xff);
            let even = selected(first, _mm512_slli_epi16::<8>(second), own);
            let odd = selected(_mm512_srli_epi16::<8>(first), second, own);
            let own = _mm512_set1_epi16(0x8888u16 as i16);
            joined(selected(_mm512_slli_epi16::<1>(signs), even, own), selected(signs, odd, own))
        }
    }

    /// codes of entries that are read one by one, as these are too many for registers, and shifts.
    #[inline(always)]
    pub(super) fn of_eights_read(self, places: __m512i, less: __m512i) -> [[u8; 64]; 2] {
        let mut index = [0u16; 32];
        allowed! {
            _mm512_storeu_si512(index.as_mut_ptr().cast(), places);
            // Opaque to the compiler, which would take them from registers.
            let index = std::hint::black_box(&index);
            let mut points = [0u32; 32];
            // Volatile, or the compiler makes gathers of them; no loop, or it is not unrolled.
            macro_rules! read {
                ($($i:literal)*) => {$(
                    // Places have eleven bits.
                    points[$i] = IQ1.as_ptr().add(index[$i].into()).read_volatile();
                )*};
            }
            read!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            read!(16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
            let first = _mm512_loadu_si512(points.as_ptr().cast());
            let second = _mm512_loadu_si512(points.as_ptr().add(16).cast());
            // The lower halves of the numbers are the even columns' nibbles.
            let own = _mm512_set_epi16(
                62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32,
                30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0,
            );
            let even = _mm512_permutex2var_epi16(first, own, second);
            let own = _mm512_or_si512(own, _mm512_set1_epi16(1));
            let odd = _mm512_permutex2var_epi16(first, own, second);
            let less = _mm512_and_si512(less, _mm512_set1_epi16(0x4444));
            joined(_mm512_or_si512(even, less), _mm512_or_si512(odd, less))
        }
    }

    /// Scales from factors in the nibbles of bytes, the low ones first.
    #[inline(always)]
    pub(super) fn factors(self, scale: __m512, bytes: __m128i) -> [f32; 16] {
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
    pub(super) fn upper_factors(self, scale: __m512, rest: __m256i) -> [f32; 16] {
        allowed! {
            let double = _mm256_slli_epi32::<1>(_mm256_srli_epi32::<28>(rest));
            self.odd_factors(scale, double)
        }
    }

    /// Scales from eight even numbers, of which each factor is one more.
    #[inline(always)]
    pub(super) fn odd_factors(self, scale: __m512, double: __m256i) -> [f32; 16] {
        allowed! {
            let odd = _mm256_cvtepi32_ps(_mm256_or_si256(double, _mm256_set1_epi32(1)));
            let eight = _mm256_mul_ps(odd, _mm512_castps512_ps256(scale));
            stored(_mm512_castps256_ps512(eight))
        }
    }
}

/// The words at these places of registers `2·i` and `2·i + 1`.
#[inline(always)]
fn pair<const N: usize>(words: &'static CodebookWords<N>, i: usize, places: __m512i) -> __m512i {
    // SAFETY: only called where the CPU has the instructions, as its callers have a token.
    unsafe {
        let first = _mm512_loadu_epi16(words[2 * i].as_ptr().cast());
        let second = _mm512_loadu_epi16(words[2 * i + 1].as_ptr().cast());
        _mm512_permutex2var_epi16(first, places, second)
    }
}

/// The bits of `a` that the mask has, and those of `b` that it has not.
#[inline(always)]
pub(super) fn selected(a: __m512i, b: __m512i, mask: __m512i) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_ternarylogic_epi32::<0xe4>(a, b, mask) }
}

/// The nibbles of even columns and those of odd ones, in memory.
#[inline(always)]
fn joined(even: __m512i, odd: __m512i) -> [[u8; 64]; 2] {
    let mut nibbles = [[0; 64]; 2];
    // SAFETY: as above; 64 bytes each.
    unsafe {
        _mm512_storeu_si512(nibbles[0].as_mut_ptr().cast(), even);
        _mm512_storeu_si512(nibbles[1].as_mut_ptr().cast(), odd);
    }
    nibbles
}

#[inline(always)]
pub(super) fn stored(numbers: __m512) -> [f32; 16] {
    let mut stored = [0.0; 16];
    // SAFETY: as above; 64 bytes.
    unsafe { _mm512_storeu_ps(stored.as_mut_ptr(), numbers) };
    stored
}
