//! Recurrences and short convolutions: tiers, division of tokens, values against f64.

use proptest::prelude::*;

use super::{Noise, assert_same};
use sws_kernels::functional::*;
use sws_kernels::{Strided, Tier};

/// Inputs of some tokens, one after another in each vector.
struct Inputs {
    q: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
}

fn inputs(spec: &Recurrence, tokens: usize, seed: u64) -> Inputs {
    let mut noise = Noise(seed);
    let each = if spec.decay_per_key { spec.key_dim } else { 1 };
    let between = |x: Vec<f32>| x.into_iter().map(|x| x.abs() * 0.5 + 0.4).collect();
    Inputs {
        // Queries and keys side by side, as a convolution leaves them.
        q: noise.vec(tokens * 2 * spec.key_heads * spec.key_dim, 0.6),
        v: noise.vec(tokens * spec.heads * spec.value_dim, 2.0),
        decay: between(noise.vec(tokens * spec.heads * each, 1.0)),
        beta: between(noise.vec(tokens * spec.heads, 1.0)),
    }
}

impl Inputs {
    /// The inputs of some of the tokens.
    fn part(&self, spec: &Recurrence, first: usize, tokens: usize) -> RecurrenceInputs<'_> {
        let (keys, values) = (spec.key_heads * spec.key_dim, spec.heads * spec.value_dim);
        let each = if spec.decay_per_key { spec.heads * spec.key_dim } else { spec.heads };
        let q = &self.q[first * 2 * keys..];
        RecurrenceInputs {
            tokens,
            q: Strided { numbers: q, stride: 2 * keys },
            k: Strided { numbers: &q[keys.min(q.len())..], stride: 2 * keys },
            v: Strided { numbers: &self.v[first * values..], stride: values },
            decay: &self.decay[first * each..],
            beta: &self.beta[first * spec.heads..],
        }
    }
}

/// Rows [tokens, heads, value elements] of outputs in blocks.
fn rows(spec: &Recurrence, tokens: usize, y: &[f32]) -> Vec<f32> {
    let mut rows = Vec::new();
    for token in 0..tokens {
        for head in 0..spec.heads {
            for j in 0..spec.value_dim {
                let unit = head * spec.blocks() + j / 32;
                rows.push(y[(unit * tokens + token) * 32 + j % 32]);
            }
        }
    }
    rows
}

/// The definition in f64.
fn exact(spec: &Recurrence, given: &Inputs, tokens: usize) -> Vec<f64> {
    let (keys, dim) = (spec.key_heads * spec.key_dim, spec.key_dim);
    let mut state = vec![0.0f64; spec.heads * dim * spec.value_dim];
    let mut y = Vec::new();
    for t in 0..tokens {
        for h in 0..spec.heads {
            let repeats = spec.heads / spec.key_heads;
            let key_head = if spec.tiled { h % spec.key_heads } else { h / repeats };
            let from = t * 2 * keys + key_head * dim;
            let (q, k) = (&given.q[from..], &given.q[from + keys..]);
            let beta = f64::from(given.beta[t * spec.heads + h]);
            for j in 0..spec.value_dim {
                let at = |i: usize| (h * dim + i) * spec.value_dim + j;
                let mut write = f64::from(given.v[(t * spec.heads + h) * spec.value_dim + j]);
                for i in 0..dim {
                    let each = (t * spec.heads + h) * dim + i;
                    let one = t * spec.heads + h;
                    state[at(i)] *=
                        f64::from(given.decay[if spec.decay_per_key { each } else { one }]);
                    if spec.delta {
                        write -= state[at(i)] * f64::from(k[i]);
                    }
                }
                let mut sum = 0.0;
                for i in 0..dim {
                    state[at(i)] += f64::from(k[i]) * beta * write;
                    sum += state[at(i)] * f64::from(q[i]);
                }
                y.push(sum);
            }
        }
    }
    y
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn recurrences_have_the_same_bits_in_all_tiers_and_chunks(
        (key_heads, repeat) in (1usize..4, 1usize..4),
        (key_dim, value_dim) in (1usize..20, prop_oneof![1usize..70, Just(64)]),
        tokens in 1usize..12,
        cut in 0usize..12,
        (decay_per_key, delta, tiled) in any::<(bool, bool, bool)>(),
        threads in 1usize..4,
        seed in any::<u64>(),
    ) {
        let heads = key_heads * repeat;
        let spec = Recurrence { heads, key_heads, key_dim, value_dim, decay_per_key, delta, tiled };
        let given = inputs(&spec, tokens, seed);
        let run = |tier, parts: &[usize]| {
            let mut state = vec![0.0; spec.state_len()];
            let (mut all, mut first) = (Vec::new(), 0);
            for &part in parts {
                let mut y = vec![f32::NAN; spec.output_len(part)];
                recur(tier, threads, &spec, &given.part(&spec, first, part), &mut state, &mut y);
                all.extend(rows(&spec, part, &y));
                first += part;
            }
            all.extend(state);
            all
        };
        let expected = run(Tier::SCALAR, &[tokens]);
        let cut = cut.min(tokens);
        for tier in Tier::available() {
            assert_same(&run(tier, &[tokens]), &expected, tier);
            assert_same(&run(tier, &[cut, tokens - cut]), &expected, "in two chunks");
        }
        let largest = expected.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
        for (found, exact) in expected.iter().zip(exact(&spec, &given, tokens)) {
            prop_assert!((f64::from(*found) - exact).abs() < 1e-5 * f64::from(largest));
        }
    }

    #[test]
    fn convolutions_have_the_same_bits_in_all_tiers_and_chunks(
        taps in 1usize..=MAX_TAPS,
        dilation in 1usize..4,
        channels in prop_oneof![1usize..40, Just(64)],
        tokens in 1usize..9,
        cut in 0usize..9,
        (biased, silu) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let mut noise = Noise(seed);
        let weight = noise.vec(channels * taps, 1.0);
        let bias = noise.vec(channels, 1.0);
        let bias = biased.then_some(&bias[..]);
        let conv = ShortConv { taps, dilation, weight: &weight, bias, silu };
        let before = (taps - 1) * dilation * channels;
        let x = noise.vec(before + tokens * channels, 2.0);
        let whole = ConvInput { past: &x[..before], x: &x[before..] };
        let mut expected = vec![0.0; tokens * channels];
        short_conv(Tier::SCALAR, &conv, whole, 0, &mut expected);
        let cut = cut.min(tokens) * channels;
        for tier in Tier::available() {
            let mut y = vec![0.0; expected.len()];
            short_conv(tier, &conv, whole, 0, &mut y);
            assert_same(&y, &expected, tier);
            // Rows of one call, and a second chunk behind what the first has left.
            let (left, right) = y.split_at_mut(cut);
            short_conv(tier, &conv, whole, 0, left);
            short_conv(tier, &conv, whole, cut / channels, right);
            let later = ConvInput { past: &x[cut..][..before], x: &x[cut + before..] };
            let mut again = vec![0.0; right.len()];
            short_conv(tier, &conv, later, 0, &mut again);
            assert_same(&again, right, "a second chunk");
            assert_same(&y, &expected, "rows apart");
        }
    }

    #[test]
    fn norms_and_decays_have_the_same_bits_in_all_tiers(
        heads in 1usize..6,
        each in 1usize..40,
        rows in 1usize..4,
        seed in any::<u64>(),
    ) {
        let mut noise = Noise(seed);
        let x = noise.vec(rows * heads * each, 30.0);
        super::in_all_tiers(&x, |tier, x| l2_norm(tier, x, each, 1e-6, 0.3));
        let (rate, bias) = (noise.vec(heads, 3.0), noise.vec(heads * each, 4.0));
        let negative: Vec<f32> = rate.iter().map(|&rate| -elementary::exp(rate)).collect();
        let of = |rates| super::in_all_tiers(&x, |tier, x| decays(tier, x, rates, &bias));
        let of_negative = of(Rates::Negative(&negative));
        assert_same(&of_negative, &of(Rates::Logarithms(&rate)), "the same rates");
        let bounded = of(Rates::Bounded(&rate, -5.0));
        assert!(bounded.iter().all(|share| (0.006..=1.0).contains(share)), "{bounded:?}");
        super::in_all_tiers(&x, |tier, x| steps(tier, x, &bias));
    }
}

#[test]
fn softplus_is_accurate_and_keeps_nan() {
    use elementary::{ln1p64, softplus};
    for i in -400_000i32..400_000 {
        let x = i as f32 / 4000.0;
        let exact = f64::from(x).max(0.0) + ln1p64((-f64::from(x).abs()).exp());
        let error = (f64::from(softplus(x)) - exact).abs();
        assert!(error <= 3e-7 * exact.max(1e-38), "{x}: {error} of {exact}");
    }
    assert!(softplus(f32::NAN).is_nan());
    assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
    assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
}
