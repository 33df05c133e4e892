use proptest::prelude::*;

use super::*;

/// The definition, in double precision and without tables that are kept up to date.
struct Naive {
    shape: Shape,
    steps: Vec<Vec<u32>>,
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
        let follows = match self.steps.last() {
            None => overall,
            Some(last) => {
                let after = |a: u32| {
                    let pairs = self.steps.windows(2).filter(|pair| pair[0].contains(&a));
                    let seen = pairs.clone().count() as f64;
                    let followed = pairs.filter(|pair| pair[1].contains(&expert)).count() as f64;
                    (followed + 4.0 * overall) / (seen + 4.0)
                };
                last.iter().map(|&a| after(a)).sum::<f64>() / last.len() as f64
            }
        };
        let mut x = vec![1.0];
        x.extend([2.0, 8.0, 32.0, 128.0, 1024.0].map(|half| odds(average(half))));
        x.extend([odds(overall), 0.3 * (1.0 + age).ln(), odds(follows)]);
        let mut before = 1.0f64;
        WEIGHTS.map(|weights| {
            let sum: f64 = weights.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum();
            before = before.min(1.0 / (1.0 + sum.exp()));
            before
        })
    }
}

proptest! {
    #[test]
    fn it_is_the_definition(
        steps in prop::collection::vec(prop::collection::btree_set(0u32..9, 1..4), 0..120),
    ) {
        let shape = Shape { layers: 2, experts: 9, top_k: 2 };
        let mut history = History::new(shape);
        let mut naive = Naive { shape, steps: Vec::new() };
        for step in steps {
            let mut step: Vec<u32> = step.into_iter().collect();
            naive.steps.push(step.clone());
            step.extend_from_within(..1); // named twice, used once
            step.push(9); // the model has no such expert
            history.step(1, &step);
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
        prop_assert_eq!(history.steps(0), 0, "another layer is another history");
    }
}

#[test]
fn counts_that_are_full_are_halved() {
    let mut history = History::new(Shape { layers: 1, experts: 4, top_k: 1 });
    let pairs = |history: &History| {
        let pairs = history.layers[0].pairs.as_ref().unwrap();
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
fn memory_is_what_was_said() {
    #[rustfmt::skip]
    let cases = [
        // layers, experts, most bytes
        (24, 32, 72 << 10),
        (48, 128, 12 << 17), // Qwen3-30B-A3B
        (58, 256, 5 << 20), // DeepSeek-V3
        (60, 384, 12 << 20),
        (1000, 4096, 400 << 20), // no table of pairs
    ];
    for (layers, experts, most) in cases {
        let shape = Shape { layers, experts, top_k: 8 };
        let said = History::bytes_for(shape);
        assert!(said <= most, "{layers} × {experts}: {said} bytes");
        if said > 100 << 20 {
            continue;
        }
        let mut history = History::new(shape);
        history.step(0, &[1, 2, 3]);
        let layer = &history.layers[0];
        let floats =
            layer.averages.len() + layer.count.len() + layer.age.len() + layer.absence.len();
        let pairs = layer.pairs.as_ref().map_or(0, |p| 2 * p.seen.len() + p.followed.len());
        let scratch = 4 * (history.used.len() + history.features.len());
        let held = layers * (size_of::<Layer>() + 4 * floats + pairs) + scratch;
        assert!(held <= said && said <= held + held / 8, "{layers} × {experts}: {held} of {said}");
    }
}
