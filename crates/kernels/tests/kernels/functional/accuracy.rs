//! Accuracy of each functional against the same computation in f64.

use super::Noise;
use sws_kernels::Tier;
use sws_kernels::functional::elementary::{self, erf, exp, gelu_erf, gelu_tanh, tanh};
use sws_kernels::functional::*;

/// The distance of `got` from `exact` in units of the last place of an f32 of that size.
fn ulps(got: f32, exact: f64) -> f64 {
    let exponent = (exact.abs().log2().floor() as i32).max(-126);
    (f64::from(got) - exact).abs() / 2f64.powi(exponent - 23)
}

fn worst_ulps(sweep: impl Iterator<Item = f32>, f: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
    let mut worst = (0.0, 0.0);
    for x in sweep {
        let (y, e) = (f(x), exact(f64::from(x)));
        if e.abs() <= f64::from(f32::MAX) {
            let distance = ulps(y, e);
            assert!(distance.is_finite(), "{x:e} gives {y:e}, not {e:e}");
            worst = if distance > worst.0 { (distance, x) } else { worst };
        }
    }
    println_worst(worst);
    worst.0
}

/// Printed with `--nocapture`; the bounds in the documentation come from here.
#[allow(clippy::print_stdout)]
fn println_worst((distance, at): (f64, f32)) {
    println!("worst: {distance:.3} ulp at {at:e}");
}

#[test]
fn elementary_functions_to_the_last_places() {
    let bits = || (0..=u32::MAX).step_by(1999).map(f32::from_bits).filter(|x| x.is_finite());
    let dense = || (-20_000_000..=20_000_000).step_by(13).map(|i| i as f32 * (104.0 / 2e7));
    type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);
    let cases: [Case; 4] = [
        ("exp", exp, libm::exp, 1.1),
        ("sigmoid", elementary::sigmoid, |x| 1.0 / (1.0 + libm::exp(-x)), 2.2),
        ("tanh", tanh, libm::tanh, 1.3),
        ("erf", erf, libm::erf, 1.2),
    ];
    for (name, f, exact, bound) in cases {
        let worst = worst_ulps(bits(), f, exact).max(worst_ulps(dense(), f, exact));
        assert!(worst <= bound, "{name}: {worst} ulp");
    }
}

/// GELU passes through zero on the left, so the bound is on the absolute error, as a fraction of
/// |x|.
#[test]
fn gelus() {
    let cdf = |x: f64| 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    for i in -1_000_000..=1_000_000 {
        let x = i as f32 * 2e-5;
        let wide = f64::from(x);
        let bound = 1.5e-7 * wide.abs();
        let by_erf = f64::from(gelu_erf(x)) - wide * cdf(wide);
        let by_tanh = f64::from(gelu_tanh(x)) - wide * (0.5 + 0.5 * libm::tanh(inner(wide)));
        assert!(by_erf.abs() <= bound, "gelu_erf({x}) is off by {by_erf:e}");
        assert!(by_tanh.abs() <= bound, "gelu_tanh({x}) is off by {by_tanh:e}");
    }
}

#[track_caller]
fn close(got: &[f32], exact: impl Iterator<Item = f64>, tolerance: f64) {
    for (i, (&got, exact)) in got.iter().zip(exact).enumerate() {
        let error = (f64::from(got) - exact).abs();
        assert!(error <= tolerance * exact.abs().max(1.0), "element {i}: {got} for {exact}");
    }
}

#[test]
fn rows_against_double_precision() {
    for width in [1, 31, 32, 33, 128, 1000, 4096] {
        let mut noise = Noise(width as u64);
        let (x, w, b) = (noise.vec(width, 3.0), noise.vec(width, 2.0), noise.vec(width, 1.0));
        let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let (x64, w64, b64) = (wide(&x), wide(&w), wide(&b));
        let n = width as f64;

        let mean_square = x64.iter().map(|x| x * x).sum::<f64>() / n;
        let scale = 1.0 / (mean_square + 1e-6f32 as f64).sqrt();
        let mut y = x.clone();
        rms_norm(Tier::best(), &mut y, width, NormWeight::Plain(&w), 1e-6);
        close(&y, x64.iter().zip(&w64).map(|(x, w)| x * scale * w), 1e-6);
        let mut y = x.clone();
        rms_norm(Tier::best(), &mut y, width, NormWeight::OnePlus(&w), 1e-6);
        close(&y, x64.iter().zip(&w64).map(|(x, w)| x * scale * (1.0 + w)), 1e-6);

        let mean = x64.iter().sum::<f64>() / n;
        let variance = x64.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (variance + 1e-5f32 as f64).sqrt();
        let mut y = x.clone();
        layer_norm(Tier::best(), &mut y, width, &w, Some(&b), 1e-5);
        let exact = x64.iter().zip(&w64).zip(&b64).map(|((x, w), b)| (x - mean) * scale * w + b);
        close(&y, exact, 1e-6);

        let mut y: Vec<f32> = x.iter().map(|x| x * 4.0).collect();
        softmax(Tier::best(), &mut y, width);
        let sum: f64 = x64.iter().map(|x| (4.0 * x).exp()).sum();
        for (y, x) in y.iter().zip(&x64) {
            let exact = (4.0 * x).exp() / sum;
            assert!((f64::from(*y) - exact).abs() <= 4e-6 * exact, "{y} for {exact}");
        }
    }
}
