//! [`Bytes`] with NEON.

use std::arch::aarch64::*;

use super::super::Bytes;
use super::{allowed, each, load_bytes, spread};
use crate::Neon;

impl Bytes for Neon {
    type B = super::B;

    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> Self::B {
        allowed!(load_bytes(p))
    }
    #[inline(always)]
    unsafe fn load_b_shifted(self, p: *const u8, by: [u32; 2]) -> Self::B {
        allowed! {
            let low = vld1q_u8(p);
            let high = vld1q_u8(p.add(16));
            let first = vdupq_n_s8(-(by[0] as i8));
            let second = vdupq_n_s8(-(by[1] as i8));
            [
                vshlq_u8(low, first),
                vshlq_u8(high, first),
                vshlq_u8(low, second),
                vshlq_u8(high, second),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_halved(self, first: *const u8, second: *const u8) -> Self::B {
        allowed! {
            let first = vld1q_u8(first);
            let second = vld1q_u8(second);
            let fifteen = vdupq_n_u8(15);
            [
                vandq_u8(first, fifteen),
                vshrq_n_u8::<4>(first),
                vandq_u8(second, fifteen),
                vshrq_n_u8::<4>(second),
            ]
        }
    }
    #[inline(always)]
    fn of_eights(self, [a, b, c, d, e, f, g, h]: [u64; 8]) -> Self::B {
        allowed! {
            [
                vcombine_u8(vcreate_u8(a), vcreate_u8(b)),
                vcombine_u8(vcreate_u8(c), vcreate_u8(d)),
                vcombine_u8(vcreate_u8(e), vcreate_u8(f)),
                vcombine_u8(vcreate_u8(g), vcreate_u8(h)),
            ]
        }
    }
    #[inline(always)]
    fn shr_b(self, a: Self::B, by: u32) -> Self::B {
        allowed! {
            let by = [vdupq_n_s16(-(by as i16)); 4];
            let a = each!(vreinterpretq_u16_u8, a);
            let a = each!(vshlq_u16, a, by);
            each!(vreinterpretq_u8_u16, a)
        }
    }
    #[inline(always)]
    fn shl4_b(self, a: Self::B) -> Self::B {
        allowed! {
            let by = [vdupq_n_s16(4); 4];
            let a = each!(vreinterpretq_u16_u8, a);
            let a = each!(vshlq_u16, a, by);
            each!(vreinterpretq_u8_u16, a)
        }
    }
    #[inline(always)]
    fn and_b(self, a: Self::B, mask: u8) -> Self::B {
        allowed! {
            let mask = [vdupq_n_u8(mask); 4];
            each!(vandq_u8, a, mask)
        }
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        allowed!(each!(vorrq_u8, a, b))
    }
    #[inline(always)]
    fn add_b(self, a: Self::B, value: u8) -> Self::B {
        allowed! {
            let value = [vdupq_n_u8(value); 4];
            each!(vaddq_u8, a, value)
        }
    }
    #[inline(always)]
    fn add_where(self, a: Self::B, bits: u64, value: u8) -> Self::B {
        allowed! {
            let value = [vdupq_n_u8(value); 4];
            let own = quarters(bits);
            let value = each!(vandq_u8, own, value);
            each!(vaddq_u8, a, value)
        }
    }
    #[inline(always)]
    fn add_tested(self, a: Self::B, bits: Self::B, tested: [u8; 2], value: u8) -> Self::B {
        allowed! {
            let value = [vdupq_n_u8(value); 4];
            let [first, second] = [vdupq_n_u8(tested[0]), vdupq_n_u8(tested[1])];
            let tested = [first, first, second, second];
            let own = each!(vtstq_u8, bits, tested);
            let value = each!(vandq_u8, own, value);
            each!(vaddq_u8, a, value)
        }
    }
    #[inline(always)]
    fn negate_where(self, a: Self::B, bits: u64) -> Self::B {
        allowed! {
            let own = quarters(bits);
            let a = each!(veorq_u8, a, own);
            each!(vsubq_u8, a, own)
        }
    }
}

/// All bits of the bytes whose bit is set.
///
/// # Safety
///
/// The CPU must have NEON.
#[inline(always)]
unsafe fn quarters(bits: u64) -> super::B {
    // SAFETY: by this function's contract.
    unsafe {
        [
            spread(bits as u16),
            spread((bits >> 16) as u16),
            spread((bits >> 32) as u16),
            spread((bits >> 48) as u16),
        ]
    }
}
