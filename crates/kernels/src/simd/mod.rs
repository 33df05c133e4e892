//! CPU operations that the kernels need, on sixteen lanes at a time, written once per instruction
//! set.
//!
//! The kernels are generic over [`Simd`] and inlined whole into one function per instruction set
//! that is compiled for it. The implementor is a proof token, so its methods may use the
//! instructions that it proves; only pointers need care.

// Loops over registers by index are unrolled; some with iterators were not.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bytes;
mod codes;
mod groups;
pub(crate) mod int8;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
mod portable;
mod tile;

pub(crate) use bytes::Bytes;
pub(crate) use codes::Codes;
pub(crate) use groups::{Bf16s, Groups, ScaleMap, scaled};
pub(crate) use portable::Portable;
pub(crate) use tile::{Operands, tile};

use crate::scalar::BLOCK;

/// Code for [`Compiled::compiled`]. Its `run` is `#[inline(always)]`.
pub(crate) trait SimdJob<S> {
    fn run(self, s: S);
}

/// A proof token of instructions.
pub(crate) trait Compiled: Copy {
    /// Runs a job in a function of its own that is compiled for these instructions.
    ///
    /// One function of all variants of a kernel would take the compiler far longer than one for each.
    fn compiled<J: SimdJob<Self>>(self, job: J);
}

/// Vector operations. Decoding works on 16 lanes (`F` and `U`), tiles of many tokens on one
/// register (`T`).
///
/// Every method is `#[inline(always)]`: otherwise it would be compiled for the baseline CPU.
///
/// # Safety
///
/// Methods that take a pointer read or write the stated number of bytes, with any alignment.
pub(crate) trait Simd: Codes + Compiled {
    /// One register of a tile.
    type T: Copy;
    /// Lanes of `T`.
    const TILE_LANES: usize;
    /// Rows of a tile.
    const TILE_ROWS: usize;
    /// Tokens of a tile.
    const TILE_TOKENS: usize;
    /// True if products with one token decode weights in registers. Otherwise they are decoded to
    /// memory first, which is slower and makes the program smaller.
    const IN_REGISTERS: bool;
    /// Blocks of a row that products with one token use before those of the next row. Where sums and
    /// activations of several rows exceed the registers, a few blocks share the loads of the sums.
    const SPAN: usize;

    fn splat(self, value: f32) -> Self::F;
    /// An f16 number, widened, in all lanes.
    fn splat_f16(self, bits: u16) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Reinterprets bits as floats.
    fn float(self, bits: Self::U) -> Self::F;
    /// Lane by lane `table[index mod 16]`.
    fn lookup(self, table: Self::F, index: Self::U) -> Self::F;
    /// The fixed tree over lanes 0..16 and 16..32.
    fn reduce(self, low: Self::F, high: Self::F) -> f32;

    fn splat_u(self, value: u32) -> Self::U;
    fn shl<const N: u32>(self, a: Self::U) -> Self::U;
    fn shr<const N: u32>(self, a: Self::U) -> Self::U;
    /// Shifts the sign in.
    fn sra<const N: u32>(self, a: Self::U) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn or(self, a: Self::U, b: Self::U) -> Self::U;
    fn add_u(self, a: Self::U, b: Self::U) -> Self::U;
    fn bits(self, a: Self::F) -> Self::U;
    /// True if any bit is set.
    fn any(self, a: Self::U) -> bool;
    /// Reads 64 bytes.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// Reads 64 bytes.
    unsafe fn load_u32(self, p: *const u8) -> Self::U;
    /// Reads 32 bytes.
    unsafe fn load_u16(self, p: *const u8) -> Self::U;
    /// Reads 16 bytes.
    unsafe fn load_u8(self, p: *const u8) -> Self::U;
    /// Reads 16 signed bytes and converts them to f32.
    unsafe fn load_i8(self, p: *const u8) -> Self::F;
    /// Reads 16 signed bytes.
    unsafe fn load_s8(self, p: *const u8) -> Self::U;
    /// Reads 16 f16 numbers and widens them.
    unsafe fn load_f16(self, p: *const u8) -> Self::F;
    /// Reads 8 bytes and puts their nibbles, the low one first, into the low four bits of the
    /// lanes. Higher bits are unspecified.
    unsafe fn load_nibbles(self, p: *const u8) -> Self::U;

    /// Prefetches the cache line at `p`, which may be any address.
    fn prefetch(self, p: *const u8);
    /// Writes `TILE_LANES` lanes at `p`, the next at `p + stride` and so on.
    unsafe fn store_slices(self, a: Self::F, p: *mut f32, stride: usize);
    /// Reads one `T`.
    unsafe fn load_t(self, p: *const f32) -> Self::T;
    /// Writes one `T`.
    unsafe fn store_t(self, p: *mut f32, a: Self::T);
    /// The fixed tree over 32 lanes: a slice of `TILE_LANES` of them at `p`, the next at
    /// `p + stride` and so on.
    unsafe fn reduce_slices(self, p: *const f32, stride: usize) -> f32;
    fn zero_t(self) -> Self::T;
    fn mul_t(self, a: Self::T, b: Self::T) -> Self::T;
    fn fma_t(self, a: Self::T, b: Self::T, c: Self::T) -> Self::T;

    /// [`tile`](tile()) of `tokens` tokens, compiled for this instruction set.
    ///
    /// # Safety
    ///
    /// As for `tile`.
    unsafe fn tile(
        self,
        tokens: usize,
        steps: usize,
        operands: Operands,
        acc: *mut f32,
        first: bool,
    );
}

/// The first `n` numbers of a block, and zeros.
#[inline(always)]
pub(crate) fn keep<S: Simd>(s: S, w: [S::F; 4], n: usize) -> [S::F; 4] {
    let kept: *const u8 = kept(n).as_ptr().cast();
    // SAFETY: 64 numbers, 16 per load.
    unsafe {
        [
            s.float(s.and(s.bits(w[0]), s.load_u32(kept))),
            s.float(s.and(s.bits(w[1]), s.load_u32(kept.add(64)))),
            s.float(s.and(s.bits(w[2]), s.load_u32(kept.add(128)))),
            s.float(s.and(s.bits(w[3]), s.load_u32(kept.add(192)))),
        ]
    }
}

/// All bits of the first `n` numbers of a block, and none of the others.
#[inline(always)]
fn kept(n: usize) -> &'static [u32] {
    static KEPT: [u32; 2 * BLOCK] = {
        let mut kept = [0; 2 * BLOCK];
        let mut i = 0;
        while i < BLOCK {
            kept[i] = u32::MAX;
            i += 1;
        }
        kept
    };
    &KEPT[BLOCK - n..][..BLOCK]
}

/// The 64 numbers of a block.
#[inline(always)]
pub(crate) fn load_block<S: Simd>(s: S, x: &[f32; BLOCK]) -> [S::F; 4] {
    let p = x.as_ptr();
    // SAFETY: the array has 64 f32.
    unsafe { [s.load(p), s.load(p.add(16)), s.load(p.add(32)), s.load(p.add(48))] }
}

/// Registers in memory, from where a broadcast of one of their numbers takes none of the CPU's units for
/// shuffles, of which decoders have many.
#[inline(always)]
pub(crate) fn in_memory<S: Simd>(s: S, a: S::F) -> [f32; 16] {
    let mut numbers = [0.0; 16];
    // SAFETY: 16 numbers, in slices one after another.
    unsafe { s.store_slices(a, numbers.as_mut_ptr(), S::TILE_LANES) };
    numbers
}
