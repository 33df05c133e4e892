//! bf12 with NEON.

use std::arch::aarch64::*;

use super::simd::{Bf12Simd, patch_lanes};
use crate::Neon;
use crate::scalar::BLOCK;
use crate::simd::neon::{allowed, each, halves, load_bytes, widened};

impl Bf12Simd for Neon {
    type Exponents = uint8x16_t;

    #[inline(always)]
    fn patch(self, exponents: &mut [Self::U; 4], codes: &[Self::U; 4], patches: &mut &[u8]) {
        // SAFETY: four times 16 × u32 each, for which any bits are valid.
        unsafe {
            let exponents = &mut *std::ptr::from_mut(exponents).cast();
            patch_lanes(exponents, &*std::ptr::from_ref(codes).cast(), patches);
        }
    }
    #[inline(always)]
    fn exponents(self, table: &[u8; 16]) -> Self::Exponents {
        allowed!(vld1q_u8(table.as_ptr()))
    }
    #[inline(always)]
    unsafe fn bf12(
        self,
        exponents: Self::Exponents,
        p: *const u8,
        patches: &mut &[u8],
    ) -> [Self::F; 4] {
        allowed! {
            // Lanes of 32 bits and words of codes have one column of each sixteen.
            let uint8x16x4_t(a, b, c, d) = vld4q_u8(p);
            let uint8x16x2_t(low, high) = vld2q_u8(p.add(64));
            let fifteen = vdupq_n_u8(15);
            let codes = [
                vandq_u8(low, fifteen),
                vshrq_n_u8::<4>(low),
                vandq_u8(high, fifteen),
                vshrq_n_u8::<4>(high),
            ];
            let table = [exponents; 4];
            let mut exponents = each!(vqtbl1q_u8, table, codes);
            let most = vmaxq_u8(vmaxq_u8(codes[0], codes[1]), vmaxq_u8(codes[2], codes[3]));
            if vmaxvq_u8(most) == 15 {
                std::hint::cold_path();
                let (patched, rest) = escaped(exponents, codes, patches);
                (exponents, *patches) = (patched, rest);
            }
            [
                joined(a, exponents[0]),
                joined(b, exponents[1]),
                joined(c, exponents[2]),
                joined(d, exponents[3]),
            ]
        }
    }
}

/// Sixteen columns from their signs and mantissas, and their exponents.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
unsafe fn joined(bytes: uint8x16_t, exponents: uint8x16_t) -> [float32x4_t; 4] {
    // SAFETY: by this function's contract.
    unsafe { widened(halves(bytes, exponents)) }
}

/// The exponents of a block of bf12 with escapes, and the patches behind theirs. Everything is passed
/// by value, so that nothing of other blocks has to be in memory.
#[cold]
#[inline(never)]
fn escaped(
    exponents: [uint8x16_t; 4],
    codes: [uint8x16_t; 4],
    mut patches: &[u8],
) -> ([uint8x16_t; 4], &[u8]) {
    let mut to = [0u8; BLOCK];
    let mut from = [0u8; BLOCK];
    for k in 0..4 {
        // SAFETY: 16 of 64 bytes each; there are registers of NEON.
        unsafe {
            vst1q_u8(to.as_mut_ptr().add(16 * k), exponents[k]);
            vst1q_u8(from.as_mut_ptr().add(16 * k), codes[k]);
        }
    }
    for (exponent, code) in to.iter_mut().zip(from) {
        if code == 15
            && let Some((first, rest)) = patches.split_first()
        {
            (*exponent, patches) = (*first, rest);
        }
    }
    // SAFETY: 64 bytes; there are registers of NEON.
    (unsafe { load_bytes(to.as_ptr()) }, patches)
}
