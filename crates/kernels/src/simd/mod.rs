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
#[path = "../encodings/bf11/simd.rs"]
mod bf11;
mod bytes;
#[path = "../encodings/gguf/simd/mod.rs"]
mod codebook;
mod codes;
#[path = "../encodings/fp7/simd.rs"]
mod fp7;
mod groups;
pub(crate) mod int8;
#[cfg(target_arch = "aarch64")]
mod neon;
#[path = "../encodings/nested/simd.rs"]
mod nested;
mod portable;

pub(crate) use bf11::{Tiers, bf11_tail};
pub(crate) use bytes::Bytes;
pub(crate) use codebook::Codebook;
pub(crate) use codes::Codes;
pub(crate) use groups::{Bf16s, Groups, ScaleMap, bf16s};
pub(crate) use portable::Portable;

use crate::matmul::{Decode, Operands};
use crate::reference::BLOCK;

/// Code for [`Simd::compiled`]. Its `run` is `#[inline(always)]`.
pub(crate) trait SimdJob<S> {
    fn run(self, s: S);
}

/// Vector operations. Decoding works on 16 lanes (`F` and `U`), tiles of many tokens on one
/// register (`T`).
///
/// Every method is `#[inline(always)]`: otherwise it would be compiled for the baseline CPU.
///
/// # Safety
///
/// Methods that take a pointer read or write the stated number of bytes, with any alignment.
pub(crate) trait Simd: Codebook + Codes {
    /// One register of a tile.
    type T: Copy;
    /// Lookup table of the exponents of bf12.
    type Exponents: Copy;
    /// Lookup table of the exponents of bf11.
    type Tiers: Copy;
    /// Lanes of `T`.
    const TILE_LANES: usize;
    /// Rows of a tile.
    const TILE_ROWS: usize;
    /// Tokens of a tile.
    const TILE_TOKENS: usize;
    /// True if products with one token decode every encoding in registers. Otherwise the rarer ones
    /// are decoded to memory first, which is slower and makes the program smaller.
    const DECODES_ALL: bool;
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
    /// Replaces the exponents of lanes whose code (low four bits) is 15 by the next `patches`, in
    /// ascending order, and advances `patches`. Exponents are at bits 23 and above. A lane for
    /// which no patch is left keeps its exponent. Works on four registers and is kept out of line:
    /// it is rare, and inlined it kept the compiler from unrolling the surrounding loop (bf12 ran
    /// at a third of its speed).
    fn patch(self, exponents: &mut [Self::U; 4], codes: &[Self::U; 4], patches: &mut &[u8]);

    fn exponents(self, table: &[u8; 16]) -> Self::Exponents;
    /// Decodes the 64 columns of a whole block of bf12, whose 96 bytes are at `p`. Escapes consume
    /// `patches`.
    unsafe fn bf12(
        self,
        exponents: Self::Exponents,
        p: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4];

    fn tiers(self, tiers: &Tiers) -> Self::Tiers;
    /// Decodes the exponents of 64 columns of bf11, given the planes of their codes, in the order of
    /// these. Escapes consume `patches`.
    fn bf11_exponents(
        self,
        tiers: &Self::Tiers,
        planes: [u64; 2],
        patches: &mut &[u8],
    ) -> [u8; BLOCK];
    /// Decodes the 64 columns of a whole block of bf11, whose 80 bytes are at `p`. Escapes consume
    /// `patches`.
    unsafe fn bf11(self, tiers: &Self::Tiers, p: *const u8, patches: &mut &[u8]) -> [Self::F; 4];

    /// Decodes the 64 columns of a whole block of fp7, whose 48 bytes are at `p`, without their scales: the
    /// fields of e4m3 are in the places of those of an f32. Returns whether any code is NaN. Escapes
    /// consume `patches`.
    #[inline(always)]
    unsafe fn fp7(
        self,
        tiers: &Self::Tiers,
        p: *const u8,
        patches: &mut &[u8],
    ) -> ([Self::F; 4], bool) {
        // SAFETY: by this method's contract.
        unsafe { fp7::by_bytes(self, tiers, p, patches) }
    }

    /// Decodes the 64 columns of a block of nested, whose rest has 48 bytes and whose top has 34, with
    /// the table of [`DISTANCES`](crate::reference::DISTANCES). Escapes consume `patches`.
    #[inline(always)]
    unsafe fn nested(
        self,
        distances: &Self::Tiers,
        rest: *const u8,
        top: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4] {
        // SAFETY: by this method's contract.
        unsafe { nested::by_bytes(self, distances, rest, top, patches) }
    }

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

    /// [`tile`](crate::matmul::tile) of `tokens` tokens, compiled for this instruction set.
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

    /// [`decode`](crate::matmul::decode), compiled for this instruction set.
    fn decode(self, job: Decode<'_, '_>);

    /// Runs a job in a function of its own that is compiled for this instruction set.
    fn compiled<J: SimdJob<Self>>(self, job: J);
}

/// The exponent table of [`bf12_columns`], with the exponents at bits 23 to 30.
#[inline(always)]
pub(crate) fn exponent_lanes<S: Simd>(s: S, table: &[u8; 16]) -> S::F {
    let table = table.map(|e| f32::from_bits(u32::from(e) << 23));
    // SAFETY: 16 × f32 are 64 bytes.
    unsafe { s.load(table.as_ptr()) }
}

/// [`Simd::bf12`] in terms of 32-bit lanes.
///
/// # Safety
///
/// As for [`Simd::bf12`].
#[inline(always)]
unsafe fn bf12_by_lanes<S: Simd>(
    s: S,
    exponents: S::F,
    p: *const u8,
    patches: &mut &[u8],
) -> [S::F; 4] {
    // SAFETY: 64 and 32 bytes of the block's 96.
    let (bytes, codes) = unsafe { (s.load_u32(p), s.load_u16(p.add(64))) };
    bf12_columns(s, exponents, bytes, codes, patches)
}

/// Decodes the `n` columns after the last whole block of a bf12 row and pads them with zeros. They
/// are stored in order: `n` bytes of signs and mantissas, then the codes.
#[inline(always)]
pub(crate) fn bf12_tail<S: Simd>(
    s: S,
    exponents: S::F,
    tail: &[u8],
    n: usize,
    patches: &mut &[u8],
) -> [S::F; 4] {
    let mut bytes = [0; BLOCK];
    let mut codes = [0; BLOCK / 2];
    bytes[..n].copy_from_slice(&tail[..n]);
    codes[..n.div_ceil(2)].copy_from_slice(&tail[n..]);
    let fifteen = s.splat_u(15);
    let b = bytes.as_ptr();
    let c = codes.as_ptr();
    // Arranged like the words of a whole block.
    // SAFETY: 64 bytes, 16 per load.
    let bytes = unsafe {
        let low = s.or(s.load_u8(b), s.shl::<8>(s.load_u8(b.add(16))));
        s.or(low, s.or(s.shl::<16>(s.load_u8(b.add(32))), s.shl::<24>(s.load_u8(b.add(48)))))
    };
    // SAFETY: 32 bytes, 8 per load.
    let [c0, c1, c2, c3] = unsafe {
        [
            s.and(s.load_nibbles(c), fifteen),
            s.and(s.load_nibbles(c.add(8)), fifteen),
            s.and(s.load_nibbles(c.add(16)), fifteen),
            s.and(s.load_nibbles(c.add(24)), fifteen),
        ]
    };
    let codes = s.or(s.or(c0, s.shl::<4>(c1)), s.or(s.shl::<8>(c2), s.shl::<12>(c3)));
    keep(s, bf12_columns(s, exponents, bytes, codes, patches), n)
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

/// The planes of a whole block of bf11.
///
/// # Safety
///
/// 80 bytes at `p` must be readable.
#[inline(always)]
unsafe fn bf11_planes(p: *const u8) -> [u64; 2] {
    // SAFETY: by this function's contract.
    unsafe { planes_at(p.add(BLOCK)) }
}

/// Two planes.
///
/// # Safety
///
/// 16 bytes at `p` must be readable.
#[inline(always)]
unsafe fn planes_at(p: *const u8) -> [u64; 2] {
    // SAFETY: by this function's contract.
    unsafe {
        let [low, high] = p.cast::<[u64; 2]>().read_unaligned();
        [u64::from_le(low), u64::from_le(high)]
    }
}

/// Decodes 64 columns of bf12. Lane `i` of `bytes` and of `codes` holds columns `i`, `16 + i`,
/// `32 + i` and `48 + i`, from its low bits up.
#[inline(always)]
fn bf12_columns<S: Simd>(
    s: S,
    exponents: S::F,
    bytes: S::U,
    codes: S::U,
    patches: &mut &[u8],
) -> [S::F; 4] {
    let codes = [codes, s.shr::<4>(codes), s.shr::<8>(codes), s.shr::<12>(codes)];
    let mut exponents = [
        s.bits(s.lookup(exponents, codes[0])),
        s.bits(s.lookup(exponents, codes[1])),
        s.bits(s.lookup(exponents, codes[2])),
        s.bits(s.lookup(exponents, codes[3])),
    ];
    // An escape is a nibble of 15, all four bits set: one in some thousands.
    let pairs = s.and(codes[0], s.shr::<1>(codes[0]));
    let all = s.and(s.and(pairs, s.shr::<2>(pairs)), s.splat_u(0x1111));
    if s.any(all) {
        std::hint::cold_path();
        let mut patched = exponents;
        s.patch(&mut patched, &codes, patches);
        exponents = patched;
    }
    // Sign and mantissa go to bits 31 and 16 to 22: the byte is shifted to the top, then down by 8
    // with sign extension.
    let rest = s.splat_u(0x807f_0000);
    let bytes = [s.shl::<24>(bytes), s.shl::<16>(bytes), s.shl::<8>(bytes), bytes];
    let mut joined = [s.splat(0.0); 4];
    for k in 0..4 {
        joined[k] = s.float(s.or(s.and(s.sra::<8>(bytes[k]), rest), exponents[k]));
    }
    joined
}
