//! The formats of GGUF files whose codes are numbers of points.

use super::gguf_quarters::Quarter;
use crate::GgufBlocks;
use crate::gguf::points::{self, Shift};
use crate::simd::{Simd, UNIT};

/// Declares the decoder of each format.
macro_rules! formats {
    ($($format:ident)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::matmul) struct $format;

        impl<S: Simd> Quarter<S> for $format {
            const FORMAT: GgufBlocks = GgufBlocks::$format;
            /// The scale of the block for numbers in their unit.
            type Shared = S::F;

            #[inline(always)]
            fn new(_: S) -> Self {
                $format
            }
            #[inline(always)]
            unsafe fn shared(self, s: S, p: *const u8) -> S::F {
                // SAFETY: by the contract of the trait.
                let block = unsafe { std::slice::from_raw_parts(p, GgufBlocks::$format.bytes()) };
                let (scale, power) = points::scale(GgufBlocks::$format, block);
                s.mul(s.splat_f16(scale), s.splat(power * UNIT))
            }
            #[inline(always)]
            unsafe fn quarter(self, s: S, scale: &S::F, p: *const u8, q: usize) -> [S::F; 4] {
                // SAFETY: by the contract of the trait.
                let block = unsafe { std::slice::from_raw_parts(p, GgufBlocks::$format.bytes()) };
                quarter(s, GgufBlocks::$format, block, *scale, q)
            }
        }
    )*};
}

formats!(Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S);

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
