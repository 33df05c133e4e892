//! Operations on bf12: exponents looked up by their codes, patched where these are escapes, and united with
//! signs and mantissas.

use crate::scalar::BLOCK;
use crate::simd::{Portable, Simd, keep};

/// Operations that each instruction set has for bf12.
///
/// Every method is `#[inline(always)]`, as those of [`Simd`] are.
///
/// # Safety
///
/// Methods that take a pointer read the stated number of bytes, with any alignment.
pub(crate) trait Bf12Simd: Simd {
    /// Lookup table of the exponents.
    type Exponents: Copy;

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
}

/// The exponent table of [`columns`], with the exponents at bits 23 to 30.
#[inline(always)]
pub(super) fn exponent_lanes<S: Simd>(s: S, table: &[u8; 16]) -> S::F {
    let table = table.map(|e| f32::from_bits(u32::from(e) << 23));
    // SAFETY: 16 × f32 are 64 bytes.
    unsafe { s.load(table.as_ptr()) }
}

/// [`Bf12Simd::bf12`] in terms of 32-bit lanes.
///
/// # Safety
///
/// As for [`Bf12Simd::bf12`].
#[inline(always)]
pub(super) unsafe fn by_lanes<S: Bf12Simd>(
    s: S,
    exponents: S::F,
    p: *const u8,
    patches: &mut &[u8],
) -> [S::F; 4] {
    // SAFETY: 64 and 32 bytes of the block's 96.
    let (bytes, codes) = unsafe { (s.load_u32(p), s.load_u16(p.add(64))) };
    columns(s, exponents, bytes, codes, patches)
}

/// Decodes the `n` columns after the last whole block of a bf12 row and pads them with zeros. They
/// are stored in order: `n` bytes of signs and mantissas, then the codes.
#[inline(always)]
pub(super) fn tail<S: Bf12Simd>(
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
    keep(s, columns(s, exponents, bytes, codes, patches), n)
}

/// Decodes 64 columns of bf12. Lane `i` of `bytes` and of `codes` holds columns `i`, `16 + i`,
/// `32 + i` and `48 + i`, from its low bits up.
#[inline(always)]
fn columns<S: Bf12Simd>(
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

impl Bf12Simd for Portable {
    type Exponents = Self::F;

    #[inline(always)]
    fn patch(self, exponents: &mut [Self::U; 4], codes: &[Self::U; 4], patches: &mut &[u8]) {
        patch_lanes(exponents, codes, patches);
    }
    #[inline(always)]
    fn exponents(self, table: &[u8; 16]) -> Self::Exponents {
        exponent_lanes(self, table)
    }
    #[inline(always)]
    unsafe fn bf12(
        self,
        exponents: Self::Exponents,
        p: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe { by_lanes(self, exponents, p, patches) }
    }
}

/// [`Bf12Simd::patch`], one lane at a time.
#[cold]
#[inline(never)]
pub(super) fn patch_lanes(
    exponents: &mut [[u32; 16]; 4],
    codes: &[[u32; 16]; 4],
    patches: &mut &[u8],
) {
    for (exponent, code) in exponents.as_flattened_mut().iter_mut().zip(codes.as_flattened()) {
        if code & 15 == 15
            && let Some((first, rest)) = patches.split_first()
        {
            *exponent = u32::from(*first) << 23;
            *patches = rest;
        }
    }
}
