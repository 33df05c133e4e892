//! [`Integers`] in plain Rust.

use super::super::Portable;
use super::{Eight, Integers, RowRegister, Unit, class};
use crate::scalar::CodeForm;

/// Lanes of a register of rows.
const LANES: usize = 8;

impl Integers for Portable {
    type S = Portable;
    type I = [i32; 8];
    type R = [i32; LANES];
    const REGS: usize = 1;
    const BIAS: u8 = 0;

    #[inline(always)]
    fn simd(self) -> Portable {
        self
    }
    #[inline(never)]
    unsafe fn load_two(self, first: *const u8, second: *const u8) -> Unit<Self> {
        let mut both = [0; 64];
        // SAFETY: by the contract of the trait.
        unsafe {
            both[..32].copy_from_slice(&first.cast::<[u8; 32]>().read_unaligned());
            both[32..].copy_from_slice(&second.cast::<[u8; 32]>().read_unaligned());
        }
        both
    }
    #[inline(never)]
    unsafe fn nibbles_b(self, p: *const u8) -> Unit<Self> {
        // SAFETY: by the contract of the trait.
        let bytes = unsafe { p.cast::<[u8; 32]>().read_unaligned() };
        std::array::from_fn(|i| bytes[i / 2] >> (4 * (i % 2)) & 15)
    }
    #[inline(never)]
    unsafe fn apart_b(self, p: *const u8) -> Unit<Self> {
        // SAFETY: by the contract of the trait.
        let bytes = unsafe { p.cast::<[u8; 32]>().read_unaligned() };
        std::array::from_fn(|i| bytes[2 * (i % 16) + i / 32] >> (4 * (i / 16 % 2)) & 15)
    }
    #[inline(never)]
    fn lookup_b(self, table: &[u8; 16], nibbles: Unit<Self>) -> Unit<Self> {
        nibbles.map(|nibble| table[usize::from(nibble & 15)])
    }
    #[inline(never)]
    unsafe fn sums(
        self,
        form: CodeForm,
        codes: [Unit<Self>; 4],
        x: *const i8,
        runs: [u64; 2],
    ) -> Self::I {
        // SAFETY: by the contract of the trait.
        let x = unsafe { x.cast::<[[i8; 16]; 16]>().read_unaligned() };
        let runs = runs.map(u64::to_le_bytes);
        let mut sums = [0; 8];
        for run in 0..16 {
            let mut sum = 0;
            for i in 0..16 {
                let code = codes[run / 4][run % 4 * 16 + i];
                let code = if form.signed { i32::from(code as i8) } else { i32::from(code) };
                sum += code * i32::from(x[run][i]);
            }
            let scale = if form.runs { i32::from(runs[run / 8][run % 8] as i8) } else { 1 };
            sums[run / 2] += sum * scale;
        }
        sums
    }
    #[inline(never)]
    unsafe fn of_runs(self, runs: [u64; 2], numbers: *const i16) -> Self::I {
        let runs = runs.map(u64::to_le_bytes);
        // SAFETY: by the contract of the trait.
        let numbers = unsafe { numbers.cast::<[i16; 16]>().read_unaligned() };
        let product = |i: usize| i32::from(runs[i / 8][i % 8] as i8) * i32::from(numbers[i]);
        std::array::from_fn(|block| product(2 * block) + product(2 * block + 1))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    fn less(self, a: Self::I, by: u8, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] - i32::from(by) * b[i])
    }
    #[inline(always)]
    fn numbers(self, a: Self::I) -> Eight<Self> {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn mul_h(self, a: Eight<Self>, b: Eight<Self>) -> Eight<Self> {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn first_h(self, a: Eight<Self>, count: usize) -> Eight<Self> {
        std::array::from_fn(|i| if i < count { a[i] } else { 0.0 })
    }
    #[inline(always)]
    fn in_panel(self, _: CodeForm, codes: Unit<Self>) -> Unit<Self> {
        codes
    }
    #[inline(always)]
    fn of_run(self, run: i8) -> i32 {
        i32::from(run)
    }
    #[inline(always)]
    fn splat_r(self, value: i32) -> Self::R {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load_r(self, p: *const i32) -> Self::R {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::R>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn pairs_r(self, of_rows: *const i32, numbers: *const i16) -> Self::R {
        // SAFETY: by the contract of the trait.
        let (of_rows, [first, second]) = unsafe {
            (self.load_r(of_rows), numbers.cast::<[i16; 2]>().read_unaligned().map(i32::from))
        };
        of_rows.map(|pair| i32::from(pair as i16) * first + (pair >> 16) * second)
    }
    #[inline(always)]
    fn less_r(self, a: Self::R, by: u8, b: Self::R) -> Self::R {
        std::array::from_fn(|i| a[i] - i32::from(by) * b[i])
    }
    #[inline(always)]
    fn numbers_r(self, a: Self::R) -> RowRegister<Self> {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn splat_t(self, value: f32) -> RowRegister<Self> {
        [value; LANES]
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
        for k in 0..8 {
            for m in 0..M {
                // SAFETY: by the contract of the trait.
                let (w, run) = unsafe {
                    let w = w.add(4 * LANES * (k * M + m)).cast::<[[u8; 4]; LANES]>();
                    let run = match CLASS {
                        class::RUNS => self.load_r(runs.add(LANES * (k / 4 * M + m))),
                        _ => [1; LANES],
                    };
                    (w.read_unaligned(), run)
                };
                for n in 0..N {
                    // SAFETY: likewise.
                    let x = unsafe { x[n].add(4 * k).cast::<[i8; 4]>().read_unaligned() };
                    for i in 0..LANES {
                        let mut sum = 0;
                        for j in 0..4 {
                            let code = match CLASS {
                                class::SIGNED => i32::from(w[i][j] as i8),
                                _ => i32::from(w[i][j]),
                            };
                            sum += code * i32::from(x[j]);
                        }
                        sums[m][n][i] += sum * run[i];
                    }
                }
            }
        }
        sums
    }
}
