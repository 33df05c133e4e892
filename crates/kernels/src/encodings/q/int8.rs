//! Kernels of q8 and q4 for products with rounded activations.

use crate::Encoding;
use crate::encodings::SpanScales;
use crate::encodings::int8::eights;
use crate::simd::{Bytes, Codes};

eights! {
    Q4, Encoding::Q4, 128, 8, |n, p, unit| {
        // The highest bits are inverted.
        let codes = n.apart_b(p.add(32 * unit));
        n.simd().and_b(n.simd().add_b(codes, 8), 15)
    }, |n, _p, scales, span| {
        SpanScales::new(n, n.simd().bf16_h(scales.add(8 * span), 2))
    }
    Q8, Encoding::Q8, 256, 8, |n, p, unit| {
        n.simd().load_b(p.add(64 * unit))
    }, |n, _p, scales, span| {
        SpanScales::new(n, n.simd().bf16_h(scales.add(8 * span), 2))
    }
}
