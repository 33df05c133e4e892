//! Edge cases as tables.

use super::in_all_tiers;
use sws_kernels::Tier;
use sws_kernels::functional::elementary::*;
use sws_kernels::functional::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

#[test]
fn elementary_edges() {
    type Case = (&'static str, fn(f32) -> f32, &'static [(f32, f32)]);
    let cases: &[Case] = &[
        (
            "exp",
            exp,
            &[
                (0.0, 1.0),
                (-0.0, 1.0),
                (INF, INF),
                (-INF, 0.0),
                (NAN, NAN),
                (88.722_84, INF),
                (f32::MAX, INF),
                (f32::MIN, 0.0),
                // The smallest subnormal is 1.4e-45; results below half of it are 0.
                (-103.27893, 1e-45),
                (-103.98, 0.0),
                (-104.5, 0.0),
            ],
        ),
        (
            "sigmoid",
            sigmoid_of,
            &[(0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN), (-103.27893, 1e-45)],
        ),
        (
            "tanh",
            tanh,
            &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (1e-45, 1e-45)],
        ),
        ("erf", erf, &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)]),
    ];
    for (name, f, rows) in cases {
        for &(x, y) in *rows {
            super::assert_same(&[f(x)], &[y], format!("{name}({x})"));
        }
    }
}

fn sigmoid_of(x: f32) -> f32 {
    sws_kernels::functional::elementary::sigmoid(x)
}

/// The nearest doubles, computed with 200 bits, to detect a platform or a version of `libm` that
/// gives others.
#[test]
fn double_precision_functions_keep_their_bits() {
    let cases = [
        (sin64(1.0), 0x3FEAED548F090CEE),
        (sin64(12345.678), 0xBFE687D5890974A5),
        (cos64(1e6), 0x3FEDF9DF9906D32C),
        (pow64(10000.0, -0.359375), 0x3FA2B2690AC7EDEA),
        (ln1p64(1e-3), 0x3F5060354F8C3EBF),
    ];
    for (i, (got, bits)) in cases.into_iter().enumerate() {
        assert_eq!(got.to_bits(), bits, "case {i}: {:#018X}", got.to_bits());
    }
}

#[test]
fn softmax_edges() {
    for (x, expected) in [
        (vec![5.0], vec![1.0]),
        (vec![-INF, 2.0, -INF, 2.0], vec![0.0, 0.5, 0.0, 0.5]),
        (vec![-INF; 33], vec![NAN; 33]),
        (vec![0.0, NAN], vec![NAN; 2]),
        (vec![0.0, INF], vec![NAN; 2]),
        (vec![-1e30, 1e30], vec![0.0, 1.0]),
    ] {
        let y = in_all_tiers(&x, |tier, x| softmax(tier, x, x.len()));
        super::assert_same(&y, &expected, format!("softmax({x:?})"));
    }
}

#[test]
fn norm_edges() {
    let y = in_all_tiers(&[0.0; 5], |t, x| rms_norm(t, x, 5, NormWeight::Plain(&[1.0; 5]), 1e-6));
    assert_eq!(y, [0.0; 5]);
    let y =
        in_all_tiers(&[3.0; 40], |t, x| layer_norm(t, x, 40, &[2.0; 40], Some(&[1.5; 40]), 1e-5));
    assert_eq!(y, [1.5; 40]);
    rms_norm(Tier::best(), &mut [], 4, NormWeight::Plain(&[1.0; 4]), 1e-6);
}

#[test]
fn clamped_gate() {
    let it = Activation::Clamped { alpha: 1.702, limit: 7.0 };
    for (g, u, as_if) in [
        (9.0, 1.0, (7.0, 1.0)),
        (INF, 9.0, (7.0, 7.0)),
        (-9.0, -9.0, (-9.0, -7.0)),
        (1.0, -INF, (1.0, -7.0)),
    ] {
        let free = Activation::Clamped { alpha: 1.702, limit: INF };
        assert_eq!(it.at(g, u), free.at(as_if.0, as_if.1), "({g}, {u})");
    }
    assert!(it.at(NAN, 1.0).is_nan() && it.at(1.0, NAN).is_nan());
}

#[test]
fn caps_of_gates_and_values() {
    let it = Activation::Situ { gate: 4.0, up: 25.0 };
    let free = Activation::Situ { gate: 4.0, up: INF };
    for (g, u) in [(0.5f32, 1.0f32), (-3.0, 60.0), (30.0, -60.0), (-30.0, 2.0), (0.0, 7.0)] {
        let (wide, of_up) = (f64::from(g), f64::from(u));
        let gate = 4.0 * (wide / 4.0).tanh() / (1.0 + (-wide).exp());
        let capped = gate * 25.0 * (of_up / 25.0).tanh();
        let close = |y: f32, exact: f64| (f64::from(y) - exact).abs() <= 1e-6 * exact.abs();
        assert!(close(it.at(g, u), capped), "({g}, {u})");
        assert!(close(free.at(g, u), gate * of_up), "({g}, {u}) without a cap of the value");
    }
    assert!(it.at(NAN, 1.0).is_nan() && it.at(1.0, NAN).is_nan());
    assert_eq!((it.at(INF, INF), it.at(-INF, 1.0)), (100.0, 0.0));
}

#[test]
fn squares_of_what_is_positive() {
    let it = Activation::ReluSquared;
    for (x, y) in [(-3.0, 0.0), (-INF, 0.0), (0.0, 0.0), (1.5, 2.25), (INF, INF)] {
        assert_eq!(it.at(x, NAN), y, "{x}");
    }
    assert!(it.at(NAN, 1.0).is_nan());
}

#[test]
fn selection() {
    type Case = (&'static [f32], Option<usize>, &'static [u32]);
    let cases: &[Case] = &[
        (&[], None, &[]),
        (&[NAN, NAN], None, &[0, 1]),
        (&[NAN, -INF, NAN], Some(1), &[1, 0, 2]),
        (&[1.0, 3.0, 3.0, 2.0], Some(1), &[1, 2, 3, 0]),
        (&[-0.0, 0.0], Some(0), &[0, 1]),
        (&[-INF, -INF], Some(0), &[0, 1]),
        (&[0.0, INF, NAN, INF], Some(1), &[1, 3, 0, 2]),
    ];
    for &(x, first, order) in cases {
        assert_eq!(argmax(x), first, "argmax({x:?})");
        for k in 0..=x.len() {
            let mut best = vec![9; k];
            top_k(x, &mut best);
            assert_eq!(best, order[..k], "top_k({x:?}, {k})");
        }
    }
}
