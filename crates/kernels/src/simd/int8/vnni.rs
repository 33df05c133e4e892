//! [`Integers`] with the multiply-adds of AVX-512 for neural networks.

use std::arch::x86_64::*;

use super::super::{Compiled, SimdJob};
use super::avx2::{allowed, even_and_odd, runs_of};
use super::{Eight, Integers, RowRegister, Unit, class};
use crate::Avx512;
use crate::scalar::CodeForm;

/// Proof that this CPU has VNNI, beside what [`Avx512`] proves.
#[derive(Clone, Copy)]
pub(crate) struct Vnni(Avx512);

impl Vnni {
    /// Returns the token if this CPU has the instructions.
    pub(crate) fn detect(of: Avx512) -> Option<Self> {
        is_x86_feature_detected!("avx512vnni").then_some(Vnni(of))
    }
}

/// The sums of the numbers of both halves of four registers: of the first halves in even places.
#[target_feature(enable = "avx512f,avx512vl,avx2")]
#[inline]
fn sums_of(s: [__m512i; 4]) -> __m256i {
    let first =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    let last =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    // Four numbers, of the four registers, in each quarter.
    let fours =
        _mm512_add_epi32(_mm512_unpacklo_epi64(first, last), _mm512_unpackhi_epi64(first, last));
    let low = _mm512_castsi512_si256(fours);
    let high = _mm512_extracti64x4_epi64::<1>(fours);
    let even = _mm256_permute2x128_si256::<0x20>(low, high);
    let odd = _mm256_permute2x128_si256::<0x31>(low, high);
    let order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
    _mm256_permutevar8x32_epi32(_mm256_add_epi32(even, odd), order)
}

#[target_feature(
    enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt"
)]
#[inline(never)]
fn compiled_vnni<J: SimdJob<Vnni>>(s: Vnni, job: J) {
    job.run(s);
}

impl Compiled for Vnni {
    #[inline(always)]
    fn compiled<J: SimdJob<Self>>(self, job: J) {
        allowed!(compiled_vnni(self, job))
    }
}

impl Integers for Vnni {
    type S = Avx512;
    type I = __m256i;
    type R = __m512i;
    const REGS: usize = 2;
    /// One factor of the multiply-add is unsigned.
    const BIAS: u8 = 128;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    unsafe fn load_two(self, first: *const u8, second: *const u8) -> Unit<Self> {
        allowed! {
            let first = _mm512_castsi256_si512(_mm256_loadu_si256(first.cast()));
            _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(second.cast()))
        }
    }
    #[inline(always)]
    unsafe fn nibbles_b(self, p: *const u8) -> Unit<Self> {
        allowed! {
            let words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
            let words = _mm512_or_si512(words, _mm512_slli_epi16::<4>(words));
            _mm512_and_si512(words, _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    unsafe fn apart_b(self, p: *const u8) -> Unit<Self> {
        allowed! {
            let [even, odd] = even_and_odd(p);
            let even = _mm512_broadcast_i32x4(even);
            let both = _mm512_mask_broadcast_i32x4(even, 0xff00, odd);
            let by = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
            _mm512_and_si512(_mm512_srlv_epi64(both, by), _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn lookup_b(self, table: &[u8; 16], nibbles: Unit<Self>) -> Unit<Self> {
        allowed! {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, nibbles)
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
        let mut sums = [allowed!(_mm512_setzero_si512()); 4];
        allowed! {
            if form.runs {
                // Those of the first runs of the units in the first quarter, and so on.
                let order = _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
                let scales = _mm512_cvtepi8_epi32(_mm_shuffle_epi8(runs_of(runs), order));
                for unit in 0..4 {
                    let x = _mm512_loadu_epi8(x.add(64 * unit));
                    let pairs = _mm512_maddubs_epi16(codes[unit], x);
                    let own = _mm512_set1_epi16(0x0100 + 0x0404 * unit as i16);
                    let scale = _mm512_shuffle_epi8(scales, own);
                    sums[unit] = _mm512_madd_epi16(pairs, scale);
                }
                return sums_of(sums);
            }
            for unit in 0..4 {
                let x = _mm512_loadu_epi8(x.add(64 * unit));
                sums[unit] = _mm512_dpbusd_epi32(sums[unit], self.in_panel(form, codes[unit]), x);
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
    fn in_panel(self, form: CodeForm, codes: Unit<Self>) -> Unit<Self> {
        match form.signed {
            true => allowed!(_mm512_xor_si512(codes, _mm512_set1_epi8(-128))),
            false => codes,
        }
    }
    #[inline(always)]
    fn of_run(self, run: i8) -> i32 {
        run.into()
    }
    #[inline(always)]
    fn splat_r(self, value: i32) -> Self::R {
        allowed!(_mm512_set1_epi32(value))
    }
    #[inline(always)]
    unsafe fn load_r(self, p: *const i32) -> Self::R {
        allowed!(_mm512_loadu_epi32(p))
    }
    #[inline(always)]
    unsafe fn pairs_r(self, of_rows: *const i32, numbers: *const i16) -> Self::R {
        allowed! {
            let numbers = _mm512_set1_epi32(numbers.cast::<i32>().read_unaligned());
            _mm512_madd_epi16(_mm512_loadu_epi32(of_rows), numbers)
        }
    }
    #[inline(always)]
    fn less_r(self, a: Self::R, by: u8, b: Self::R) -> Self::R {
        allowed!(_mm512_sub_epi32(a, _mm512_mullo_epi32(b, _mm512_set1_epi32(by.into()))))
    }
    #[inline(always)]
    fn numbers_r(self, a: Self::R) -> RowRegister<Self> {
        allowed!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn splat_t(self, value: f32) -> RowRegister<Self> {
        allowed!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn block<const CLASS: u8, const M: usize, const N: usize>(
        self,
        w: *const u8,
        runs: *const i32,
        x: [*const i8; N],
        first: [Self::R; N],
    ) -> [[Self::R; N]; M] {
        let mut sums = [first; M];
        allowed! {
            let mut of_run = [[_mm512_setzero_si512(); N]; M];
            for k in 0..8 {
                let mut x4 = [_mm512_setzero_si512(); N];
                for n in 0..N {
                    x4[n] = self.splat_r(x[n].add(4 * k).cast::<i32>().read_unaligned());
                }
                for m in 0..M {
                    let w = _mm512_loadu_epi8(w.add(64 * (k * M + m)).cast());
                    for n in 0..N {
                        let sum = if CLASS == class::RUNS { &mut of_run } else { &mut sums };
                        sum[m][n] = _mm512_dpbusd_epi32(sum[m][n], w, x4[n]);
                    }
                }
                if CLASS == class::RUNS && k % 4 == 3 {
                    for m in 0..M {
                        let scale = self.load_r(runs.add(16 * (k / 4 * M + m)));
                        for n in 0..N {
                            let scaled = _mm512_mullo_epi32(of_run[m][n], scale);
                            sums[m][n] = _mm512_add_epi32(sums[m][n], scaled);
                            of_run[m][n] = _mm512_setzero_si512();
                        }
                    }
                }
            }
        }
        sums
    }
}
