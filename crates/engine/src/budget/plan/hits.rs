//! The expected hit rate of experts, as a function of the share of experts that have a slot.

use std::thread;

use sws_cache::Trace;
use sws_cache::history::HistoryShape;
use sws_cache::policy::PolicyKind;
use sws_cache::replay::Residency;
use sws_format::Pass;

/// Hit rates under the default policy, by the share of experts that have a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct HitCurve {
    /// Shares, ascending from 0, and hit rates.
    points: Vec<(f64, f64)>,
    basis: HitBasis,
}

/// The source of the routes behind hit rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitBasis {
    /// Routes of this released model, which stand in for those of the model itself.
    Model(&'static str),
    /// Recorded routes of this released model, which has the same shape.
    Recorded(&'static str),
    /// The model's own routes, from so many tokens of earlier runs.
    Tokens(usize),
}

/// Hit rates for the routes of DeepSeek-V2-Lite (docs/benchmarks/caches.md), which reuses experts
/// least of the measured models.
const GENERAL: [(f64, f64); 9] = [
    (0.0, 0.0),
    (0.1, 0.352),
    (0.2, 0.517),
    (0.3, 0.632),
    (0.4, 0.721),
    (0.5, 0.795),
    (0.6, 0.856),
    (0.75, 0.929),
    (1.0, 1.0),
];

/// Name, shape and hit rates of a model.
type RecordedRates = (&'static str, HistoryShape, &'static [(f64, f64)]);

/// Hit rates of released models with recorded routes (`benchmarks/results/replay-*.json`).
const RECORDED: [RecordedRates; 2] = [
    (
        "Qwen3-30B-A3B",
        HistoryShape { layers: 48, experts: 128, top_k: 8 },
        &[
            (0.0, 0.0),
            (0.05, 0.421),
            (0.1, 0.604),
            (0.2, 0.798),
            (0.3, 0.909),
            (0.4, 0.958),
            (0.5, 0.978),
            (1.0, 1.0),
        ],
    ),
    (
        "gpt-oss-20b",
        HistoryShape { layers: 24, experts: 32, top_k: 4 },
        &[
            (0.0, 0.0),
            (0.05, 0.252),
            (0.1, 0.44),
            (0.2, 0.645),
            (0.3, 0.774),
            (0.4, 0.865),
            (0.5, 0.925),
            (0.6, 0.962),
            (0.75, 0.989),
            (1.0, 1.0),
        ],
    ),
];

/// Maximum number of experts in a layer for which the rates of [`FEW`] apply.
const FEW_EXPERTS: usize = 16;

/// Published repetitions of Mixtral-8x7B, from token to token: "Mixtral of Experts", table 5, the mean
/// over layers and texts (docs/design/budget.md, Estimates). Where a layer has few experts they are
/// used almost evenly.
const FEW: [(f64, f64); 5] = [(0.0, 0.0), (0.25, 0.301), (0.5, 0.568), (0.75, 0.801), (1.0, 1.0)];

/// Minimum number of tokens whose hits say more than the general rates.
const FEWEST: usize = 32;

impl HitCurve {
    /// Hit rates of a model of this shape whose routes are unknown. They come from a recorded model
    /// of the same shape, or else from one with similarly few or many experts in a layer.
    pub fn general(shape: HistoryShape) -> HitCurve {
        for (model, other, points) in RECORDED {
            if other == shape {
                return HitCurve { points: points.to_vec(), basis: HitBasis::Recorded(model) };
            }
        }
        let experts = shape.experts;
        let (points, model) = if experts <= FEW_EXPERTS {
            (FEW.to_vec(), "Mixtral-8x7B")
        } else {
            (GENERAL.to_vec(), "DeepSeek-V2-Lite")
        };
        HitCurve { points, basis: HitBasis::Model(model) }
    }

    /// Hit rates of recorded routes, replayed in caches of several sizes. Takes some hundred
    /// milliseconds for the largest models. `None` if too few tokens were generated one at a time.
    pub fn replayed(routes: &Trace) -> Option<HitCurve> {
        let all = routes.shape().layers * routes.shape().experts;
        let mut slots = Vec::new();
        for (share, _) in &GENERAL[1..] {
            slots.push(((share * all as f64).round() as usize).max(1));
        }
        slots.dedup();
        let rates = thread::scope(|scope| {
            let mut replays = Vec::new();
            for &slots in &slots {
                let replay = move || replay(routes, slots);
                replays.push(thread::Builder::new().spawn_scoped(scope, replay).ok());
            }
            let mut rates = Vec::new();
            for replay in replays {
                rates.push(replay?.join().ok()??);
            }
            Some(rates)
        })?;
        let mut points = vec![(0.0, 0.0)];
        for (slots, rate) in slots.into_iter().zip(rates) {
            let share = slots as f64 / all as f64;
            // With a slot for each, every expert is read only once, which a few tokens cannot show.
            if share < 1.0 {
                points.push((share, rate));
            }
        }
        points.push((1.0, 1.0));
        // More slots never mean fewer hits in an estimate.
        let mut most = 0.0;
        for (_, rate) in &mut points {
            most = f64::max(most, *rate);
            *rate = most;
        }
        Some(HitCurve { points, basis: HitBasis::Tokens(routes.token_count()) })
    }

    /// The source of the routes behind these rates.
    pub fn basis(&self) -> HitBasis {
        self.basis
    }

    /// The number of tokens of earlier runs behind these rates; `None` for general rates.
    pub fn tokens(&self) -> Option<usize> {
        match self.basis {
            HitBasis::Model(_) | HitBasis::Recorded(_) => None,
            HitBasis::Tokens(tokens) => Some(tokens),
        }
    }

    /// Planned over measured tokens per second with such rates: the lowest and the highest ratio of
    /// docs/benchmarks/streaming.md.
    pub fn accuracy(&self) -> [f64; 2] {
        match self.basis {
            HitBasis::Model(_) => [0.84, 1.35],
            HitBasis::Recorded(_) => [0.51, 0.91],
            HitBasis::Tokens(_) => [0.73, 1.22],
        }
    }

    /// The expected hit rate if this share of the experts has slots.
    pub fn rate(&self, share: f64) -> f64 {
        for pair in self.points.windows(2) {
            let [(x, low), (end, high)] = [pair[0], pair[1]];
            if share < end {
                return low + (high - low) * (share - x) / (end - x);
            }
        }
        self.points.last().map_or(1.0, |&(_, rate)| rate)
    }
}

/// Hit rate of the tokens generated one at a time in the second half of the routes. The first half
/// warms up the cache and the policy. `None` if there are too few tokens.
fn replay(routes: &Trace, slots: usize) -> Option<f64> {
    let mut cache = Residency::new(routes.shape(), PolicyKind::default(), slots, 1);
    let all = routes.token_count();
    let [mut tokens, mut uses, mut misses] = [0; 3];
    for range in routes.passes(0..all) {
        let mut pass = Pass::default();
        pass.push_unknown(0, range.start, range.len());
        cache.begin(&pass);
        let counts = range.len() == 1 && range.start >= all / 2;
        tokens += usize::from(counts);
        for layer in 0..routes.shape().layers {
            let mut experts = Vec::new();
            for token in range.clone() {
                experts.extend(routes.experts(token, layer).iter().copied().map(u32::from));
            }
            let missing = cache.layer(layer, &experts).len();
            if counts {
                experts.sort_unstable();
                experts.dedup();
                (uses, misses) = (uses + experts.len(), misses + missing);
            }
        }
    }
    (tokens >= FEWEST).then_some(1.0 - misses as f64 / uses.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_interpolated() {
        let cases = [
            (64, 0.0, 0.0),
            (64, 0.05, 0.176),
            (17, 0.1, 0.352),
            (64, 0.45, 0.758),
            (64, 1.0, 1.0),
            (64, 2.0, 1.0),
            (16, 0.125, 0.1505),
            (8, 0.25, 0.301),
            (8, 1.0, 1.0),
        ];
        for (experts, share, expected) in cases {
            let curve = HitCurve::general(HistoryShape { layers: 3, experts, top_k: 2 });
            assert!((curve.rate(share) - expected).abs() < 1e-9, "{share}: {}", curve.rate(share));
            let rates: Vec<f64> = (0..=100).map(|n| curve.rate(f64::from(n) / 100.0)).collect();
            assert!(rates.is_sorted());
        }
        for (name, shape, points) in RECORDED {
            let curve = HitCurve::general(shape);
            assert_eq!(curve.basis(), HitBasis::Recorded(name));
            assert!(points.is_sorted() && points.len() > 5, "{name}");
            assert_eq!([curve.rate(0.1), curve.rate(1.0)], [points[2].1, 1.0], "{name}");
        }
    }

    /// Tokens that use two experts of each layer: of `used` in turn.
    fn routes(tokens: u32, used: u32) -> Trace {
        let mut trace = Trace::new(HistoryShape { layers: 2, experts: 10, top_k: 2 }).unwrap();
        for token in 0..tokens {
            let pair = [2 * token % used, (2 * token + 1) % used];
            trace.push(&[token], &[pair, pair]).unwrap();
        }
        trace
    }

    /// A prompt of so many tokens, which went through the layers together.
    fn prompt(tokens: usize) -> Trace {
        let mut trace = Trace::new(HistoryShape { layers: 1, experts: 10, top_k: 1 }).unwrap();
        trace.push(&vec![0; tokens], &[vec![3; tokens]]).unwrap();
        trace
    }

    #[test]
    fn a_prompt_warms_the_cache_and_does_not_count() {
        let mut trace = prompt(50);
        (0..40).for_each(|token| trace.push(&[token], &[[3]]).unwrap());
        assert_eq!(replay(&trace, 1), Some(1.0));
        (0..40).for_each(|token| trace.push(&[token], &[[3 + token % 2]]).unwrap());
        assert_eq!(replay(&trace, 2), Some(1.0 - 1.0 / 65.0));
    }

    #[test]
    fn a_models_own_routes_decide() {
        assert_eq!(HitCurve::replayed(&routes(62, 2)), None);
        assert_eq!(HitCurve::replayed(&prompt(200)), None);
        // Two experts of each layer need four slots of twenty. All ten in turn need all slots.
        let few = HitCurve::replayed(&routes(100, 2)).unwrap();
        let all = HitCurve::replayed(&routes(100, 10)).unwrap();
        assert_eq!(
            (
                few.tokens(),
                HitCurve::general(HistoryShape { layers: 3, experts: 64, top_k: 2 }).tokens()
            ),
            (Some(100), None)
        );
        assert_eq!(
            [few.rate(0.0), few.rate(0.2), few.rate(0.5), few.rate(1.0)],
            [0.0, 1.0, 1.0, 1.0]
        );
        assert_eq!([all.rate(0.0), all.rate(1.0)], [0.0, 1.0]);
        assert!(all.rate(0.2) < 0.3 && all.rate(0.6) < few.rate(0.6), "{all:?}");
        let rates: Vec<f64> = (0..=100).map(|n| all.rate(f64::from(n) / 100.0)).collect();
        assert!(rates.is_sorted());
    }
}
