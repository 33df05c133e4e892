//! Operations on fp7: signs and mantissas from nibbles, then as bf11.

use super::FP7_BLOCK;
use crate::encodings::bf11::simd::{Bf11Simd, joined, planes_at};
use crate::scalar::{BLOCK, paired};
use crate::simd::Portable;

/// Operations that each instruction set has for fp7.
///
/// Every method is `#[inline(always)]`, as those of [`Simd`](crate::simd::Simd) are.
///
/// # Safety
///
/// Methods that take a pointer read the stated number of bytes, with any alignment.
pub(crate) trait Fp7Simd: Bf11Simd {
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
        unsafe { by_bytes(self, tiers, p, patches) }
    }
}

impl Fp7Simd for Portable {}

#[cfg(target_arch = "aarch64")]
impl Fp7Simd for crate::Neon {}

/// [`Fp7Simd::fp7`], byte by byte but for the exponents.
///
/// # Safety
///
/// As for [`Fp7Simd::fp7`].
#[inline(always)]
unsafe fn by_bytes<S: Bf11Simd>(
    s: S,
    tiers: &S::Tiers,
    p: *const u8,
    patches: &mut &[u8],
) -> ([S::F; 4], bool) {
    // SAFETY: by this function's contract.
    let (nibbles, planes) = unsafe {
        let nibbles = p.cast::<[u8; BLOCK / 2]>().read_unaligned();
        (nibbles, planes_at(p.add(BLOCK / 2)))
    };
    let found = s.bf11_exponents(tiers, planes, patches);
    let mut bytes = [0; BLOCK];
    let mut exponents = [0; BLOCK];
    let mut has_nan = false;
    for c in 0..BLOCK {
        let at = paired(c);
        bytes[c] = if at < BLOCK / 2 { nibbles[at] << 4 } else { nibbles[at - BLOCK / 2] & 0xf0 };
        exponents[c] = found[at] & 15;
        has_nan |= bytes[c] & 0x70 | exponents[c] == 0x7f;
    }
    (joined(s, &bytes, &exponents), has_nan)
}

const _: () = assert!(FP7_BLOCK == BLOCK / 2 + 16);
