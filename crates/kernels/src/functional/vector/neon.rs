//! NEON: eight registers.

use std::arch::aarch64::*;

use super::{LANES, Lanes, Wide};
use crate::Neon;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers are those of arrays.
        unsafe { $($body)* }
    };
}

impl Wide for Neon {
    type V = [float32x4_t; 8];
    type Part = Self::V;
    const SUMS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        allowed!([vdupq_n_f32(x); 8])
    }

    #[inline(always)]
    fn load(self, from: &Lanes) -> Self::V {
        let mut a = self.zero();
        for (a, from) in a.iter_mut().zip(from.as_chunks::<4>().0) {
            *a = allowed!(vld1q_f32(from.as_ptr()));
        }
        a
    }

    #[inline(always)]
    fn widen(self, from: &[u16; LANES]) -> Self::V {
        let mut a = self.zero();
        for (a, from) in a.iter_mut().zip(from.as_chunks::<4>().0) {
            *a = allowed!(vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.as_ptr()))));
        }
        a
    }

    #[inline(always)]
    fn signed(self, from: &[u8; LANES]) -> Self::V {
        let mut a = self.zero();
        for (a, from) in a.as_chunks_mut::<2>().0.iter_mut().zip(from.as_chunks::<8>().0) {
            allowed! {
                let codes = vmovl_s8(vreinterpret_s8_u8(vld1_u8(from.as_ptr())));
                *a = [vmovl_s16(vget_low_s16(codes)), vmovl_s16(vget_high_s16(codes))]
                    .map(|codes| vcvtq_f32_s32(codes));
            }
        }
        a
    }

    #[inline(always)]
    fn store(self, a: Self::V, to: &mut Lanes) {
        for (a, to) in a.into_iter().zip(to.as_chunks_mut::<4>().0) {
            allowed!(vst1q_f32(to.as_mut_ptr(), a));
        }
    }

    #[inline(always)]
    fn add(self, mut a: Self::V, b: Self::V) -> Self::V {
        for i in 0..8 {
            a[i] = allowed!(vaddq_f32(a[i], b[i]));
        }
        a
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, mut c: Self::V) -> Self::V {
        for i in 0..8 {
            c[i] = allowed!(vfmaq_f32(c[i], a[i], b[i]));
        }
        c
    }

    #[inline(always)]
    fn select(self, mask: Self::V, mut a: Self::V, b: Self::V) -> Self::V {
        for i in 0..8 {
            a[i] = allowed!(vbslq_f32(vreinterpretq_u32_f32(mask[i]), a[i], b[i]));
        }
        a
    }

    #[inline(always)]
    fn fold(self, a: Self::V) -> f32 {
        allowed! {
            let [a, b, c, d, e, f, g, h] = a;
            let [a, b, c, d] = [vaddq_f32(a, e), vaddq_f32(b, f), vaddq_f32(c, g), vaddq_f32(d, h)];
            let a = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let a = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            vget_lane_f32::<0>(a) + vget_lane_f32::<1>(a)
        }
    }

    #[inline(always)]
    fn part(self, a: Self::V) -> Self::V {
        a
    }

    #[inline(always)]
    fn fold8(self, parts: [Self::V; 8]) -> [f32; 8] {
        let mut folded = [0.0; 8];
        for (folded, part) in folded.iter_mut().zip(parts) {
            *folded = self.fold(part);
        }
        folded
    }
}
