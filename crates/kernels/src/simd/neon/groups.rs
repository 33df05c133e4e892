//! [`Groups`] with NEON.

use std::arch::aarch64::*;

use super::super::groups::bf16s;
use super::super::{Groups, ScaleMap};
use super::{allowed, each, signed_lanes, widened, words};
use crate::Neon;

/// The upper and the lower bytes of bf16 numbers.
type Sixteen = [uint8x16_t; 2];

/// The numbers for sixteen codes.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
unsafe fn looked_up([upper, lower]: Sixteen, codes: uint8x16_t) -> super::F {
    // SAFETY: by this function's contract.
    unsafe { widened(words(vqtbl1q_u8(lower, codes), vqtbl1q_u8(upper, codes))) }
}

/// The mapped numbers for sixteen codes.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
unsafe fn mapped<M: ScaleMap<Neon>>(
    s: Neon,
    numbers: Sixteen,
    map: M,
    codes: uint8x16_t,
) -> super::F {
    // SAFETY: by this function's contract.
    unsafe {
        match map.kept() {
            Some([upper, lower]) => {
                looked_up([vld1q_u8(upper.as_ptr()), vld1q_u8(lower.as_ptr())], codes)
            }
            None => map.of(s, looked_up(numbers, codes)),
        }
    }
}

impl Groups for Neon {
    type F = super::F;
    type U = super::U;
    type Sixteen = Sixteen;

    #[inline(always)]
    fn halves_f16(self, [low, high]: [u16; 2]) -> Self::F {
        allowed! {
            let low = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(low)));
            let high = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(high)));
            [low, low, high, high]
        }
    }
    #[inline(always)]
    fn times_bytes(self, a: Self::F, [low, high]: [u64; 2]) -> Self::F {
        allowed! {
            let bytes = signed_lanes(vcombine_u8(vcreate_u8(low), vcreate_u8(high)));
            let bytes = each!(vcvtq_f32_s32, bytes);
            each!(vmulq_f32, a, bytes)
        }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        allowed!(each!(vdivq_f32, a, b))
    }
    #[inline(always)]
    fn integers(self, a: Self::U) -> Self::F {
        allowed! {
            let a = each!(vreinterpretq_s32_u32, a);
            each!(vcvtq_f32_s32, a)
        }
    }
    #[inline(always)]
    fn sub_u(self, a: Self::U, b: Self::U) -> Self::U {
        allowed!(each!(vsubq_u32, a, b))
    }
    #[inline(always)]
    fn sixteen(self, numbers: &[f32; 16]) -> Self::Sixteen {
        let [upper, lower] = bf16s(numbers);
        allowed!([vld1q_u8(upper.as_ptr()), vld1q_u8(lower.as_ptr())])
    }
    #[inline(always)]
    unsafe fn halves<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        allowed! {
            let codes = vld1q_u8(p);
            let low = vandq_u8(codes, vdupq_n_u8(15));
            let high = vshrq_n_u8::<4>(codes);
            [mapped(self, numbers, maps[0], low), mapped(self, numbers, maps[1], high)]
        }
    }
    #[inline(always)]
    unsafe fn pairs<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        allowed! {
            let codes = vld1q_u8(p);
            let low = vandq_u8(codes, vdupq_n_u8(15));
            let high = vshrq_n_u8::<4>(codes);
            [
                mapped(self, numbers, maps[0], vzip1q_u8(low, high)),
                mapped(self, numbers, maps[1], vzip2q_u8(low, high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn gather(self, p: *const u8, last: usize, mut index: [Self::U; 4]) -> [Self::U; 4] {
        let mut places = [0u32; 16];
        for lanes in &mut index {
            allowed! {
                let own = *lanes;
                let last = [vdupq_n_u32(last as u32); 4];
                let own = each!(vminq_u32, own, last);
                for k in 0..4 {
                    vst1q_u32(places.as_mut_ptr().add(4 * k), own[k]);
                }
                let p = p.cast::<u32>();
                for place in &mut places {
                    *place = p.add(*place as usize).read_unaligned();
                }
                let p = places.as_ptr();
                *lanes =
                    [vld1q_u32(p), vld1q_u32(p.add(4)), vld1q_u32(p.add(8)), vld1q_u32(p.add(12))];
            }
        }
        index
    }
}
