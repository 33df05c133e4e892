//! The formats of GGUF files whose codes are numbers of points.

use super::gguf_quarters::Quarter;
use crate::GgufBlocks;
use crate::gguf::points::{self, Group};
use crate::reference::BLOCK;
use crate::simd::Simd;

/// Declares the decoder of each format.
macro_rules! formats {
    ($($format:ident)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::matmul) struct $format;

        impl<S: Simd> Quarter<S> for $format {
            const FORMAT: GgufBlocks = GgufBlocks::$format;

            #[inline(always)]
            fn new(_: S) -> Self {
                $format
            }
            #[inline(always)]
            unsafe fn quarter(self, s: S, p: *const u8, q: usize) -> [S::F; 4] {
                // SAFETY: by the contract of the trait.
                let block = unsafe { std::slice::from_raw_parts(p, GgufBlocks::$format.bytes()) };
                quarter(s, GgufBlocks::$format, block, q)
            }
        }
    )*};
}

formats!(Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S);

/// The quarter `q` of a block. Sixteen columns share a factor.
#[inline(always)]
fn quarter<S: Simd>(s: S, format: GgufBlocks, block: &[u8], q: usize) -> [S::F; 4] {
    let mut numbers = [0i8; BLOCK];
    let mut factors = [0i32; 4];
    for (g, to) in numbers.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let Group { numbers, factor } = points::group(format, block, 8 * q + g);
        *to = numbers;
        factors[g / 2] = factor;
    }
    let (scale, power) = points::scale(format, block);
    let scale = s.mul(s.splat_f16(scale), s.splat(power));
    let sixteen = |k: usize| {
        // SAFETY: there are 16 numbers for each of the four factors.
        let numbers = unsafe { s.load_i8(numbers.as_ptr().add(16 * k).cast()) };
        s.mul(numbers, s.mul(scale, s.splat(factors[k] as f32)))
    };
    [sixteen(0), sixteen(1), sixteen(2), sixteen(3)]
}
