//! Weights of formats whose codes are numbers of points in tables.

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Groups, Portable, Simd, UNIT};
use crate::GgufBlocks;
use crate::gguf::points::{self, Shift};

/// Decoding of blocks of 256 columns whose codes are numbers of points.
///
/// # Safety
///
/// Methods that take a pointer read a block of the format there.
pub(crate) trait Points: Groups {
    /// What the quarters of a block share.
    type Block: Copy;

    /// True if a lookup of sixteen lanes is one instruction, so that codes are best looked up among
    /// scaled numbers.
    const LOOKS_UP_LANES: bool;

    /// Decodes what the quarters of a block share. Only for formats with points.
    unsafe fn points_block(self, format: GgufBlocks, p: *const u8) -> Self::Block;

    /// Decodes columns `64·q` to `64·q + 63`, in order. `q` is below four.
    unsafe fn points(
        self,
        format: GgufBlocks,
        block: &Self::Block,
        p: *const u8,
        q: usize,
    ) -> [Self::F; 4];
}

/// [`Points`] in terms of bytes: points of eight numbers are read one by one.
macro_rules! by_bytes {
    ($($simd:ty)*) => {$(
        impl Points for $simd {
            /// The scale of the block for numbers in their unit.
            type Block = <$simd as Groups>::F;
            const LOOKS_UP_LANES: bool = false;

            #[inline(always)]
            unsafe fn points_block(self, format: GgufBlocks, p: *const u8) -> Self::Block {
                // SAFETY: by the contract of the trait.
                let block = unsafe { std::slice::from_raw_parts(p, format.bytes()) };
                let (scale, power) = points::scale(format, block);
                self.mul(self.splat_f16(scale), self.splat(power * UNIT))
            }
            #[inline(always)]
            unsafe fn points(
                self,
                format: GgufBlocks,
                scale: &Self::Block,
                p: *const u8,
                q: usize,
            ) -> [Self::F; 4] {
                // SAFETY: by the contract of the trait.
                let block = unsafe { std::slice::from_raw_parts(p, format.bytes()) };
                quarter(self, format, block, *scale, q)
            }
        }
    )*};
}

by_bytes!(Portable);
#[cfg(target_arch = "x86_64")]
by_bytes!(crate::Avx2);
#[cfg(target_arch = "aarch64")]
by_bytes!(crate::Neon);

/// The quarter `q` of a block. Sixteen columns share a factor.
#[inline(always)]
fn quarter<S: Simd>(s: S, format: GgufBlocks, block: &[u8], scale: S::F, q: usize) -> [S::F; 4] {
    // The mask tells the compiler that there are four, so that it checks no bounds.
    let points::Quarter { points, shift, factors } = points::quarter(format, block, q & 3);
    let factors = s.products(scale, factors);
    let points = s.of_eights(points);
    let mut numbers = s.numbers(match shift {
        Shift::Signs(negative) => s.negate_where(points, negative),
        // An eighth more than the point, or less.
        Shift::Less(less) => s.add_where(s.add_b(points, 1), less, -2i8 as u8),
    });
    for k in 0..4 {
        numbers[k] = s.mul(numbers[k], factors[k]);
    }
    numbers
}
