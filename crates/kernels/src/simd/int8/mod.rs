//! Exact sums of codes and activations of eight bits: see [`CodeForm`](crate::scalar::CodeForm).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod vnni;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Dot;
#[cfg(target_arch = "x86_64")]
pub(crate) use vnni::Vnni;

use super::{Bytes, Codes, Compiled, Simd};
use crate::scalar::CodeForm;

/// The 64 codes of a unit.
pub(crate) type Unit<N> = <<N as Integers>::S as Bytes>::B;

/// Eight numbers, one for each block of a span.
pub(crate) type Eight<N> = <<N as Integers>::S as Codes>::H;

/// A register of rows, as numbers.
pub(crate) type RowRegister<N> = <<N as Integers>::S as Simd>::T;

/// Ways to sum the products of a block in tiles. They differ in what fits where.
pub(crate) mod class {
    use crate::scalar::CodeForm;

    /// Codes of four bits.
    pub(crate) const FOUR_BITS: u8 = 0;
    /// Codes of five bits.
    pub(crate) const FIVE_BITS: u8 = 1;
    /// Signed bytes.
    pub(crate) const SIGNED: u8 = 2;
    /// Runs of 16 columns are scaled by whole numbers.
    pub(crate) const RUNS: u8 = 3;

    /// That of a form.
    pub(crate) const fn of(form: CodeForm) -> u8 {
        match (form.signed, form.runs, form.most) {
            (true, ..) => SIGNED,
            (_, true, _) => RUNS,
            (.., ..16) => FOUR_BITS,
            _ => FIVE_BITS,
        }
    }
}

/// Operations on whole numbers of eight bits and their sums.
///
/// Every method is `#[inline(always)]`, as those of [`Bytes`] are. No sum of products leaves 32 bits, nor
/// 16 where it is kept in as many, so that its order does not matter.
///
/// # Safety
///
/// Methods that take a pointer read or write the stated number of bytes, with any alignment.
pub(crate) trait Integers: Compiled {
    /// The tier's other operations.
    type S: Simd;
    /// 8 × i32, one for each block of a span.
    type I: Copy;
    /// A register of rows of a tile: as many i32 as [`Simd::T`] has numbers.
    type R: Copy;
    /// Registers of rows of a tile.
    const REGS: usize;
    /// What is added to signed codes.
    const BIAS: u8;

    fn simd(self) -> Self::S;

    /// Reads 32 bytes for each half.
    unsafe fn load_two(self, first: *const u8, second: *const u8) -> Unit<Self>;
    /// The nibbles of 32 bytes, the low one of each first.
    unsafe fn nibbles_b(self, p: *const u8) -> Unit<Self>;
    /// The low nibbles of 32 even bytes of 32, then their high ones, then those of the odd bytes.
    unsafe fn apart_b(self, p: *const u8) -> Unit<Self>;
    /// Codes of nibbles.
    fn lookup_b(self, table: &[u8; 16], nibbles: Unit<Self>) -> Unit<Self>;

    /// The sums of the products of the codes of a span and 256 activations, one for each block. Runs of 16
    /// columns are multiplied by signed bytes if they have such. With [`BIAS`](Self::BIAS), signed codes
    /// count so much more.
    unsafe fn sums(
        self,
        form: CodeForm,
        codes: [Unit<Self>; 4],
        x: *const i8,
        runs: [u64; 2],
    ) -> Self::I;
    /// For each block the sum of two products of a signed byte and a number of 16 bits.
    unsafe fn of_runs(self, runs: [u64; 2], numbers: *const i16) -> Self::I;
    /// Reads 8 numbers.
    unsafe fn load_i(self, p: *const i32) -> Self::I;
    /// `a - by · b`
    fn less(self, a: Self::I, by: u8, b: Self::I) -> Self::I;
    /// Converts to f32.
    fn numbers(self, a: Self::I) -> Eight<Self>;
    fn mul_h(self, a: Eight<Self>, b: Eight<Self>) -> Eight<Self>;
    /// The first so many numbers, and zeros.
    fn first_h(self, a: Eight<Self>, count: usize) -> Eight<Self>;

    /// The codes of a unit as tiles hold them.
    fn in_panel(self, form: CodeForm, codes: Unit<Self>) -> Unit<Self>;
    /// A whole number that scales a run, as tiles hold it.
    fn of_run(self, run: i8) -> i32;
    fn splat_r(self, value: i32) -> Self::R;
    /// Reads a register.
    unsafe fn load_r(self, p: *const i32) -> Self::R;
    /// For each row the sum of the products of two numbers of 16 bits and two others.
    unsafe fn pairs_r(self, of_rows: *const i32, numbers: *const i16) -> Self::R;
    /// `a - by · b`
    fn less_r(self, a: Self::R, by: u8, b: Self::R) -> Self::R;
    /// Converts to f32.
    fn numbers_r(self, a: Self::R) -> RowRegister<Self>;
    fn splat_t(self, value: f32) -> RowRegister<Self>;
    /// Adds to `first` the sums of the products of a block, for each row and token. Four codes of each row
    /// are in a number of 32 bits, eight for a block, and all rows' beside each other. `x` has the 32
    /// activations of each token; `runs` are two numbers for each row, of the first run and of the second.
    unsafe fn block<const CLASS: u8, const M: usize, const N: usize>(
        self,
        w: *const u8,
        runs: *const i32,
        x: [*const i8; N],
        first: [Self::R; N],
    ) -> [[Self::R; N]; M];
}
