use proptest::prelude::*;

use super::*;

/// The definition, in double precision and computed from all steps rather than from running tables.
struct Naive {
    shape: Shape,
    steps: Vec<Vec<u32>>,
    /// The tokens of each step.
    tokens: Vec<Vec<u32>>,
}

impl Naive {
    fn absence(&self, expert: u32) -> [f64; 4] {
        let even = self.shape.top_k as f64 / self.shape.experts as f64;
        let used = |e: u32| self.steps.iter().map(move |step| step.contains(&e));
        let odds = |p: f64| {
            let p = p.clamp(0.0005, 0.9995);
            (p / (1.0 - p)).ln()
        };
        let overall = (used(expert).filter(|&u| u).count() as f64 + 20.0 * even)
            / (self.steps.len() as f64 + 20.0);
        let average = |half: f64| {
            let rate = 1.0 - (-1.0 / half).exp2();
            used(expert)
                .fold(even, |average, u| average + rate * (f64::from(u8::from(u)) - average))
        };
        let age = self.steps.iter().rev().take_while(|step| !step.contains(&expert)).count() as f64;
        // The chance that the expert is used `lag` steps after a step that `seen` accepts.
        let after = |lag: usize, prior: f64, seen: &dyn Fn(usize) -> bool| {
            let pairs = (lag..self.steps.len()).filter(|&at| seen(at - lag));
            let followed = pairs.clone().filter(|&at| self.steps[at].contains(&expert)).count();
            (followed as f64 + 4.0 * prior) / (pairs.count() as f64 + 4.0)
        };
        let mean = |chances: Vec<f64>, otherwise: f64| match chances.len() {
            0 => otherwise,
            n => chances.iter().sum::<f64>() / n as f64,
        };
        let experts = |lag: usize| {
            let last = self.steps.len().checked_sub(lag).map(|at| &self.steps[at][..]);
            let of = |&a: &u32| after(lag, overall, &|at| self.steps[at].contains(&a));
            mean(last.unwrap_or_default().iter().map(of).collect(), overall)
        };
        let (follows, second) = (experts(1), experts(2));
        let last = self.tokens.last().map_or(&[][..], |tokens| &tokens[..]);
        // A token seen for the first time has no counts.
        let before = &self.tokens[..self.tokens.len().saturating_sub(1)];
        let known = last.iter().filter(|token| before.iter().any(|seen| seen.contains(token)));
        let of = |token: &u32| after(1, follows, &|at| self.tokens[at].contains(token));
        let token = mean(known.map(of).collect(), follows);
        let mut x = vec![1.0];
        x.extend([2.0, 8.0, 32.0, 128.0, 1024.0].map(|half| odds(average(half))));
        x.extend([odds(overall), 0.3 * (1.0 + age).ln(), odds(follows)]);
        x.extend([odds(second) - odds(overall), odds(token) - odds(follows)]);
        let mut before = 1.0f64;
        let weights = if last.is_empty() { WITHOUT_TOKENS } else { WEIGHTS };
        weights.map(|weights| {
            let sum: f64 = weights.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum();
            before = before.min(1.0 / (1.0 + sum.exp()));
            before
        })
    }
}

proptest! {
    #[test]
    fn history_matches_the_definition(
        steps in prop::collection::vec(
            (prop::collection::btree_set(0u32..9, 1..4), prop::collection::btree_set(0u32..5, 0..3)),
            0..120,
        ),
        with_tokens: bool,
    ) {
        let shape = Shape { layers: 2, experts: 9, top_k: 2 };
        let mut history = History::with_tokens(shape);
        let mut naive = Naive { shape, steps: Vec::new(), tokens: Vec::new() };
        for (step, tokens) in steps {
            let tokens: Vec<u32> = tokens.into_iter().filter(|_| with_tokens).collect();
            history.announce(&tokens);
            naive.tokens.push(tokens.clone());
            // The steps after a token are counted at layer 0.
            history.step_of(0, &[], &tokens);
            let mut step: Vec<u32> = step.into_iter().collect();
            naive.steps.push(step.clone());
            step.extend_from_within(..1); // listed twice, used once
            step.push(9); // the model has no such expert
            history.step_of(1, &step, &tokens);
        }
        let absence = history.absence(1);
        for expert in 0..9 {
            let expected = naive.absence(expert as u32);
            let ours = [absence.within_1, absence.within_4, absence.within_16, absence.within_64];
            for (ours, expected) in ours.iter().zip(expected) {
                let error = (f64::from(ours[expert]) - expected).abs();
                prop_assert!(error < 1e-4, "{} for {expected}", ours[expert]);
            }
        }
        prop_assert_eq!(history.steps(1), naive.steps.len());
        prop_assert_eq!(history.steps(0), naive.steps.len());
        let absence = history.absence(0);
        let alike = absence.within_1.iter().all(|chance| *chance == absence.within_1[0]);
        prop_assert!(alike, "each layer has its own history");
    }
}

#[test]
fn full_counts_are_halved() {
    let mut history = History::new(Shape { layers: 1, experts: 4, top_k: 1 });
    let pairs = |history: &History| {
        let [pairs, _] = history.layers[0].pairs.as_ref().unwrap();
        (pairs.seen[0], pairs.followed[..4].to_vec())
    };
    for _ in 0..255 {
        history.step(0, &[0]);
        history.step(0, &[1]);
    }
    assert_eq!(pairs(&history), (255, vec![0, 255, 0, 0]));
    history.step(0, &[0]);
    history.step(0, &[1]);
    assert_eq!(pairs(&history), (128, vec![0, 128, 0, 0]));
}

#[test]
fn memory_matches_bytes_for() {
    #[rustfmt::skip]
    let cases = [
        // layers, experts, most bytes
        (8, 32, 600 << 10), // tales-moe
        (24, 32, 2 << 20), // gpt-oss-20b
        (48, 128, 4 << 20), // Qwen3-30B-A3B
        (58, 256, 11 << 20), // DeepSeek-V3
        (60, 384, 21 << 20),
        (1000, 4096, 400 << 20), // no tables
    ];
    for (layers, experts, most) in cases {
        let shape = Shape { layers, experts, top_k: 8 };
        let said = History::bytes_for(shape) + History::bytes_of_tokens(shape);
        assert!(said <= most, "{layers} × {experts}: {said} bytes");
        if said > 100 << 20 {
            continue;
        }
        let mut history = History::with_tokens(shape);
        assert_eq!(history.bytes(), said);
        history.step(0, &[1, 2, 3]);
        let layer = &history.layers[0];
        let floats =
            layer.averages.len() + layer.count.len() + layer.age.len() + layer.absence.len();
        let of = |pairs: &[Pairs; 2]| {
            pairs.iter().map(|p| 2 * p.seen.len() + p.followed.len()).sum::<usize>()
        };
        let pairs = layer.pairs.as_ref().map_or(0, of);
        let scratch = 4 * (history.used.len() + history.features.len());
        let followers = history.followers.bytes();
        let held = layers * (size_of::<Layer>() + 4 * floats + pairs) + scratch + followers;
        assert!(held <= said && said <= held + held / 8, "{layers} × {experts}: {held} of {said}");
    }
}
