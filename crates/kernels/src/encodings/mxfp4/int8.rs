//! Kernel of mxfp4 for products with rounded activations.

use crate::Encoding;
use crate::encodings::int8::{eights, of_bytes};
use crate::scalar::{E2M1_CODES, e8m0_to_f32};

/// Scales of twice the values of e2m1.
const HALVES: [f32; 256] = {
    let mut all = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        all[i] = e8m0_to_f32(i as u8) * 0.5;
        i += 1;
    }
    all
};

eights! {
    Mxfp4, Encoding::Mxfp4, 128, 8, |n, p, unit| {
        n.lookup_b(&E2M1_CODES, n.nibbles_b(p.add(32 * unit)))
    }, |n, _p, scales, span| {
        of_bytes(n, &HALVES, scales.add(8 * span), 1)
    }
}
