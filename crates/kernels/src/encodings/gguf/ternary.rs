//! tq1_0: weights of -1, 0 and 1, whose digits to the base of three are packed five in a byte.

use super::quarters::of_16;
use crate::encodings::{Coded, RowCursor};
use crate::simd::Simd;
use crate::{Encoding, GgufBlocks, Matrix};

const BYTES: usize = GgufBlocks::Tq1_0.bytes();

/// The codes of a block.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::encodings) struct Digits([u8; 256]);

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Tq1_0;

impl<S: Simd> Coded<S> for Tq1_0 {
    const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::Tq1_0);
    const BYTES: usize = BYTES;
    type Shared = Digits;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Tq1_0
    }
    #[inline(always)]
    unsafe fn shared(self, _: S, at: &RowCursor, span: usize) -> Digits {
        // SAFETY: by the contract of the trait.
        digits(unsafe { &*at.codes().add(BYTES * span).cast::<[u8; BYTES]>() })
    }
    #[inline(always)]
    unsafe fn scales(
        self,
        s: S,
        _: &Digits,
        at: &RowCursor,
        span: usize,
        scales: *mut f32,
        _: *mut f32,
    ) {
        // SAFETY: by the contract of the trait; 16 numbers are written.
        unsafe {
            let scale = of_16(at.codes().add(BYTES * span + 52));
            s.store_slices(s.splat_f16(scale), scales, S::TILE_LANES);
        }
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, shared: &Digits, _: &RowCursor, unit: usize) -> [S::F; 4] {
        // SAFETY: four units of 64 codes.
        unsafe { s.fields(s.load_b(shared.0.as_ptr().add(64 * (unit % 4))), 3) }
    }
}

/// The digits of a block: five in each of 32 bytes, then of 16, and four in each of four.
#[inline(always)]
fn digits(block: &[u8; BYTES]) -> Digits {
    let mut codes = [0; 256];
    let mut rest = *block;
    for n in 0..5 {
        for i in 0..32 {
            codes[32 * n + i] = digit(rest[i]);
            rest[i] = times_three(rest[i]);
        }
    }
    for n in 0..5 {
        for i in 0..16 {
            codes[160 + 16 * n + i] = digit(rest[32 + i]);
            rest[32 + i] = times_three(rest[32 + i]);
        }
    }
    for n in 0..4 {
        for i in 0..4 {
            codes[240 + 4 * n + i] = digit(rest[48 + i]);
            rest[48 + i] = times_three(rest[48 + i]);
        }
    }
    Digits(codes)
}

/// The first digit of a fraction of 256: its third.
#[inline(always)]
fn digit(fraction: u8) -> u8 {
    u8::from(fraction >= 86) + u8::from(fraction >= 171)
}

/// The fraction without its first digit.
#[inline(always)]
fn times_three(fraction: u8) -> u8 {
    fraction.wrapping_mul(3)
}
