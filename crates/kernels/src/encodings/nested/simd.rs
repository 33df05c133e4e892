//! Operations on nested: bytes and planes of bf11 from rest and top, then exponents from distances.

use super::reference::united;
use super::{REST_BLOCK, TOP_BLOCK};
use crate::encodings::bf11::simd::{Bf11Simd, joined};
use crate::scalar::{BLOCK, paired};
use crate::simd::Portable;

/// Operations that each instruction set has for nested.
///
/// Every method is `#[inline(always)]`, as those of [`Simd`](crate::simd::Simd) are.
///
/// # Safety
///
/// Methods that take a pointer read the stated number of bytes, with any alignment.
pub(crate) trait NestedSimd: Bf11Simd {
    /// Decodes the 64 columns of a block of nested, whose rest has 48 bytes and whose top has 34, with
    /// the table of [`DISTANCES`](super::DISTANCES). Escapes consume `patches`.
    #[inline(always)]
    unsafe fn nested(
        self,
        distances: &Self::Tiers,
        rest: *const u8,
        top: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4] {
        // SAFETY: by this method's contract.
        unsafe { by_bytes(self, distances, rest, top, patches) }
    }
}

impl NestedSimd for Portable {}

#[cfg(target_arch = "aarch64")]
impl NestedSimd for crate::Neon {}

/// [`NestedSimd::nested`], byte by byte but for the distances.
///
/// # Safety
///
/// As for [`NestedSimd::nested`].
#[inline(always)]
unsafe fn by_bytes<S: Bf11Simd>(
    s: S,
    distances: &S::Tiers,
    rest: *const u8,
    top: *const u8,
    patches: &mut &[u8],
) -> [S::F; 4] {
    // SAFETY: by this function's contract.
    let (rest, top) = unsafe {
        let rest = rest.cast::<[u8; REST_BLOCK]>().read_unaligned();
        (rest, top.cast::<[u8; TOP_BLOCK]>().read_unaligned())
    };
    let (codes, powers) = top.split_first_chunk().expect("codes come first");
    let (bytes, planes) = united(&rest, codes);
    let distances = s.bf11_exponents(distances, planes, patches);
    let mut in_order = [0; BLOCK];
    let mut exponents = [0; BLOCK];
    for c in 0..BLOCK {
        in_order[c] = bytes[paired(c)];
        exponents[c] = powers[c / 32].saturating_sub(distances[paired(c)]);
    }
    joined(s, &in_order, &exponents)
}

/// For each code of a top: what it has of the byte of sign and mantissa.
#[cfg(target_arch = "x86_64")]
pub(super) const BYTES: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = (code as u8 & 8) << 4 | (code as u8 & 1) << 6;
        code += 1;
    }
    bytes
};

/// The exponent of each byte's half: in a block of bf11 the halves alternate every eight bytes.
#[cfg(target_arch = "x86_64")]
pub(super) const HALVES: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
