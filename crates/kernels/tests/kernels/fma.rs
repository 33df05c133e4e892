//! The fused multiply-add, beside one made of exact operations.

use proptest::prelude::*;
use sws_kernels::fma;

/// a · b + c rounded once: the product is exact in f64, the sum is rounded to odd, and 29 spare bits keep
/// that from being rounded twice.
fn rounded_once(a: f32, b: f32, c: f32) -> f32 {
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = p + c;
    let of_p = sum - c;
    let lost = (p - of_p) + (c - (sum - of_p));
    if !sum.is_finite() || lost == 0.0 || sum.to_bits() & 1 == 1 {
        return sum as f32;
    }
    let away = (lost > 0.0) == (sum > 0.0);
    let bits = sum.to_bits();
    f64::from_bits(if away { bits + 1 } else { bits - 1 }) as f32
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn fma_is_rounded_once(a: u32, b: u32, c: u32, near in 0u32..4, step in 0u32..1 << 12) {
        let (a, b) = (f32::from_bits(a), f32::from_bits(b));
        // Sums that cancel are where a second rounding shows most.
        let c = if near == 0 { f32::from_bits(c) } else {
            f32::from_bits((-(a * b)).to_bits().wrapping_add(step * (near - 1)))
        };
        let (found, expected) = (fma(a, b, c), rounded_once(a, b, c));
        prop_assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{a:e} · {b:e} + {c:e} = {found:e}, not {expected:e}"
        );
    }
}
