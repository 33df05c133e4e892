//! Operations on bf11: exponents from planes and patches, then their union with signs and mantissas.

use std::array::from_fn;

use super::reference::{Escapes, planes};
use crate::scalar::{BLOCK, bf16_to_f32, paired};
use crate::simd::{Portable, Simd, keep};

/// Exponents of the three tiers.
pub(crate) type Tiers = [u8; 9];

/// Operations that each instruction set has for bf11.
///
/// Every method is `#[inline(always)]`, as those of [`Simd`] are.
///
/// # Safety
///
/// Methods that take a pointer read the stated number of bytes, with any alignment.
pub(crate) trait Bf11Simd: Simd {
    /// Lookup table of the exponents.
    type Tiers: Copy;

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
}

/// [`Bf11Simd::bf11_exponents`] in plain Rust.
#[inline(always)]
pub(super) fn exponents(tiers: &Tiers, planes: [u64; 2], patches: &mut &[u8]) -> [u8; BLOCK] {
    let mut exponents = [0; BLOCK];
    for (lane, exponent) in exponents.iter_mut().enumerate() {
        // What is written for an escape is replaced.
        *exponent = tiers[code(planes, lane)];
    }
    patch(tiers, planes, &mut exponents, patches);
    exponents
}

/// Writes the exponents of escapes and advances the patches.
#[inline(always)]
pub(super) fn patch(
    tiers: &Tiers,
    planes: [u64; 2],
    exponents: &mut [u8; BLOCK],
    patches: &mut &[u8],
) {
    let escapes = Escapes::new(planes, patches);
    // Places of the escapes from a tier. Each is written, and counted only if it is one: which they
    // are cannot be foreseen, so that branches would cost more than the work.
    let mut second = [0u8; BLOCK];
    let mut third = [0u8; BLOCK];
    let mut n = 0;
    let mut m = 0;
    let mut left = planes[0] & planes[1];
    while left != 0 {
        let place = left.trailing_zeros() as u8;
        left &= left - 1;
        let code = code(escapes.second, n);
        exponents[usize::from(place) % BLOCK] = tiers[3 + code];
        second[m % BLOCK] = place;
        m += usize::from(code == 3);
        n += 1;
    }
    let mut k = 0;
    for (i, place) in second[..m].iter().enumerate() {
        let code = code(escapes.third, i);
        exponents[usize::from(*place) % BLOCK] = tiers[(6 + code).min(8)];
        third[k % BLOCK] = *place;
        k += usize::from(code == 3);
    }
    let bytes = escapes.bits_len();
    for (place, at) in third[..k].iter().zip(bytes..) {
        exponents[usize::from(*place) % BLOCK] = patches.get(at).copied().unwrap_or(255);
    }
    *patches = &patches[escapes.len().min(patches.len())..];
}

#[inline(always)]
fn code(planes: [u64; 2], at: usize) -> usize {
    (planes[0] >> at & 1 | (planes[1] >> at & 1) << 1) as usize
}

/// Decodes the `n` columns after the last whole block of a row and pads them with zeros. They are
/// stored in order: `n` bytes of signs and mantissas, then two planes.
#[inline(always)]
pub(super) fn tail<S: Bf11Simd>(
    s: S,
    tiers: &S::Tiers,
    tail: &[u8],
    n: usize,
    patches: &mut &[u8],
) -> [S::F; 4] {
    let exponents = s.bf11_exponents(tiers, planes(&tail[n..], n), patches);
    let mut bytes = [0; BLOCK];
    bytes[..n].copy_from_slice(&tail[..n]);
    keep(s, joined(s, &bytes, &exponents), n)
}

/// Unites signs and mantissas with exponents, both in the order of columns.
#[inline(always)]
pub(in crate::encodings) fn joined<S: Simd>(
    s: S,
    bytes: &[u8; BLOCK],
    exponents: &[u8; BLOCK],
) -> [S::F; 4] {
    let rest = s.splat_u(0x807f_0000);
    let mut weights = [s.splat(0.0); 4];
    for (k, weights) in weights.iter_mut().enumerate() {
        // SAFETY: 16 of 64 bytes each.
        let (byte, exponent) = unsafe {
            let byte = s.load_u8(bytes.as_ptr().add(16 * k));
            (byte, s.load_u8(exponents.as_ptr().add(16 * k)))
        };
        let byte = s.and(s.sra::<8>(s.shl::<24>(byte)), rest);
        *weights = s.float(s.or(byte, s.shl::<23>(exponent)));
    }
    weights
}

/// The planes of a whole block of bf11.
///
/// # Safety
///
/// 80 bytes at `p` must be readable.
#[inline(always)]
pub(super) unsafe fn planes_of(p: *const u8) -> [u64; 2] {
    // SAFETY: by this function's contract.
    unsafe { planes_at(p.add(BLOCK)) }
}

/// Two planes.
///
/// # Safety
///
/// 16 bytes at `p` must be readable.
#[inline(always)]
pub(in crate::encodings) unsafe fn planes_at(p: *const u8) -> [u64; 2] {
    // SAFETY: by this function's contract.
    unsafe {
        let [low, high] = p.cast::<[u64; 2]>().read_unaligned();
        [u64::from_le(low), u64::from_le(high)]
    }
}

impl Bf11Simd for Portable {
    type Tiers = Tiers;

    #[inline(always)]
    fn tiers(self, tiers: &Tiers) -> Self::Tiers {
        *tiers
    }
    #[inline(always)]
    fn bf11_exponents(
        self,
        tiers: &Self::Tiers,
        planes: [u64; 2],
        patches: &mut &[u8],
    ) -> [u8; BLOCK] {
        exponents(tiers, planes, patches)
    }
    #[inline(always)]
    unsafe fn bf11(self, tiers: &Self::Tiers, p: *const u8, patches: &mut &[u8]) -> [Self::F; 4] {
        // SAFETY: by the contract of the trait.
        let (bytes, planes) = unsafe { (p.cast::<[u8; BLOCK]>().read_unaligned(), planes_of(p)) };
        let exponents = exponents(tiers, planes, patches);
        let weight = |c: usize| {
            let byte = u16::from(bytes[paired(c)]);
            let exponent = u16::from(exponents[paired(c)]);
            bf16_to_f32((byte & 0x80) << 8 | exponent << 7 | byte & 0x7f)
        };
        from_fn(|k| from_fn(|i| weight(16 * k + i)))
    }
}
