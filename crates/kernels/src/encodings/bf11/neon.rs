//! bf11 with NEON.

use std::arch::aarch64::*;

use super::simd::{Bf11Simd, Tiers, patch, planes_of};
use crate::Neon;
use crate::scalar::BLOCK;
use crate::simd::Simd;
use crate::simd::neon::{allowed, halves, spread};

impl Bf11Simd for Neon {
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
        let mut table = [0; 16];
        table[..tiers.len()].copy_from_slice(tiers);
        let mut exponents = [0; BLOCK];
        allowed! {
            let table = vld1q_u8(table.as_ptr());
            let one = vdupq_n_u8(1);
            let two = vdupq_n_u8(2);
            for k in 0..4 {
                let low = vandq_u8(spread((planes[0] >> (16 * k)) as u16), one);
                let high = vandq_u8(spread((planes[1] >> (16 * k)) as u16), two);
                let found = vqtbl1q_u8(table, vorrq_u8(low, high));
                vst1q_u8(exponents.as_mut_ptr().add(16 * k), found);
            }
        }
        // Those of escapes, which are replaced, are the first of the second tier.
        patch(tiers, planes, &mut exponents, patches);
        exponents
    }
    #[inline(always)]
    unsafe fn bf11(self, tiers: &Self::Tiers, p: *const u8, patches: &mut &[u8]) -> [Self::F; 4] {
        allowed! {
            let exponents = self.bf11_exponents(tiers, planes_of(p), patches);
            let upper = vdupq_n_u32(0xffff_0000);
            let mut columns = [self.splat(0.0); 4];
            for i in 0..4 {
                let bytes = vld1q_u8(p.add(16 * i));
                let exponents = vld1q_u8(exponents.as_ptr().add(16 * i));
                for (k, pairs) in halves(bytes, exponents).into_iter().enumerate() {
                    // Four columns of one sixteen in the lower words, and of the next in the upper.
                    let pairs = vreinterpretq_u32_u16(pairs);
                    columns[2 * k][i] = vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs));
                    columns[2 * k + 1][i] = vreinterpretq_f32_u32(vandq_u32(pairs, upper));
                }
            }
            columns
        }
    }
}
