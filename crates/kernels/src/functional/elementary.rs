//! `exp`, `tanh`, `erf` and the logistic function in f32, with the same bits everywhere.
//!
//! Each is one branchless sequence of correctly rounded operations, so a loop over it becomes
//! vector code and no tier can differ. The coefficients are Chebyshev fits made for these ranges,
//! rounded to f32. The errors quoted are the largest that the tests see against f64.
//!
//! The double-precision functions for tables and per-head constants are at the end: the platform's
//! own (`f64::sin` and its kin) may differ between machines and are not used anywhere.

use crate::scalar::fma;

/// e^x, within 1.1 ulp. NaN stays NaN. Above 88.72 the result is infinite; results below the
/// smallest normal are rounded once, to a subnormal or zero.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;

    // Beyond these limits the result is already infinite, or rounds to zero.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = fma(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x));

    let mut p = 0.001_392_637_6_f32;
    p = fma(p, r, 0.008_363_333);
    p = fma(p, r, 0.041_666_553);
    p = fma(p, r, 0.166_665_76);
    p = fma(p, r, 0.5);
    let y = fma(p, r * r, r) + 1.0;

    // 2^n in two factors: n itself may be out of an exponent's range, and y · 2^(n/2) is exact, so
    // that only the second product rounds.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// 1 / (1 + e^-x), within 2.2 ulp, even for tiny results.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// x · sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// The hyperbolic tangent, within 1.3 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let mut p = -0.006_096_714_f32;
    p = fma(p, z, 0.020_997_18);
    p = fma(p, z, -0.053_850_91);
    p = fma(p, z, 0.133_327_7);
    p = fma(p, z, -0.333_333_3);
    let small = fma(p * z, a, a);
    let large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// cap · tanh(x / cap).
#[inline(always)]
pub(super) fn capped(x: f32, cap: f32) -> f32 {
    cap * tanh(x / cap)
}

/// Rotates one pair: the definition that all tiers compile.
#[inline(always)]
pub(super) fn turn(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (fma(a, cos, -(b * sin)), fma(b, cos, a * sin))
}

/// The error function, within 1.2 ulp.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let mut p = -0.000_610_268_7_f32;
    p = fma(p, z, 0.005_014_484);
    p = fma(p, z, -0.026_780_72);
    p = fma(p, z, 0.112_821_94);
    p = fma(p, z, -0.376_125_28);
    p = fma(p, z, 0.128_379_16);
    let small = fma(p, x, x);

    // For larger magnitudes, 1 - e^-q(a) with q = -ln erfc. From 4 on that is 1 in f32.
    let a = if a > 4.0 { 4.0 } else { a };
    let mut q = -1.643_063_7e-6_f32;
    q = fma(q, a, 4.616_386e-5);
    q = fma(q, a, -0.000_597_585_8);
    q = fma(q, a, 0.004_762_626);
    q = fma(q, a, -0.026_427_637);
    q = fma(q, a, 0.110_087_17);
    q = fma(q, a, 0.631_823_9);
    q = fma(q, a, 1.130_231_1);
    q = fma(q, a, -0.000_318_539_66);
    let large = (1.0 - exp(-q)).copysign(x);
    if a < 0.9 { small } else { large }
}

/// ln(1 + e^x), within 2 ulp.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let u = exp(-x.abs());
    // ln(1 + u) = 2 artanh(u / (2 + u)), whose series ends where f32 does: the argument is at most
    // a third.
    let s = u / (2.0 + u);
    let z = s * s;
    let mut p: f32 = 1.0 / 15.0;
    p = fma(p, z, 1.0 / 13.0);
    p = fma(p, z, 1.0 / 11.0);
    p = fma(p, z, 1.0 / 9.0);
    p = fma(p, z, 1.0 / 7.0);
    p = fma(p, z, 1.0 / 5.0);
    p = fma(p, z, 1.0 / 3.0);
    let log = fma(2.0 * s * z, p, 2.0 * s);
    (if x > 0.0 { x } else { 0.0 }) + log
}

/// e^(`rate` · softplus(x)), the share of a state that is kept, for a rate below zero.
#[inline(always)]
pub(super) fn decay(x: f32, rate: f32) -> f32 {
    exp(rate * softplus(x))
}

/// e^(`bound` · sigmoid(`factor` · x)), the same within a bound.
#[inline(always)]
pub(super) fn bounded_decay(x: f32, factor: f32, bound: f32) -> f32 {
    exp(bound * sigmoid(factor * x))
}

/// x · Φ(x) with the tanh approximation of Φ: 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))).
/// It is computed as x · sigmoid(2 · …), which is equivalent and loses no precision for negative x.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    const TWO_SQRT_2_OVER_PI: f32 = 1.595_769;
    let inner = fma(x * x * x, 0.044_715, x);
    x * sigmoid(TWO_SQRT_2_OVER_PI * inner)
}

/// x · Φ(x) = 0.5 · x · (1 + erf(x / √2)).
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// sin x in double precision.
pub fn sin64(x: f64) -> f64 {
    libm::sin(x)
}

/// cos x in double precision.
pub fn cos64(x: f64) -> f64 {
    libm::cos(x)
}

/// x^y in double precision.
pub fn pow64(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}

/// ln x in double precision.
pub fn ln64(x: f64) -> f64 {
    libm::log(x)
}

/// ln(1 + x) in double precision.
pub fn ln1p64(x: f64) -> f64 {
    libm::log1p(x)
}
