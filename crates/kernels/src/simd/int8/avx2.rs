//! [`Integers`] with AVX2.

use std::arch::x86_64::*;

use super::{Eight, Integers, RowRegister, Unit, class};
use crate::Avx2;
use crate::scalar::CodeForm;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are valid by
        // the contract of the trait's methods.
        unsafe { $($body)* }
    };
}
pub(super) use allowed;

/// The sums of the numbers of eight registers.
#[target_feature(enable = "avx2")]
#[inline]
fn sums_of(s: [__m256i; 8]) -> __m256i {
    let first = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    let last = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
    let low = _mm256_permute2x128_si256::<0x20>(first, last);
    let high = _mm256_permute2x128_si256::<0x31>(first, last);
    _mm256_add_epi32(low, high)
}

/// The same of registers of 16 bits, whose sums of four fit in as many.
#[target_feature(enable = "avx2")]
#[inline]
fn sums_of_words(s: [__m256i; 8]) -> __m256i {
    let one = _mm256_set1_epi16(1);
    let mut pairs = [_mm256_setzero_si256(); 4];
    for i in 0..4 {
        let first = _mm256_madd_epi16(s[2 * i], one);
        let second = _mm256_madd_epi16(s[2 * i + 1], one);
        pairs[i] = _mm256_madd_epi16(_mm256_packs_epi32(first, second), one);
    }
    let first = _mm256_hadd_epi32(pairs[0], pairs[1]);
    let last = _mm256_hadd_epi32(pairs[2], pairs[3]);
    let low = _mm256_permute2x128_si256::<0x20>(first, last);
    let high = _mm256_permute2x128_si256::<0x31>(first, last);
    _mm256_add_epi32(low, high)
}

/// Signed bytes of runs as numbers of 16 bits.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn runs_of(runs: [u64; 2]) -> __m128i {
    _mm_set_epi64x(runs[1] as i64, runs[0] as i64)
}

/// [`Integers::apart_b`]: the even bytes, then the odd ones.
///
/// # Safety
///
/// 32 bytes must be readable.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn even_and_odd(p: *const u8) -> [__m128i; 2] {
    let order = _mm_set_epi8(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
    // SAFETY: by this function's contract.
    let (low, high) = unsafe { (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast())) };
    let low = _mm_shuffle_epi8(low, order);
    let high = _mm_shuffle_epi8(high, order);
    [_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high)]
}

/// The products of a register of codes and one of activations, in pairs.
#[target_feature(enable = "avx2")]
#[inline]
fn products(signed: bool, codes: __m256i, x: __m256i) -> __m256i {
    match signed {
        // A code has at most 128 in magnitude and an activation 127, so a pair fits.
        true => _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)),
        false => _mm256_maddubs_epi16(codes, x),
    }
}

/// Four activations in every lane.
///
/// # Safety
///
/// They must be readable.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn four(x: *const i8) -> __m256i {
    // SAFETY: by this function's contract.
    _mm256_set1_epi32(unsafe { x.cast::<i32>().read_unaligned() })
}

impl Integers for Avx2 {
    type S = Avx2;
    type I = __m256i;
    type R = __m256i;
    const REGS: usize = 2;
    const BIAS: u8 = 0;

    #[inline(always)]
    fn simd(self) -> Avx2 {
        self
    }
    #[inline(always)]
    unsafe fn load_two(self, first: *const u8, second: *const u8) -> Unit<Self> {
        allowed!([_mm256_loadu_si256(first.cast()), _mm256_loadu_si256(second.cast())])
    }
    #[inline(always)]
    unsafe fn nibbles_b(self, p: *const u8) -> Unit<Self> {
        let mut halves = [allowed!(_mm256_setzero_si256()); 2];
        for half in 0..2 {
            halves[half] = allowed! {
                let words = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.add(16 * half).cast()));
                let words = _mm256_or_si256(words, _mm256_slli_epi16::<4>(words));
                _mm256_and_si256(words, _mm256_set1_epi8(15))
            };
        }
        halves
    }
    #[inline(always)]
    unsafe fn apart_b(self, p: *const u8) -> Unit<Self> {
        let mut halves = [allowed!(_mm256_setzero_si256()); 2];
        let bytes = allowed!(even_and_odd(p));
        for half in 0..2 {
            halves[half] = allowed! {
                let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes[half]), bytes[half]);
                _mm256_and_si256(both, _mm256_set1_epi8(15))
            };
        }
        halves
    }
    #[inline(always)]
    fn lookup_b(self, table: &[u8; 16], nibbles: Unit<Self>) -> Unit<Self> {
        allowed! {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, nibbles[0]), _mm256_shuffle_epi8(table, nibbles[1])]
        }
    }
    #[inline(always)]
    unsafe fn sums(
        self,
        form: CodeForm,
        codes: [Unit<Self>; 4],
        x: *const i8,
        runs: [u64; 2],
    ) -> Self::I {
        let mut sums = [allowed!(_mm256_setzero_si256()); 8];
        for block in 0..8 {
            sums[block] = allowed! {
                let x = _mm256_loadu_si256(x.add(32 * block).cast());
                products(form.signed, codes[block / 2][block % 2], x)
            };
        }
        allowed! {
            if form.runs {
                // Those of even runs in the first half, of odd ones in the second.
                let order = _mm_set_epi8(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
                let scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(runs_of(runs), order));
                for block in 0..8 {
                    let own = _mm256_set1_epi16(0x0100 + 0x0202 * block as i16);
                    let scale = _mm256_shuffle_epi8(scales, own);
                    sums[block] = _mm256_madd_epi16(sums[block], scale);
                }
                return sums_of(sums);
            }
            // Four products fit in 16 bits.
            if !form.signed && form.most < 64 {
                return sums_of_words(sums);
            }
            for block in 0..8 {
                sums[block] = _mm256_madd_epi16(sums[block], _mm256_set1_epi16(1));
            }
            sums_of(sums)
        }
    }
    #[inline(always)]
    unsafe fn of_runs(self, runs: [u64; 2], numbers: *const i16) -> Self::I {
        allowed! {
            let runs = _mm256_cvtepi8_epi16(runs_of(runs));
            _mm256_madd_epi16(runs, _mm256_loadu_si256(numbers.cast()))
        }
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        allowed!(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    fn less(self, a: Self::I, by: u8, b: Self::I) -> Self::I {
        allowed!(_mm256_sub_epi32(a, _mm256_mullo_epi32(b, _mm256_set1_epi32(by.into()))))
    }
    #[inline(always)]
    fn numbers(self, a: Self::I) -> Eight<Self> {
        allowed!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn mul_h(self, a: Eight<Self>, b: Eight<Self>) -> Eight<Self> {
        allowed!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn first_h(self, a: Eight<Self>, count: usize) -> Eight<Self> {
        allowed! {
            let places = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
            let first = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), places);
            _mm256_and_ps(a, _mm256_castsi256_ps(first))
        }
    }
    #[inline(always)]
    fn in_panel(self, _: CodeForm, codes: Unit<Self>) -> Unit<Self> {
        codes
    }
    #[inline(always)]
    fn of_run(self, run: i8) -> i32 {
        let word = u32::from(i16::from(run) as u16);
        (word | word << 16) as i32
    }
    #[inline(always)]
    fn splat_r(self, value: i32) -> Self::R {
        allowed!(_mm256_set1_epi32(value))
    }
    #[inline(always)]
    unsafe fn load_r(self, p: *const i32) -> Self::R {
        allowed!(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn pairs_r(self, of_rows: *const i32, numbers: *const i16) -> Self::R {
        allowed! {
            let numbers = _mm256_set1_epi32(numbers.cast::<i32>().read_unaligned());
            _mm256_madd_epi16(_mm256_loadu_si256(of_rows.cast()), numbers)
        }
    }
    #[inline(always)]
    fn less_r(self, a: Self::R, by: u8, b: Self::R) -> Self::R {
        self.less(a, by, b)
    }
    #[inline(always)]
    fn numbers_r(self, a: Self::R) -> RowRegister<Self> {
        allowed!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn splat_t(self, value: f32) -> RowRegister<Self> {
        allowed!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn block<const CLASS: u8, const M: usize, const N: usize>(
        self,
        w: *const u8,
        runs: *const i32,
        x: [*const i8; N],
        first: [Self::R; N],
    ) -> [[Self::R; N]; M] {
        // Steps of four columns whose sums of pairs fit in 16 bits.
        let steps = match CLASS {
            class::FOUR_BITS => 8,
            class::FIVE_BITS => 4,
            class::RUNS => 2,
            _ => 1,
        };
        let mut sums = [first; M];
        allowed! {
            let one = _mm256_set1_epi16(1);
            for part in 0..8 / steps {
                let mut words = [[_mm256_setzero_si256(); N]; M];
                for k in part * steps..(part + 1) * steps {
                    let mut x4 = [_mm256_setzero_si256(); N];
                    for n in 0..N {
                        x4[n] = four(x[n].add(4 * k));
                    }
                    for m in 0..M {
                        let w = _mm256_loadu_si256(w.add(32 * (k * M + m)).cast());
                        for n in 0..N {
                            let pairs = products(CLASS == class::SIGNED, w, x4[n]);
                            words[m][n] = match k % steps {
                                0 => pairs,
                                _ => _mm256_add_epi16(words[m][n], pairs),
                            };
                        }
                    }
                }
                for m in 0..M {
                    let scale = match CLASS {
                        class::RUNS => self.load_r(runs.add(8 * (part / 2 * M + m))),
                        _ => one,
                    };
                    for n in 0..N {
                        let of_part = _mm256_madd_epi16(words[m][n], scale);
                        sums[m][n] = _mm256_add_epi32(sums[m][n], of_part);
                    }
                }
            }
        }
        sums
    }
}
