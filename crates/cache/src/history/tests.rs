use proptest::prelude::*;

use super::cursor::Recent;
use super::logistic::{WEIGHTS, WITHOUT_TOKENS};
use super::*;

/// The definition, in double precision and computed from all steps rather than from running tables.
#[derive(Default)]
struct Naive {
    steps: Vec<Step>,
    texts: Vec<Text>,
    /// The text whose step was the last of all.
    latest: usize,
}

struct Step {
    experts: Vec<u32>,
    token: Option<u32>,
    /// The step of the same text before it.
    before: Option<usize>,
}

/// The steps of a text, ascending.
#[derive(Clone, Default)]
struct Text {
    /// With those of the text from which it takes its averages.
    recent: Vec<usize>,
    own: Vec<usize>,
}

const SHAPE: HistoryShape = HistoryShape { layers: 2, experts: 9, top_k: 2 };

impl Naive {
    fn begin(&mut self, sequence: usize) {
        let recent = self.texts.get(self.latest).map_or(Vec::new(), |text| text.recent.clone());
        if self.texts.len() <= sequence {
            self.texts.resize_with(sequence + 1, Text::default);
        }
        self.texts[sequence] = Text { recent, own: Vec::new() };
    }

    fn step(&mut self, sequence: usize, experts: Vec<u32>, token: Option<u32>) {
        let text = &mut self.texts[sequence];
        self.steps.push(Step { experts, token, before: text.own.last().copied() });
        text.recent.push(self.steps.len() - 1);
        text.own.push(self.steps.len() - 1);
        self.latest = sequence;
    }

    fn absence(&self, sequence: usize, expert: u32) -> [f64; 4] {
        let text = &self.texts[sequence];
        let even = SHAPE.top_k as f64 / SHAPE.experts as f64;
        let used = |at: usize| self.steps[at].experts.contains(&expert);
        let odds = |p: f64| {
            let p = p.clamp(0.0005, 0.9995);
            (p / (1.0 - p)).ln()
        };
        let all = (0..self.steps.len()).filter(|&at| used(at)).count() as f64;
        let overall = (all + 20.0 * even) / (self.steps.len() as f64 + 20.0);
        let average = |half: f64| {
            let rate = 1.0 - (-1.0 / half).exp2();
            let step = |average, &at| average + rate * (f64::from(u8::from(used(at))) - average);
            text.recent.iter().fold(even, step)
        };
        let age = text.recent.iter().rev().take_while(|&&at| !used(at)).count() as f64;
        // The chance that the expert is used `lag` steps after a step that `seen` accepts.
        let after = |lag: usize, prior: f64, seen: &dyn Fn(&Step) -> bool| {
            let earlier = |at: usize| {
                (0..lag).try_fold(at, |at, _| self.steps[at].before).map(|at| &self.steps[at])
            };
            let pairs = (0..self.steps.len()).filter(|&at| earlier(at).is_some_and(seen));
            let followed = pairs.clone().filter(|&at| used(at)).count();
            (followed as f64 + 4.0 * prior) / (pairs.count() as f64 + 4.0)
        };
        let experts = |lag: usize| {
            let last = text.own.len().checked_sub(lag).map(|at| &self.steps[text.own[at]].experts);
            let of = |&a: &u32| after(lag, overall, &|step| step.experts.contains(&a));
            let chances: Vec<f64> = last.into_iter().flatten().map(of).collect();
            match chances.len() {
                0 => overall,
                n => chances.iter().sum::<f64>() / n as f64,
            }
        };
        let (follows, second) = (experts(1), experts(2));
        let last = text.own.last().and_then(|&at| self.steps[at].token);
        let token = after(1, follows, &|step| step.token.is_some() && step.token == last);
        let mut x = vec![1.0];
        x.extend([2.0, 8.0, 32.0, 128.0, 1024.0].map(|half| odds(average(half))));
        x.extend([odds(overall), 0.3 * (1.0 + age).ln(), odds(follows)]);
        x.extend([odds(second) - odds(overall), odds(token) - odds(follows)]);
        let mut before = 1.0f64;
        let weights = if last.is_none() { WITHOUT_TOKENS } else { WEIGHTS };
        weights.map(|weights| {
            let sum: f64 = weights.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum();
            before = before.min(1.0 / (1.0 + sum.exp()));
            before
        })
    }
}

proptest! {
    /// Up to three sequences run together; texts end and others begin in their place.
    #[test]
    fn history_matches_the_definition(
        passes in prop::collection::vec(
            prop::collection::btree_map(
                0usize..3,
                (prop::collection::btree_set(0u32..9, 1..4), 0u32..5, prop::bool::weighted(0.1)),
                1..4,
            ),
            1..60,
        ),
        with_tokens: bool,
    ) {
        let mut history = History::with_tokens(SHAPE, 3);
        let mut naive = Naive::default();
        let mut positions = [0; 3];
        let mut live = Vec::new();
        for together in passes {
            let mut pass = Pass::default();
            live.clear();
            for (&sequence, &(_, token, ends)) in &together {
                if ends || positions[sequence] == 0 {
                    positions[sequence] = 0;
                    naive.begin(sequence);
                }
                match with_tokens {
                    true => pass.push(sequence, positions[sequence], &[token]),
                    false => pass.push_unknown(sequence, positions[sequence], 1),
                }
                positions[sequence] += 1;
                live.push(sequence);
            }
            history.begin(&pass);
            for (sequence, (step, token, _)) in together {
                let token = with_tokens.then_some(token);
                // The steps after a token are counted at layer 0.
                history.step(0, sequence, &[], token);
                let mut step: Vec<u32> = step.into_iter().collect();
                naive.step(sequence, step.clone(), token);
                step.extend_from_within(..1); // listed twice, used once
                step.push(9); // the model has no such expert
                history.step(1, sequence, &step, token);
            }
        }
        let horizons = |absence: Absence<'_>, expert: usize| {
            let Absence { within_1, within_4, within_16, within_64 } = absence;
            [within_1, within_4, within_16, within_64].map(|all| f64::from(all[expert]))
        };
        for expert in 0..9 {
            let mut product = [1.0; 4];
            for &sequence in &live {
                let expected = naive.absence(sequence, expert as u32);
                let ours = horizons(history.absence_of(1, sequence), expert);
                for ((ours, expected), product) in ours.iter().zip(expected).zip(&mut product) {
                    prop_assert!((ours - expected).abs() < 1e-4, "{ours} for {expected}");
                    *product *= expected;
                }
            }
            let ours = horizons(history.absence(1), expert);
            for (ours, expected) in ours.iter().zip(product) {
                prop_assert!((ours - expected).abs() < 1e-4, "{ours} for {expected} of all");
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
    let mut history = History::new(HistoryShape { layers: 1, experts: 4, top_k: 1 }, 1);
    let pairs = |history: &History| {
        let [pairs, _] = history.layers[0].pairs.as_ref().unwrap();
        (pairs.seen[0], pairs.followed[..4].to_vec())
    };
    for _ in 0..255 {
        history.step(0, 0, &[0], None);
        history.step(0, 0, &[1], None);
    }
    assert_eq!(pairs(&history), (255, vec![0, 255, 0, 0]));
    history.step(0, 0, &[0], None);
    history.step(0, 0, &[1], None);
    assert_eq!(pairs(&history), (128, vec![0, 128, 0, 0]));
}

#[test]
fn memory_matches_bytes_for() {
    #[rustfmt::skip]
    let cases = [
        // layers, experts, sequences, most bytes
        (8, 32, 1, 600 << 10), // tales-moe
        (24, 32, 1, 2 << 20), // gpt-oss-20b
        (48, 128, 1, 4 << 20), // Qwen3-30B-A3B
        (48, 128, 16, 7 << 20),
        (58, 256, 1, 11 << 20), // DeepSeek-V3
        (58, 256, 8, 15 << 20),
        (60, 384, 1, 21 << 20),
        (1000, 4096, 1, 400 << 20), // no tables
    ];
    for (layers, experts, sequences, most) in cases {
        let shape = HistoryShape { layers, experts, top_k: 8 };
        let said = History::bytes_for(shape, sequences) + History::bytes_of_tokens(shape);
        assert!(said <= most, "{layers} × {experts} × {sequences}: {said} bytes");
        if said > 100 << 20 {
            continue;
        }
        let mut history = History::with_tokens(shape, sequences);
        assert_eq!(history.bytes(), said);
        history.step(0, 0, &[1, 2, 3], None);
        let layer = &history.layers[0];
        let floats = layer.count.len() + layer.absence.len();
        let of = |pairs: &[ExpertPairs; 2]| {
            pairs.iter().map(|p| 2 * p.seen.len() + p.followed.len()).sum::<usize>()
        };
        let pairs = layer.pairs.as_ref().map_or(0, of);
        let recent = &history.cursors[0].layers[0];
        let recent = size_of::<Recent>() + 4 * (recent.averages.len() + recent.age.len());
        let scratch = &history.scratch;
        let scratch = 4 * (scratch.used.len() + scratch.features.len() + scratch.absence.len());
        let held = layers * (size_of::<HistoryLayer>() + 4 * floats + pairs + sequences * recent)
            + scratch
            + history.followers.bytes();
        assert!(held <= said && said <= held + held / 8, "{layers} × {experts}: {held} of {said}");
    }
}
