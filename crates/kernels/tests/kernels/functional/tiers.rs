//! Every tier gives the same bits, for a row alone or among others.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{assert_same, in_all_tiers};
use sws_kernels::Tier;
use sws_kernels::functional::*;

/// Mostly ordinary numbers, sometimes large, tiny or zero ones.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        40 => -8.0f32..8.0,
        4 => -120.0f32..120.0,
        2 => prop::sample::select(vec![0.0, -0.0, f32::MIN_POSITIVE, 1e-45, -1e-45, 1e-30, -1e-25]),
    ]
}

fn anything() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => number(),
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop::sample::select(vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX]),
    ]
}

/// Rows and the width of a row.
fn rows(of: impl Strategy<Value = f32>) -> impl Strategy<Value = (Vec<f32>, usize)> {
    let shape = (1usize..4, prop_oneof![1usize..70, 1usize..400]);
    (shape, vec(of, 1600)).prop_map(|((rows, width), mut x)| {
        x.truncate(rows * width);
        (x, width)
    })
}

/// Checks that `f` on each row alone gives the same as on all rows at once.
fn row_by_row(x: &[f32], width: usize, together: &[f32], f: impl Fn(&mut [f32])) {
    let mut alone = x.to_vec();
    alone.chunks_mut(width).for_each(f);
    assert_same(&alone, together, "rows alone against together");
}

proptest! {
    #[test]
    fn norms(
        (x, width) in prop_oneof![3 => rows(number()).boxed(), 1 => rows(anything()).boxed()],
        w in vec(number(), 400),
        b in vec(number(), 400),
        eps in prop::sample::select(vec![0.0f32, 1e-6, 1e-5]),
    ) {
        let (w, b) = (&w[..width], &b[..width]);
        for weight in [NormWeight::None, NormWeight::Plain(w), NormWeight::OnePlus(w)] {
            let y = in_all_tiers(&x, |tier, x| rms_norm(tier, x, width, weight, eps));
            row_by_row(&x, width, &y, |x| rms_norm(Tier::best(), x, width, weight, eps));
        }
        for bias in [None, Some(b)] {
            let y = in_all_tiers(&x, |tier, x| layer_norm(tier, x, width, w, bias, eps));
            row_by_row(&x, width, &y, |x| layer_norm(Tier::best(), x, width, w, bias, eps));
        }
    }

    #[test]
    fn softmaxes((x, width) in prop_oneof![rows(number()).boxed(), rows(anything()).boxed()]) {
        let y = in_all_tiers(&x, |tier, x| softmax(tier, x, width));
        row_by_row(&x, width, &y, |x| softmax(Tier::best(), x, width));
    }

    #[test]
    fn element_by_element(
        x in vec(anything(), 0..300),
        mut u in vec(anything(), 300),
        a in anything(),
        cap in 0.5f32..60.0,
    ) {
        u.truncate(x.len());
        in_all_tiers(&x, |tier, x| axpy(tier, a, &u, x));
        in_all_tiers(&x, |tier, x| add(tier, &u, x));
        in_all_tiers(&x, sigmoid);
        in_all_tiers(&x, |tier, x| soft_cap(tier, x, cap));
        let pairs: Vec<f32> = x.iter().zip(&u).flat_map(|(g, u)| [*g, *u]).collect();
        for it in [
            Activation::Sigmoid,
            Activation::Softplus,
            Activation::Silu,
            Activation::ReluSquared,
            Activation::CappedSilu { limit: 1.5 },
            Activation::GeluTanh,
            Activation::GeluErf,
            Activation::SiluClamped(3.0),
            Activation::Clamped { alpha: 1.702, limit: 7.0 },
            Activation::Situ { gate: 4.0, up: 25.0 },
            Activation::Situ { gate: 1.0, up: f32::INFINITY },
        ] {
            let y = in_all_tiers(&x, |tier, g| gate(tier, it, g, &u));
            let z = in_all_tiers(&x, |tier, g| gate_interleaved(tier, it, &pairs, g));
            assert_same(&z, &y, "interleaved against apart");
        }
    }

    #[test]
    fn selection(
        x in vec(prop_oneof![anything(), (0i32..9).prop_map(|i| i as f32 - 4.0)], 1..200),
        k in 0usize..200,
    ) {
        let mut sorted: Vec<u32> = (0..x.len() as u32).collect();
        // A stable sort of descending values with NaN last is the definition.
        let key = |i: u32| x[i as usize];
        sorted.sort_by(|&a, &b| match (key(a).is_nan(), key(b).is_nan()) {
            (false, false) => key(b).partial_cmp(&key(a)).unwrap(),
            (a, b) => a.cmp(&b),
        });
        let mut best = vec![0; k.min(x.len())];
        top_k(&x, &mut best);
        prop_assert_eq!(&best[..], &sorted[..best.len()]);
        let first = (!key(sorted[0]).is_nan()).then_some(sorted[0] as usize);
        prop_assert_eq!(argmax(&x), first);
    }
}

/// `exp`, `tanh` and `erf` on all exponents, signs and kinds of NaN, through the gates that use them.
#[test]
fn elementary_functions() {
    let sweep: Vec<f32> = (0..=u32::MAX).step_by(4999).map(f32::from_bits).collect();
    let ones = vec![1.0; sweep.len()];
    for of in [Activation::Sigmoid, Activation::Softplus, Activation::GeluTanh, Activation::GeluErf]
    {
        let all = in_all_tiers(&sweep, |tier, x| gate(tier, of, x, &ones));
        let one_by_one: Vec<f32> = sweep.iter().map(|&x| of.at(x, 1.0)).collect();
        assert_same(&all, &one_by_one, format!("{of:?}"));
    }
}
