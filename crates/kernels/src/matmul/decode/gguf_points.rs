//! The formats of GGUF files whose codes are numbers of points.

use super::gguf_quarters::Quarter;
use crate::GgufBlocks;
use crate::simd::Simd;

/// Declares the decoder of each format.
macro_rules! formats {
    ($($format:ident)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::matmul) struct $format;

        impl<S: Simd> Quarter<S> for $format {
            const FORMAT: GgufBlocks = GgufBlocks::$format;
            type Shared = S::Block;

            #[inline(always)]
            fn new(_: S) -> Self {
                $format
            }
            #[inline(always)]
            unsafe fn shared(self, s: S, p: *const u8) -> S::Block {
                // SAFETY: by the contract of the trait.
                unsafe { s.points_block(GgufBlocks::$format, p) }
            }
            #[inline(always)]
            unsafe fn quarter(self, s: S, shared: &S::Block, p: *const u8, q: usize) -> [S::F; 4] {
                // SAFETY: by the contract of the trait.
                unsafe { s.points(GgufBlocks::$format, shared, p, q) }
            }
        }
    )*};
}

formats!(Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S);
