//! [`Codes`] with NEON.

use std::arch::aarch64::*;

use super::super::Portable;
use super::super::codes::Codes;
use super::{allowed, each};
use crate::Neon;
use crate::scalar::fold;

/// The nibbles of sixteen bytes, the low one of each first.
///
/// # Safety
///
/// The CPU must have NEON, and the bytes must be readable.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: by this function's contract.
    unsafe {
        let bytes = vld1q_u8(p);
        let low = vandq_u8(bytes, vdupq_n_u8(15));
        let high = vshrq_n_u8::<4>(bytes);
        [vzip1q_u8(low, high), vzip2q_u8(low, high)]
    }
}

/// Eight numbers in registers.
#[inline(always)]
fn of_portable(numbers: [f32; 8]) -> [float32x4_t; 2] {
    // SAFETY: eight numbers, and all CPUs of 64 bits have NEON.
    unsafe { [vld1q_f32(numbers.as_ptr()), vld1q_f32(numbers.as_ptr().add(4))] }
}

impl Codes for Neon {
    type H = [float32x4_t; 2];
    type Table = uint8x16_t;

    #[inline(always)]
    fn zero_h(self) -> Self::H {
        allowed!([vdupq_n_f32(0.0); 2])
    }
    #[inline(always)]
    unsafe fn load_h(self, p: *const f32) -> Self::H {
        allowed!([vld1q_f32(p), vld1q_f32(p.add(4))])
    }
    #[inline(always)]
    unsafe fn store_h(self, a: Self::H, p: *mut f32) {
        allowed! {
            vst1q_f32(p, a[0]);
            vst1q_f32(p.add(4), a[1]);
        }
    }
    #[inline(always)]
    fn fma_h(self, a: Self::H, b: Self::H, c: Self::H) -> Self::H {
        allowed!([vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])])
    }
    #[inline(always)]
    fn fold_h(self, a: Self::H) -> f32 {
        let mut lanes = [0.0; 8];
        // SAFETY: eight numbers.
        unsafe { self.store_h(a, lanes.as_mut_ptr()) };
        fold(lanes)
    }
    #[inline(always)]
    unsafe fn f16_h(self, p: *const u8, stride: usize) -> Self::H {
        let mut words = [0u16; 8];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: by the contract of the trait.
            *word = unsafe { p.add(stride * i).cast::<u16>().read_unaligned() };
        }
        allowed! {
            let words = vld1q_u16(words.as_ptr());
            [
                vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(words))),
                vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(words))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn bf16_h(self, p: *const u8, times: usize) -> Self::H {
        // SAFETY: by the contract of the trait.
        of_portable(unsafe { Portable.bf16_h(p, times) })
    }
    #[inline(always)]
    unsafe fn zeros_h(self, p: *const u8, times: usize) -> [Self::H; 2] {
        // SAFETY: by the contract of the trait.
        unsafe { Portable.zeros_h(p, times) }.map(of_portable)
    }
    #[inline(always)]
    unsafe fn in_eights(self, p: *const f32, pair: usize) -> Self::F {
        allowed! {
            let p = p.add(2 * pair);
            let low = vld1q_dup_f32(p);
            let high = vld1q_dup_f32(p.add(1));
            [low, low, high, high]
        }
    }
    #[inline(always)]
    unsafe fn in_fours(self, p: *const f32) -> Self::F {
        allowed! {
            [
                vld1q_dup_f32(p),
                vld1q_dup_f32(p.add(1)),
                vld1q_dup_f32(p.add(2)),
                vld1q_dup_f32(p.add(3)),
            ]
        }
    }
    #[inline(always)]
    fn fields(self, bytes: Self::B, mask: u8) -> [Self::F; 4] {
        let mut fields = [[allowed!(vdupq_n_f32(0.0)); 4]; 4];
        for k in 0..4 {
            allowed! {
                let own = [vdupq_n_u32(u32::from(mask) << (8 * k)); 4];
                let lanes = each!(vreinterpretq_u32_u8, bytes);
                let lanes = each!(vandq_u32, lanes, own);
                fields[k] = each!(vcvtq_f32_u32, lanes);
            }
        }
        fields
    }
    #[inline(always)]
    fn table(self, codes: &[u8; 16]) -> Self::Table {
        allowed!(vld1q_u8(codes.as_ptr()))
    }
    #[inline(always)]
    fn looked_up(self, table: Self::Table, bytes: Self::B) -> [Self::F; 4] {
        allowed! {
            let table = [table; 4];
            let fifteen = [vdupq_n_u8(15); 4];
            let nibbles = each!(vandq_u8, bytes, fifteen);
            self.fields(each!(vqtbl1q_u8, table, nibbles), 0xff)
        }
    }
    #[inline(always)]
    unsafe fn nibbles(self, table: Self::Table, p: *const u8) -> [Self::F; 4] {
        allowed! {
            let ([a, b], [c, d]) = (nibbles(p), nibbles(p.add(16)));
            self.looked_up(table, [a, b, c, d])
        }
    }
    #[inline(always)]
    unsafe fn plain_nibbles(self, _: Self::Table, p: *const u8) -> [Self::F; 4] {
        allowed! {
            let ([a, b], [c, d]) = (nibbles(p), nibbles(p.add(16)));
            self.fields([a, b, c, d], 15)
        }
    }
    #[inline(always)]
    unsafe fn apart(self, p: *const u8) -> [Self::F; 4] {
        let mut fields = [[allowed!(vdupq_n_f32(0.0)); 4]; 4];
        allowed! {
            let low = vld1q_u16(p.cast());
            let high = vld1q_u16(p.add(16).cast());
            let words = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_u16(vget_high_u16(low)),
                vmovl_u16(vget_low_u16(high)),
                vmovl_u16(vget_high_u16(high)),
            ];
            let inverted = [vdupq_n_u32(0x8888); 4];
            let words = each!(veorq_u32, words, inverted);
            for k in 0..4 {
                let own = [vdupq_n_u32(15 << (4 * k)); 4];
                let own = each!(vandq_u32, words, own);
                fields[k] = each!(vcvtq_f32_u32, own);
            }
        }
        fields
    }
}
