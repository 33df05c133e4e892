//! Rotary embedding: tiers, offsets, and the definition in f64.

use proptest::prelude::*;

use super::{Noise, in_all_tiers};
use sws_kernels::Tier;
use sws_kernels::functional::*;

fn inv_freq(pairs: usize) -> Vec<f32> {
    (0..pairs).map(|i| elementary::pow64(10000.0, -(i as f64) / pairs as f64) as f32).collect()
}

fn tables(pairs: usize, factor: f32, first: usize, tokens: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut cos, mut sin) = (vec![0.0; tokens * pairs], vec![0.0; tokens * pairs]);
    rope_tables(&inv_freq(pairs), factor, first, &mut cos, &mut sin);
    (cos, sin)
}

proptest! {
    // One parameter for each choice of the generator.
    #[test]
    fn same_bits_in_every_tier_and_for_tokens_alone(
        seed: u64,
        heads in 1usize..4,
        pairs in 1usize..40,
        before in 0usize..3,
        after in 0usize..3,
        tokens in 1usize..4,
        first in 0usize..5000,
        interleaved: bool,
    ) {
        let head_dim = before + 2 * pairs + after;
        let order = if interleaved { RopePairs::Interleaved } else { RopePairs::HalfSplit };
        let shape = RopeShape { heads, head_dim, offset: before, pairs: order };
        let x = Noise(seed).vec(tokens * heads * head_dim, 4.0);
        let (cos, sin) = tables(pairs, 1.1, first, tokens);
        let together = in_all_tiers(&x, |tier, x| rope(tier, x, shape, &cos, &sin));

        let mut alone = x.clone();
        for (t, x) in alone.chunks_mut(heads * head_dim).enumerate() {
            let (cos, sin) = tables(pairs, 1.1, first + t, 1);
            rope(Tier::best(), x, shape, &cos, &sin);
        }
        super::assert_same(&alone, &together, "tokens alone against together");
        for (x, y) in x.chunks(head_dim).zip(together.chunks(head_dim)) {
            prop_assert_eq!(&x[..before], &y[..before]);
            prop_assert_eq!(&x[before + 2 * pairs..], &y[before + 2 * pairs..]);
        }
    }
}

#[test]
fn against_double_precision() {
    let (pairs, factor, first) = (32, 1.25, 1234);
    let x = Noise(7).vec(64, 3.0);
    for (order, pair) in [
        (RopePairs::HalfSplit, (|i| (i, i + 32)) as fn(usize) -> (usize, usize)),
        (RopePairs::Interleaved, |i| (2 * i, 2 * i + 1)),
    ] {
        let shape = RopeShape { heads: 1, head_dim: 64, offset: 0, pairs: order };
        let (cos, sin) = tables(pairs, factor, first, 1);
        let mut y = x.clone();
        rope(Tier::best(), &mut y, shape, &cos, &sin);
        for (i, f) in inv_freq(pairs).into_iter().enumerate() {
            let (a, b) = pair(i);
            let (s, c) = f64::from(first as f32 * f).sin_cos();
            let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
            let factor = f64::from(factor);
            assert!((f64::from(y[a]) - (xa * c - xb * s) * factor).abs() < 1e-6);
            assert!((f64::from(y[b]) - (xb * c + xa * s) * factor).abs() < 1e-6);
        }
    }
}

#[test]
fn no_pairs_change_nothing() {
    let shape = RopeShape { heads: 2, head_dim: 3, offset: 3, pairs: RopePairs::HalfSplit };
    let mut x = [1.0; 6];
    rope(Tier::best(), &mut x, shape, &[], &[]);
    assert_eq!(x, [1.0; 6]);
    rope(Tier::best(), &mut [], shape, &[], &[]);
}
