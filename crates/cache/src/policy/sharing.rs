//! Forecast of the misses of several sequences, in shared passes and in turns.

use crate::history::{History, HistoryShape};

/// Forecast of the misses of several sequences, by the way in which they share an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharedMisses {
    /// Misses per token if they share passes.
    pub together: f32,
    /// Misses per token if sequences take turns.
    pub in_turns: f32,
}

/// Working memory of the forecast.
///
/// The model is a settled cache, which holds the most used experts and misses the rest. With shared
/// passes it holds the experts that all sequences together use most, and each miss serves all of
/// them. In turns it holds those of the running sequence. Most experts that this sequence uses and
/// the previous one does not are read at the beginning of its turn.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    /// Chance that no sequence uses an expert in a step.
    absent: Vec<f32>,
    /// Chance that a sequence uses an expert in a step.
    used: Vec<f32>,
    sorted: Vec<f32>,
    /// True for experts that the previous turn has left in memory.
    held: Vec<bool>,
}

impl Sharing {
    pub(super) fn new(shape: HistoryShape) -> Sharing {
        let all = shape.layers * shape.experts;
        let zeros = vec![0.0; all];
        Sharing {
            absent: zeros.clone(),
            used: zeros.clone(),
            sorted: zeros,
            held: vec![false; all],
        }
    }

    /// Memory held for a model of this shape, in bytes.
    pub(super) fn bytes_for(shape: HistoryShape) -> usize {
        shape.layers * shape.experts * (3 * size_of::<f32>() + size_of::<bool>())
    }

    /// The misses of these sequences in a cache of `slots` slots, in turns of `turn` tokens.
    pub(super) fn misses(
        &mut self,
        history: &mut History,
        sequences: &[usize],
        slots: usize,
        turn: usize,
    ) -> Option<SharedMisses> {
        if turn == 0 {
            return None;
        }
        let &last = sequences.last()?;
        self.held.fill(false);
        self.absent.fill(1.0);
        self.use_of(history, last);
        self.turn(slots, turn);
        let mut in_turns = 0.0;
        let count = sequences.len() as f32;
        for &sequence in sequences {
            self.use_of(history, sequence);
            for (absent, used) in self.absent.iter_mut().zip(&self.used) {
                *absent *= 1.0 - used;
            }
            in_turns += self.turn(slots, turn);
        }
        for (used, absent) in self.used.iter_mut().zip(&self.absent) {
            *used = 1.0 - absent;
        }
        let least = self.least_held(slots);
        let missed = self.used.iter().filter(|&&used| used < least);
        let together = missed.sum::<f32>() / count;
        Some(SharedMisses { together, in_turns: in_turns / count })
    }

    /// Fills `used` with the use of experts by a sequence.
    fn use_of(&mut self, history: &mut History, sequence: usize) {
        let HistoryShape { layers, experts, .. } = history.shape();
        for (layer, used) in (0..layers).zip(self.used.chunks_exact_mut(experts.max(1))) {
            history.use_of(layer, sequence, used);
        }
    }

    /// Misses per token of a turn. Afterwards `held` has the experts that it leaves in memory.
    fn turn(&mut self, slots: usize, turn: usize) -> f32 {
        let least = self.least_held(slots);
        let mut misses = 0.0;
        for (&used, held) in self.used.iter().zip(&mut self.held) {
            if used < least {
                misses += used;
            } else if !*held {
                // An expert that was not held is read once, if the turn uses it.
                misses += (1.0 - (1.0 - used).powf(turn as f32)) / turn as f32;
            }
            *held = used >= least;
        }
        misses
    }

    /// The smallest use of an expert that gets a slot.
    fn least_held(&mut self, slots: usize) -> f32 {
        if slots == 0 {
            return f32::INFINITY;
        }
        if slots > self.used.len() {
            return 0.0;
        }
        self.sorted.copy_from_slice(&self.used);
        *self.sorted.select_nth_unstable_by(slots - 1, |a, b| b.total_cmp(a)).1
    }
}

#[cfg(test)]
mod tests {
    use sws_format::Pass;

    use super::*;
    use crate::Trace;
    use crate::policy::{
        ExpectedUse, ExpertLayers, PolicyKind, RouteLearner, RouterChoice, UseForecast,
    };
    use crate::replay::{Replay, ReplayPolicy};

    const SHAPE: HistoryShape = HistoryShape { layers: 4, experts: 32, top_k: 2 };
    const TEXTS: usize = 4;
    const TURN: usize = 64;

    /// Routes of twice as many texts as there are at a time, of 400 tokens each. A token uses experts of a
    /// text's own eight, nine times in ten; those of the next text begin `apart` experts further on.
    fn routes(apart: usize) -> Trace {
        let mut trace = Trace::new(SHAPE).unwrap();
        let mut random = 7u64;
        let mut draw = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for text in 0..2 * TEXTS {
            for _ in 0..400 {
                let mut expert = || match draw(10) {
                    0 => draw(32) as u32,
                    _ => ((text % TEXTS * apart) as u64 + draw(8)) as u32 % 32,
                };
                let layers: Vec<[u32; 2]> =
                    (0..SHAPE.layers).map(|_| [expert(), expert()]).collect();
                trace.push(&[0], &layers).unwrap();
            }
            trace.end_sequence();
        }
        trace
    }

    /// The forecast behind the first texts, which went on together.
    fn forecast(trace: &Trace, slots: usize) -> SharedMisses {
        let HistoryShape { layers, experts, top_k } = SHAPE;
        let with_experts = (0..layers as u32).collect();
        let visits = Vec::new();
        let layers =
            ExpertLayers { count: 4, with_experts, visits, experts, top_k, sequences: TEXTS };
        let mut policy = ExpectedUse::new(layers);
        for at in 0..400 {
            let mut pass = Pass::default();
            let tokens: Vec<usize> = (0..TEXTS).map(|text| 400 * text + at).collect();
            (0..TEXTS).for_each(|text| pass.push(text, at, &[0]));
            policy.begin(&pass);
            for layer in 0..SHAPE.layers {
                let of = |&token: &usize| trace.experts(token, layer).iter().map(|&e| u32::from(e));
                let experts: Vec<u32> = tokens.iter().flat_map(of).collect();
                policy.routed(&RouterChoice {
                    pass: &pass,
                    layer: layer as u32,
                    experts: &experts,
                });
            }
        }
        policy.shared_misses(&[0, 1, 2, 3], slots, TURN).unwrap()
    }

    #[test]
    fn forecasts_are_near_what_is_replayed() {
        // Texts apart by so many experts, slots, and whether turns read less.
        for (apart, slots, turns_win) in
            [(8, 40, true), (8, 60, true), (2, 30, true), (0, 20, false), (8, 128, false)]
        {
            let trace = routes(apart);
            let SharedMisses { together, in_turns } = forecast(&trace, slots);
            let replayed =
                [Replay::new(&trace, TEXTS), Replay::in_turns(&trace, TEXTS, TURN)].map(|replay| {
                    let policy = ReplayPolicy::Engine(PolicyKind::Expected);
                    replay.run(policy, slots, &mut |_| ()).misses_per_token() as f32
                });
            let case = format!(
                "{apart} apart, {slots} slots: {together:.2} and {replayed:.2?} together, {in_turns:.2} in turns"
            );
            for (forecast, replayed) in [together, in_turns].into_iter().zip(replayed) {
                let near = (forecast - replayed).abs() <= 0.3 * replayed;
                assert!(near, "{case}");
            }
            assert_eq!(replayed[1] < replayed[0], turns_win, "{case}");
            assert_eq!(in_turns < together, turns_win, "{case}");
        }
    }

    #[test]
    fn policies_without_an_estimate_and_single_sequences_have_none() {
        let layers = |sequences| ExpertLayers {
            count: 1,
            with_experts: vec![0],
            visits: Vec::new(),
            experts: 4,
            top_k: 1,
            sequences,
        };
        assert_eq!(PolicyKind::Lru.build(layers(2)).shared_misses(&[0, 1], 2, 8), None);
        assert_eq!(PolicyKind::Expected.build(layers(1)).shared_misses(&[0], 2, 8), None);
        let mut expected = PolicyKind::Expected.build(layers(2));
        assert_eq!(expected.shared_misses(&[], 2, 8), None);
        assert!(expected.shared_misses(&[0, 1], 2, 8).is_some());
        let all = expected.shared_misses(&[0, 1], 4, 8).unwrap();
        assert_eq!(all.together, 0.0, "every expert has a slot");
    }
}
