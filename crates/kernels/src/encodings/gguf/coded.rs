//! The formats of GGUF files whose codes are indices into a codebook.

use super::simd::Codebook;
use crate::encodings::{Coded, RowCursor};
use crate::{Encoding, GgufBlocks, Matrix};

/// Declares the decoder of each format.
macro_rules! formats {
    ($($format:ident)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::encodings) struct $format<S: Codebook>(S::Numbers);

        impl<S: Codebook> Coded<S> for $format<S> {
            const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::$format);
            const BYTES: usize = GgufBlocks::$format.bytes();
            type Shared = S::Block;

            #[inline(always)]
            fn new(s: S, _: &Matrix) -> Self {
                $format(s.numbers_of_codebook(GgufBlocks::$format))
            }
            #[inline(always)]
            unsafe fn shared(self, s: S, at: &RowCursor, span: usize) -> S::Block {
                // SAFETY: by the contract of the trait.
                unsafe {
                    let p = at.codes().add(GgufBlocks::$format.bytes() * span);
                    s.codebook_block(GgufBlocks::$format, p)
                }
            }
            #[inline(always)]
            unsafe fn scales(
                self,
                s: S,
                shared: &S::Block,
                at: &RowCursor,
                span: usize,
                scales: *mut f32,
                _: *mut f32,
            ) {
                // SAFETY: by the contract of the trait.
                unsafe {
                    let p = at.codes().add(GgufBlocks::$format.bytes() * span);
                    s.scales_of_codebook(GgufBlocks::$format, shared, p, scales);
                }
            }
            #[inline(always)]
            unsafe fn unit(
                self,
                s: S,
                shared: &S::Block,
                at: &RowCursor,
                unit: usize,
            ) -> [S::F; 4] {
                // SAFETY: by the contract of the trait.
                unsafe {
                    let p = at.codes().add(GgufBlocks::$format.bytes() * (unit / 4));
                    s.codebook(GgufBlocks::$format, self.0, shared, p, unit % 4)
                }
            }
        }
    )*};
}

formats!(Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S);
