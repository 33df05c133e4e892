//! Decoding of bf11: exponents from planes and patches, then their union with signs and mantissas.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod indexes;

use super::{Simd, keep};
use crate::reference::{BLOCK, Escapes, planes};

/// Exponents of the three tiers.
pub(crate) type Tiers = [u8; 9];

/// [`Simd::bf11_exponents`] in plain Rust.
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
pub(crate) fn bf11_tail<S: Simd>(
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
pub(super) fn joined<S: Simd>(s: S, bytes: &[u8; BLOCK], exponents: &[u8; BLOCK]) -> [S::F; 4] {
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
