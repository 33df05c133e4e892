//! Kernels of int4 for products with rounded activations.

use crate::encodings::SpanScales;
use crate::encodings::int8::eights;
use crate::simd::Codes;
use crate::{Encoding, Int4Groups, ZerosGroup};

eights! {
    Symmetric<const GROUP: usize>, Encoding::Int4(Int4Groups::symmetric(GROUP)), 128, 512 / GROUP, |n, p, unit| {
        n.nibbles_b(p.add(32 * unit))
    }, |n, _p, scales, span| {
        SpanScales::new(n, n.simd().bf16_h(scales.add(512 / GROUP * span), GROUP / 32))
    }
    Zeros<const GROUP: usize>, Encoding::Int4(Int4Groups::Zeros(ZerosGroup::of(GROUP))), 128, 1024 / GROUP, |n, p, unit| {
        n.nibbles_b(p.add(32 * unit))
    }, |n, _p, scales, span| {
        let [scales, minima] = n.simd().zeros_h(scales.add(1024 / GROUP * span), GROUP / 32);
        SpanScales { minima, ..SpanScales::new(n, scales) }
    }
}
