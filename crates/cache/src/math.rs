//! Logarithm and logistic function in branchless plain operations. They are accurate to about 1e-6,
//! which is enough for forecasts, give the same result on every platform, and compile to vector
//! code on all of them.

/// ln x for normal, positive x.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // x = 2^n · m with m in [√½, √2).
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits().wrapping_sub(SQRT_HALF);
    let n = (bits as i32 >> 23) as f32;
    let m = f32::from_bits((bits & 0x007f_ffff) + SQRT_HALF);
    // ln m = 2 artanh((m - 1) / (m + 1)), by its series.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    n * std::f32::consts::LN_2 + 2.0 * s * (1.0 + z * (1.0 / 3.0 + z * (0.2 + z * (1.0 / 7.0))))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// e^x, with x clamped to ±60.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-60.0, 60.0) * std::f32::consts::LOG2_E;
    let shifted = x + ROUND;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let r = (x - (shifted - ROUND)) * std::f32::consts::LN_2;
    let y = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0)))));
    y * f32::from_bits(n.wrapping_add(127) << 23)
}

/// The dot product Σ aᵢ·bᵢ, summed in an order that compiles to vector code.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let a = a.as_chunks::<16>();
    let b = b.as_chunks::<16>();
    for (a, b) in a.0.iter().zip(b.0) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_and_logistic_are_accurate() {
        for i in 1..20_000 {
            let x = i as f32 * 0.01;
            assert!((ln(x) - x.ln()).abs() < 2e-6 * (1.0 + x.ln().abs()), "ln {x}");
            for x in [x, -x] {
                let expected = 1.0 / (1.0 + f64::from(-x.clamp(-60.0, 60.0)).exp());
                let error = (f64::from(logistic(x)) - expected).abs();
                assert!(error < 1e-5 * expected, "logistic {x}: off by {error}");
            }
        }
        assert_eq!(ln(1.0), 0.0);
    }
}
