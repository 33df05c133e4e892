//! The draw: a function of seed, position and token that follows the probabilities of the model.
//! Two models that nearly agree nearly always draw the same token.

use proptest::prelude::*;
use sws_kernels::functional::elementary::{exp, ln1p64};
use sws_text::{Sampler, Sampling, SplitMix64};

fn plain(seed: u64) -> Sampling {
    Sampling { temperature: 1.0, seed, ..Sampling::default() }
}

/// Draws a token with a new sampler: without penalties, nothing is carried over between draws.
fn draw(seed: u64, position: usize, logits: &[f32]) -> u32 {
    Sampler::new(plain(seed), logits.len()).sample(&mut logits.to_vec(), position).unwrap()
}

/// Random logits in [0, spread).
fn random_logits(random: &mut SplitMix64, count: usize, spread: f64) -> Vec<f32> {
    (0..count).map(|_| (random.next_unit() * spread) as f32).collect()
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let mut logits = logits.to_vec();
    let kept = Sampler::new(plain(0), logits.len()).distribution(&mut logits).unwrap();
    kept.into_iter().map(|(_, p)| p).collect()
}

#[test]
fn the_random_numbers_are_splitmix64() {
    // The published test vector.
    let mut random = SplitMix64::new(1234567);
    let expected: [u64; 5] = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ];
    assert_eq!(expected.map(|_| random.next_u64()), expected);
}

#[test]
fn same_seed_same_text() {
    let cut =
        Sampling { seed: 7, temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.01, ..plain(7) };
    let (near, far) = (|i: usize| i, |i: usize| (1 << 17) + 4096 * i);
    type Case = (Sampling, fn(usize) -> usize, &'static [u32]);
    // Also computed by independent code, as the largest of logit + Gumbel noise.
    let cases: [Case; 6] = [
        (plain(7), near, &[140, 874, 26, 321, 537, 667, 855, 8, 374, 929, 934, 952]),
        (plain(7), far, &[211, 18, 316, 751, 282, 885]),
        (plain(8), near, &[461, 84, 682, 891, 246, 924, 250, 422, 179, 246, 713, 955]),
        (plain(8), far, &[537, 341, 840, 733, 933, 52]),
        (cut.clone(), near, &[140, 955, 26, 321, 252, 331, 855, 746, 765, 929, 934, 301]),
        (cut, far, &[898, 157, 152, 751, 282, 685]),
    ];
    for (sampling, position, expected) in cases {
        let mut random = SplitMix64::new(99);
        let mut sampler = Sampler::new(sampling.clone(), 1000);
        let mut sample = |i| {
            let mut row = random_logits(&mut random, 1000, 12.0);
            sampler.sample(&mut row, position(i)).unwrap()
        };
        let drawn: Vec<u32> = (0..expected.len()).map(&mut sample).collect();
        assert_eq!(drawn, expected, "{sampling:?}");
    }
}

#[test]
fn draws_do_not_depend_on_their_order() {
    let mut random = SplitMix64::new(5);
    let rows: Vec<Vec<f32>> = (0..64).map(|_| random_logits(&mut random, 300, 3.0)).collect();
    let mut sampler = Sampler::new(plain(11), 300);
    let mut sample = |at: usize| sampler.sample(&mut rows[at].clone(), at).unwrap();
    let forwards: Vec<u32> = (0..64).map(&mut sample).collect();
    let backwards: Vec<u32> = (0..64).rev().map(&mut sample).collect();
    assert!(forwards.iter().eq(backwards.iter().rev()));
    // Draws at other positions mostly differ.
    let elsewhere: Vec<u32> = (0..64).map(|at| draw(11, at + 1, &rows[at])).collect();
    let same = forwards.iter().zip(&elsewhere).filter(|(a, b)| a == b).count();
    assert!(same < 8, "{same} of 64");
}

/// Checks Pearson's statistic against its mean plus six standard deviations, a limit that chance
/// exceeds less than once in a hundred thousand tables.
fn fits(counts: &[f64], expected: &[f64], what: &str) {
    let statistic: f64 = counts.iter().zip(expected).map(|(n, e)| (n - e).powi(2) / e).sum();
    assert!(expected.iter().all(|e| *e > 10.0), "{what}: too few draws");
    let freedom = (counts.len() - 1) as f64;
    let limit = freedom + 6.0 * (2.0 * freedom).sqrt() + 12.0;
    assert!(statistic < limit, "{what}: {statistic} with {freedom} degrees of freedom");
}

/// Checks single draws of a distribution and pairs of successive draws: both must follow their
/// probabilities.
fn follow(what: &str, logits: &[f32], draw: impl Fn(usize) -> u32) {
    const DRAWS: usize = 100_000;
    let p = softmax(logits);
    let n = p.len();
    let (mut one, mut two) = (vec![0.0; n], vec![0.0; n * n]);
    let mut last = draw(0) as usize;
    for at in 1..=DRAWS {
        let next = draw(at) as usize;
        one[next] += 1.0;
        two[last * n + next] += 1.0;
        last = next;
    }
    let of = |p: f64| p * DRAWS as f64;
    let singly: Vec<f64> = p.iter().map(|p| of(*p)).collect();
    let pairs: Vec<f64> = p.iter().flat_map(|p| singly.iter().map(move |q| p * q)).collect();
    fits(&one, &singly, what);
    fits(&two, &pairs, &format!("{what}, neighbours"));
}

#[test]
fn draws_follow_the_probabilities() {
    let logits = [0.5f64, 0.2, 0.12, 0.08, 0.05, 0.03, 0.02].map(|p| p.ln() as f32);
    follow("positions", &logits, |at| draw(3, at, &logits));
    follow("seeds", &logits, |at| draw(at as u64, 0, &logits));
    follow("seeds far from each other", &logits, |at| draw((at as u64) << 40, 12, &logits));
    follow("seed and position", &logits, |at| draw(at as u64, at, &logits));
}

#[test]
fn tokens_have_independent_noise() {
    // The winner of two equally likely neighbouring tokens, for two such pairs at the same
    // position.
    let of = |first: usize, position: usize| {
        let mut logits = [f32::NEG_INFINITY; 8];
        (logits[first], logits[first + 1]) = (0.0, 0.0);
        draw(9, position, &logits) as usize - first
    };
    for other in [2, 4, 6] {
        let mut counts = [0.0; 4];
        for position in 0..40_000 {
            counts[2 * of(0, position) + of(other, position)] += 1.0;
        }
        fits(&counts, &[10_000.0; 4], &format!("tokens 0 and {other}"));
    }
    // As many tokens as in a vocabulary, all equally likely.
    let logits = vec![0.0; 150_000];
    let mut counts = [0.0; 30];
    for position in 0..600 {
        counts[draw(1, position, &logits) as usize / 5_000] += 1.0;
    }
    fits(&counts, &[20.0; 30], "a whole vocabulary");
}

#[test]
fn ties_made_by_the_temperature_go_to_the_first_token() {
    // Only the first of the tied tokens is kept, though it was not the likeliest before.
    let sampling = Sampling { temperature: 1.9, top_p: 0.0, ..plain(1) };
    let logits = [0.0, 1.96f32, 1.96f32.next_up()];
    assert_eq!(logits[1] / 1.9, logits[2] / 1.9);
    for position in 0..100 {
        let mut sampler = Sampler::new(sampling.clone(), 3);
        assert_eq!(sampler.sample(&mut logits.to_vec(), position), Ok(1), "{position}");
    }
}

#[test]
fn impossible_tokens_are_never_drawn() {
    // e^-200 is 0 in f32, and so is the weight of -inf.
    let logits = [-200.0, 0.0, f32::NEG_INFINITY, -1.0];
    for position in 0..20_000 {
        assert!([1, 3].contains(&draw(2, position, &logits)), "{position}");
    }
}

/// The token that a uniform number selects when walking over the tokens by ascending id.
fn walked(p: &[f64], uniform: f64) -> usize {
    let mut sum = 0.0;
    p.iter().position(|p| (sum += p, sum > uniform).1).unwrap_or(p.len() - 1)
}

#[test]
fn models_that_nearly_agree_draw_the_same() {
    const POSITIONS: usize = 4000;
    for (spread, change) in [(3.0, 0.1), (6.0, 0.3), (6.0, 1.0), (12.0, 0.3)] {
        let mut random = SplitMix64::new(1);
        // Shares of positions: same draw, lower bound, and same token by walking.
        let (mut same, mut bound, mut by_walk) = (0.0, 0.0, 0.0);
        for position in 0..POSITIONS {
            let exact = random_logits(&mut random, 400, spread);
            let near = random_logits(&mut random, 400, change);
            let near: Vec<f32> = exact.iter().zip(near).map(|(x, change)| x + change).collect();
            let (p, q) = (softmax(&exact), softmax(&near));
            let distance: f64 = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
            bound += (1.0 - distance) / (1.0 + distance);
            same += f64::from(draw(4, position, &exact) == draw(4, position, &near));
            let uniform = random.next_unit();
            by_walk += f64::from(walked(&p, uniform) == walked(&q, uniform));
        }
        let [same, bound, by_walk] = [same, bound, by_walk].map(|sum| sum / POSITIONS as f64);
        // At most five standard deviations of a share.
        let chance = 5.0 * (bound * (1.0 - bound) / POSITIONS as f64).sqrt();
        let found = format!("{same} against {bound} and {by_walk}: {spread}, {change}");
        assert!(same > bound - chance, "{found}");
        assert!(1.0 - same < 0.5 * (1.0 - by_walk), "{found}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Tokens skipped without a logarithm would not have been drawn with one.
    #[test]
    fn draws_match_their_definition(
        logits in prop::collection::vec(
            prop_oneof![1 => Just(f32::NEG_INFINITY), 1 => Just(0.0), 20 => -1.0f32..1.0], 1..300,
        ),
        // From all tokens equally likely to one that is certain.
        spread in prop_oneof![0.01f32..2.0, 0.5f32..8.0, 1.0f32..100.0],
        slope in prop_oneof![3 => Just(0.0f32), 1 => -0.5f32..0.5],
        seed in any::<u64>(),
        position in prop_oneof![0usize..100, any::<usize>()],
    ) {
        let logits: Vec<f32> = (0u16..).zip(&logits).map(|(i, x)| x * spread + slope * f32::from(i)).collect();
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assume!(largest > f32::NEG_INFINITY);

        let mixed = |bits: u64| SplitMix64::new(bits).next_u64();
        let mut stream = SplitMix64::new(mixed(mixed(seed) ^ position as u64));
        let mut best = (f64::INFINITY, 0);
        for (id, logit) in (0..).zip(&logits) {
            let unit = ((stream.next_u64() >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
            let time = -ln1p64(-unit) / f64::from(exp(logit - largest));
            if time < best.0 {
                best = (time, id);
            }
        }
        prop_assert_eq!(draw(seed, position, &logits), best.1);
    }
}
