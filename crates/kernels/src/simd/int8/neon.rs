//! [`Integers`] with the dot products of NEON.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::{Compiled, SimdJob};
use super::{Codes, Eight, Integers, RowRegister, Unit, class};
use crate::Neon;
use crate::scalar::CodeForm;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are valid by
        // the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

/// Proof that this CPU has dot products, beside what [`Neon`] proves.
#[derive(Clone, Copy)]
pub(crate) struct Dot(Neon);

impl Dot {
    /// Returns the token if this CPU has the instructions.
    pub(crate) fn detect(of: Neon) -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Dot(of))
    }

    /// Adds to each lane the sum of four products of signed bytes.
    #[inline(always)]
    fn dot(self, mut a: int32x4_t, b: uint8x16_t, c: int8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that this CPU has the instruction, whose intrinsic is not stable. It reads
        // and writes registers alone.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {a:v}.4s, {b:v}.16b, {c:v}.16b",
                a = inout(vreg) a,
                b = in(vreg) b,
                c = in(vreg) c,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        a
    }
}

/// The sums of the lanes of four registers.
#[inline(always)]
fn sums_of(s: &[int32x4_t]) -> int32x4_t {
    // SAFETY: all CPUs of 64 bits have NEON.
    unsafe { vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])) }
}

/// A signed byte of one of 16 runs.
#[inline(always)]
fn of_run(runs: [u64; 2], run: usize) -> i8 {
    (runs[run / 8] >> (8 * (run % 8))) as i8
}

impl Compiled for Dot {
    #[inline(never)]
    fn compiled<J: SimdJob<Self>>(self, job: J) {
        job.run(self);
    }
}

impl Integers for Dot {
    type S = Neon;
    type I = [int32x4_t; 2];
    type R = [int32x4_t; 2];
    const REGS: usize = 2;
    const BIAS: u8 = 0;

    #[inline(always)]
    fn simd(self) -> Neon {
        self.0
    }
    #[inline(always)]
    unsafe fn load_two(self, first: *const u8, second: *const u8) -> Unit<Self> {
        allowed!([
            vld1q_u8(first),
            vld1q_u8(first.add(16)),
            vld1q_u8(second),
            vld1q_u8(second.add(16)),
        ])
    }
    #[inline(always)]
    unsafe fn nibbles_b(self, p: *const u8) -> Unit<Self> {
        let mut codes = [allowed!(vdupq_n_u8(0)); 4];
        for half in 0..2 {
            allowed! {
                let bytes = vld1q_u8(p.add(16 * half));
                let low = vandq_u8(bytes, vdupq_n_u8(15));
                let high = vshrq_n_u8::<4>(bytes);
                codes[2 * half] = vzip1q_u8(low, high);
                codes[2 * half + 1] = vzip2q_u8(low, high);
            }
        }
        codes
    }
    #[inline(always)]
    unsafe fn apart_b(self, p: *const u8) -> Unit<Self> {
        allowed! {
            let first = vld1q_u8(p);
            let last = vld1q_u8(p.add(16));
            let even = vuzp1q_u8(first, last);
            let odd = vuzp2q_u8(first, last);
            let fifteen = vdupq_n_u8(15);
            [
                vandq_u8(even, fifteen),
                vshrq_n_u8::<4>(even),
                vandq_u8(odd, fifteen),
                vshrq_n_u8::<4>(odd),
            ]
        }
    }
    #[inline(always)]
    fn lookup_b(self, table: &[u8; 16], nibbles: Unit<Self>) -> Unit<Self> {
        let mut codes = nibbles;
        for i in 0..4 {
            codes[i] = allowed!(vqtbl1q_u8(vld1q_u8(table.as_ptr()), nibbles[i]));
        }
        codes
    }
    #[inline(always)]
    unsafe fn sums(
        self,
        form: CodeForm,
        codes: [Unit<Self>; 4],
        x: *const i8,
        runs: [u64; 2],
    ) -> Self::I {
        let zero = allowed!(vdupq_n_s32(0));
        let mut sums = [zero; 8];
        for run in 0..16 {
            let codes = codes[run / 4][run % 4];
            let block = run / 2;
            let x = allowed!(vld1q_s8(x.add(16 * run)));
            sums[block] = match form.runs {
                true => {
                    let own = self.dot(zero, codes, x);
                    allowed!(vmlaq_n_s32(sums[block], own, of_run(runs, run).into()))
                }
                false => self.dot(sums[block], codes, x),
            };
        }
        [sums_of(&sums[..4]), sums_of(&sums[4..])]
    }
    #[inline(always)]
    unsafe fn of_runs(self, runs: [u64; 2], numbers: *const i16) -> Self::I {
        let mut sums = [[0i32; 4]; 2];
        for run in 0..16 {
            // SAFETY: by the contract of the trait.
            let number = unsafe { numbers.add(run).read_unaligned() };
            sums[run / 8][run % 8 / 2] += i32::from(of_run(runs, run)) * i32::from(number);
        }
        allowed!([vld1q_s32(sums[0].as_ptr()), vld1q_s32(sums[1].as_ptr())])
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        allowed!([vld1q_s32(p), vld1q_s32(p.add(4))])
    }
    #[inline(always)]
    fn less(self, a: Self::I, by: u8, b: Self::I) -> Self::I {
        let by = i32::from(by);
        allowed!([vmlsq_n_s32(a[0], b[0], by), vmlsq_n_s32(a[1], b[1], by)])
    }
    #[inline(always)]
    fn numbers(self, a: Self::I) -> Eight<Self> {
        allowed!([vcvtq_f32_s32(a[0]), vcvtq_f32_s32(a[1])])
    }
    #[inline(always)]
    fn mul_h(self, a: Eight<Self>, b: Eight<Self>) -> Eight<Self> {
        allowed!([vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])])
    }
    #[inline(always)]
    fn first_h(self, a: Eight<Self>, count: usize) -> Eight<Self> {
        let mut numbers = [0.0; 8];
        // SAFETY: eight numbers.
        unsafe {
            self.0.store_h(a, numbers.as_mut_ptr());
            numbers[count.min(8)..].fill(0.0);
            self.0.load_h(numbers.as_ptr())
        }
    }
    #[inline(always)]
    fn in_panel(self, _: CodeForm, codes: Unit<Self>) -> Unit<Self> {
        codes
    }
    #[inline(always)]
    fn of_run(self, run: i8) -> i32 {
        run.into()
    }
    #[inline(always)]
    fn splat_r(self, value: i32) -> Self::R {
        allowed!([vdupq_n_s32(value); 2])
    }
    #[inline(always)]
    unsafe fn load_r(self, p: *const i32) -> Self::R {
        // SAFETY: by the contract of the trait.
        unsafe { self.load_i(p) }
    }
    #[inline(always)]
    unsafe fn pairs_r(self, of_rows: *const i32, numbers: *const i16) -> Self::R {
        let mut sums = [allowed!(vdupq_n_s32(0)); 2];
        for half in 0..2 {
            sums[half] = allowed! {
                let [first, second] = numbers.cast::<[i16; 2]>().read_unaligned();
                let pairs = vld1q_s32(of_rows.add(4 * half));
                let low = vshrq_n_s32::<16>(vshlq_n_s32::<16>(pairs));
                let sum = vmulq_n_s32(low, first.into());
                vmlaq_n_s32(sum, vshrq_n_s32::<16>(pairs), second.into())
            };
        }
        sums
    }
    #[inline(always)]
    fn less_r(self, a: Self::R, by: u8, b: Self::R) -> Self::R {
        self.less(a, by, b)
    }
    #[inline(always)]
    fn numbers_r(self, a: Self::R) -> RowRegister<Self> {
        self.numbers(a)
    }
    #[inline(always)]
    fn splat_t(self, value: f32) -> RowRegister<Self> {
        allowed!([vdupq_n_f32(value); 2])
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
        let mut of_run = [[self.splat_r(0); N]; M];
        for k in 0..8 {
            let mut x4 = [allowed!(vdupq_n_s8(0)); N];
            for n in 0..N {
                x4[n] = allowed! {
                    vreinterpretq_s8_s32(vdupq_n_s32(x[n].add(4 * k).cast::<i32>().read_unaligned()))
                };
            }
            for m in 0..M {
                for half in 0..2 {
                    let w = allowed!(vld1q_u8(w.add(16 * (2 * (k * M + m) + half))));
                    for n in 0..N {
                        let sum = if CLASS == class::RUNS { &mut of_run } else { &mut sums };
                        sum[m][n][half] = self.dot(sum[m][n][half], w, x4[n]);
                    }
                }
            }
            if CLASS == class::RUNS && k % 4 == 3 {
                for m in 0..M {
                    // SAFETY: by the contract of the trait.
                    let scale = unsafe { self.load_r(runs.add(8 * (k / 4 * M + m))) };
                    for n in 0..N {
                        for half in 0..2 {
                            let own = of_run[m][n][half];
                            sums[m][n][half] =
                                allowed!(vmlaq_s32(sums[m][n][half], own, scale[half]));
                        }
                        of_run[m][n] = self.splat_r(0);
                    }
                }
            }
        }
        sums
    }
}
