use std::sync::Arc;

use proptest::prelude::*;
use sws_format::{Dtype, Pass, PieceId};

use super::*;
use crate::cache::{Lookup, Need, PredictiveCache};
use crate::fit::{Fit, FitSequences, Fitted};
use crate::history::History;
use crate::policy::{ExpertLayers, PolicyKind, RouterChoice};
use crate::replay::{Replay, ReplayPolicy, ReplayStates};
use crate::{RouterStates, SavedTensors, Trace};

const SHAPE: HistoryShape = HistoryShape { layers: 3, experts: 16, top_k: 2 };
const HIDDEN: usize = 8;

/// A small generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % most
    }
}

/// Texts whose topic chooses among four experts of each layer. A topic lasts for about 24 steps, and the
/// states already show the next one half of that time before: what no history of use can know.
fn topics(sequences: usize, seed: u64) -> (Trace, Vec<f32>) {
    let mut random = Random(seed | 1);
    let (mut trace, mut states) = (Trace::new(SHAPE).unwrap(), Vec::new());
    for _ in 0..sequences {
        let (mut now, mut next, mut left) = (random.below(4), random.below(4), 24);
        for _ in 0..200 {
            if left == 0 {
                (now, next, left) = (next, random.below(4), 18 + random.below(12));
            }
            left -= 1;
            let layers: Vec<[u32; 2]> = (0..SHAPE.layers)
                .map(|_| {
                    let first = random.below(4);
                    [first, (first + 1 + random.below(3)) % 4].map(|e| (4 * now + e) as u32)
                })
                .collect();
            trace.push(&[random.below(50) as u32], &layers).unwrap();
            for _ in 0..SHAPE.layers {
                let mut state = [0.0; HIDDEN];
                state[now] = 1.0;
                state[4 + next] = if left < 12 { 1.0 } else { 0.0 };
                states.extend(state);
            }
        }
        trace.end_sequence();
    }
    (trace, states)
}

fn fitted(hidden: usize) -> Fitted {
    let (trace, states) = topics(24, 5);
    let sequences: Vec<_> = trace.sequences().collect();
    let mut state = |token: usize, layer: usize, to: &mut [f32]| {
        to.copy_from_slice(&states[(token * SHAPE.layers + layer) * HIDDEN..][..HIDDEN]);
        Ok::<_, ()>(())
    };
    let fit = Fit { hidden, rank: 4, epochs: 30, ..Fit::default() };
    fit.run(FitSequences::new(&trace, &sequences), &mut state, &mut |_, _| true).unwrap().unwrap()
}

/// A recording with these states.
fn file(trace: &Trace, states: &[f32]) -> Vec<u8> {
    let mut all = SavedTensors::default();
    let ids: Vec<u8> = (0..trace.token_count())
        .flat_map(|token| (0..SHAPE.layers).flat_map(move |layer| [(token, layer)]))
        .flat_map(|(token, layer)| trace.experts(token, layer).iter().map(|&e| e as u8))
        .collect();
    all.push("ids", Dtype::U8, &[trace.token_count(), SHAPE.layers, SHAPE.top_k], ids);
    let bytes = states.iter().flat_map(|x| x.to_le_bytes()).collect();
    all.push("attended", Dtype::F32, &[trace.token_count(), SHAPE.layers, HIDDEN], bytes);
    all.write("m")
}

#[test]
fn states_that_show_the_future_save_misses_on_other_texts() {
    let [with, without] = [fitted(HIDDEN), fitted(0)];
    let mean = |fitted: &Fitted, which: usize| {
        fitted.losses.iter().map(|loss| loss[which]).sum::<f32>() / SHAPE.layers as f32
    };
    assert!(mean(&with, 1) < 0.95 * mean(&with, 0), "{:?}", with.losses);
    assert!(mean(&with, 1) < mean(&without, 1), "{:?}, {:?}", with.losses, without.losses);
    assert!(mean(&without, 1) < mean(&without, 0), "{:?}", without.losses);

    let (trace, states) = topics(16, 77);
    let bytes = file(&trace, &states);
    let recorded = RouterStates::read(&bytes, &trace).unwrap().unwrap();
    let misses = |fitted: Option<Fitted>| {
        let mut replay = Replay::new(&trace, 1);
        let policy = match fitted {
            None => ReplayPolicy::Engine(PolicyKind::Expected),
            Some(Fitted { correction, .. }) => {
                let mut states = ReplayStates::default();
                states.push(0, recorded.clone());
                replay = replay.corrected(Arc::new(correction)).with_states(states);
                ReplayPolicy::Corrected
            }
        };
        // Most experts of all topics are in the cache, and which ones are not is what matters.
        replay.run(policy, 40, &mut |_| ()).misses
    };
    let [plain, use_alone, states] = [misses(None), misses(Some(without)), misses(Some(with))];
    assert!(states < plain * 9 / 10, "{states} of {plain}, {use_alone} by use alone");
    assert!(states < use_alone);
}

#[test]
fn same_seed_same_correction_and_none_if_stopped() {
    assert_eq!(fitted(HIDDEN).correction, fitted(HIDDEN).correction);
    let (trace, _) = topics(3, 1);
    let sequences: Vec<_> = trace.sequences().collect();
    let recorded = FitSequences::new(&trace, &sequences);
    let stopped = Fit::default().run(recorded, &mut |_, _, _| Ok::<_, ()>(()), &mut |_, _| false);
    assert!(stopped.unwrap().is_none());
}

/// A history with some steps, and the last states unseen.
fn history() -> History {
    let mut history = History::new(SHAPE, 1);
    for step in 0..40u32 {
        for layer in 0..SHAPE.layers {
            history.step(layer, 0, &[step % 7, 8 + step % 5], None);
        }
    }
    history
}

fn bits(history: &mut History) -> Vec<u32> {
    let all = (0..SHAPE.layers).flat_map(|layer| {
        let absence = history.absence(layer);
        [absence.within_1, absence.within_4, absence.within_16, absence.within_64].concat()
    });
    all.map(f32::to_bits).collect()
}

#[test]
fn without_a_state_to_look_at_nothing_changes() {
    let correction = Arc::new(fitted(HIDDEN).correction);
    let (mut plain, mut corrected) = (history(), history());
    corrected.correct(Corrections::Fitted(Arc::clone(&correction)));
    assert_eq!(bits(&mut corrected), bits(&mut plain));

    let mut projected = Vec::new();
    for garbage in [&[f32::NAN; HIDDEN][..], &[f32::INFINITY; HIDDEN], &[1.0; HIDDEN + 1]] {
        correction.project(0, garbage, &mut projected);
        assert!(projected.is_empty());
        corrected.note_state(0, 0, garbage);
    }
    assert_eq!(bits(&mut corrected), bits(&mut plain));

    corrected.note_state(0, 0, &[1.0; HIDDEN]);
    assert_ne!(bits(&mut corrected), bits(&mut plain));
    // The next step is another one.
    for history in [&mut plain, &mut corrected] {
        history.step(0, 0, &[1, 2], None);
    }
    assert_eq!(bits(&mut corrected), bits(&mut plain));

    // A correction for another shape is none.
    let other = HistoryShape { experts: 17, ..SHAPE };
    plain.correct(Corrections::Fitted(Arc::new(Correction::new(other, 0, 2))));
    assert_eq!(bits(&mut corrected), bits(&mut plain));
}

#[test]
fn file_of_another_shape_or_with_impossible_numbers_is_refused() {
    for hidden in [0, HIDDEN] {
        let Fitted { correction, .. } = fitted(hidden);
        let mut saved = SavedTensors::default();
        correction.save(&mut saved);
        let bytes = saved.write("m");
        assert!(bytes.len() <= Correction::most_bytes(SHAPE, hidden));
        let read = SavedTensors::read(&bytes, "m").unwrap();
        assert_eq!(Correction::recall(&read, SHAPE).unwrap(), Some(correction));
        for other in [
            HistoryShape { layers: 2, ..SHAPE },
            HistoryShape { layers: 4, ..SHAPE },
            HistoryShape { experts: 15, ..SHAPE },
            HistoryShape { layers: 0, ..SHAPE },
        ] {
            assert!(Correction::recall(&read, other).is_err(), "{other:?}");
        }
        for at in 0..3 {
            for bad in [f32::NAN, f32::INFINITY, 1e9] {
                let mut spoilt = read.clone();
                let (name, .., data) = &mut spoilt.tensors_mut()[at];
                let name = name.clone();
                let bad = if at < 2 {
                    UpperHalf::of(bad).0.to_le_bytes().to_vec()
                } else {
                    bad.to_le_bytes().to_vec()
                };
                let Some(first) = data.get_mut(..bad.len()) else { continue };
                first.copy_from_slice(&bad);
                let error = Correction::recall(&spoilt, SHAPE).unwrap_err().to_string();
                assert!(error.contains(&name), "{error}");
            }
        }
    }
    assert_eq!(Correction::recall(&SavedTensors::default(), SHAPE).unwrap(), None);
}

#[test]
fn memory_is_as_said() {
    for (hidden, rank) in [(0, 0), (0, 5), (HIDDEN, 3)] {
        let correction = Correction::new(SHAPE, hidden, rank);
        let Correction { states, statistics, up, .. } = &correction;
        let held = size_of::<Correction>() + 2 * (states.len() + statistics.len()) + 4 * up.len();
        let seen = 4 * (3 * SHAPE.layers * rank + 2 * rank);
        assert_eq!(correction.bytes(3), held + seen);
    }
}

#[test]
fn memory_of_a_learner_is_as_said() {
    for hidden in [0, HIDDEN] {
        let learner = Learner::new(SHAPE, hidden);
        let Correction { states, statistics, up, rank, .. } = learner.correction();
        let halves = 2 * (states.len() + statistics.len()) + 4 * up.len();
        let seen = 4 * (3 * SHAPE.layers * rank + 2 * rank);
        let held = learner.held_bytes();
        assert_eq!(Learner::bytes(SHAPE, hidden, 3), held + halves + seen);
    }
}

/// Replays texts, and returns the misses of the second half of them.
fn misses(trace: &Trace, states: &[f32], policy: ReplayPolicy, slots: usize) -> u64 {
    let bytes = file(trace, states);
    let mut all = ReplayStates::default();
    all.push(0, RouterStates::read(&bytes, trace).unwrap().unwrap());
    Replay::new(trace, 1).with_states(all).run(policy, slots, &mut |_| ()).misses
}

const EXPECTED: ReplayPolicy = ReplayPolicy::Engine(PolicyKind::Expected);

#[test]
fn what_is_learned_on_the_way_saves_misses() {
    let (trace, states) = topics(300, 5);
    for (slots, most) in [(40, 0.95), (30, 0.97)] {
        let [plain, learning] =
            [EXPECTED, ReplayPolicy::Learning].map(|p| misses(&trace, &states, p, slots));
        assert!((learning as f64) < most * plain as f64, "{slots}: {learning} of {plain}");
    }
    // From the use of experts alone there is less to learn.
    let alone = Replay::new(&trace, 1).run(ReplayPolicy::Learning, 40, &mut |_| ()).misses;
    assert!(alone > misses(&trace, &states, ReplayPolicy::Learning, 40));
}

#[test]
fn states_that_come_to_mean_something_else_are_learned_anew() {
    let (trace, mut states) = topics(400, 9);
    let half = states.len() / 2;
    states[half..].chunks_exact_mut(HIDDEN).for_each(|state| state.reverse());
    let [plain, learning] =
        [EXPECTED, ReplayPolicy::Learning].map(|p| misses(&trace, &states, p, 40));
    assert!(learning < plain, "{learning} of {plain}");
}

#[test]
fn what_does_not_save_misses_does_not_count() {
    let (trace, told) = topics(150, 9);
    for seed in 1..5 {
        let mut random = Random(seed);
        let noise: Vec<f32> = told.iter().map(|_| random.below(200) as f32 / 100.0 - 1.0).collect();
        for slots in [16, 30, 40] {
            let [plain, learning] =
                [EXPECTED, ReplayPolicy::Learning].map(|p| misses(&trace, &noise, p, slots));
            assert!(learning * 1000 <= plain * 1003, "{seed}, {slots}: {learning} of {plain}");
        }
    }

    // A fitted one counts from the start, and soon no more.
    let mut wrong = Correction::new(SHAPE, 0, 1);
    wrong.up.iter_mut().enumerate().for_each(|(i, up)| *up = (i * 7 % 11) as f32 - 5.0);
    let replay = Replay::new(&trace, 1).corrected(Arc::new(wrong));
    let [plain, wrong] =
        [EXPECTED, ReplayPolicy::Corrected].map(|p| replay.run(p, 30, &mut |_| ()).misses);
    assert!(wrong * 100 <= plain * 101, "{wrong} of {plain}");
}

/// A history that learns from the texts, and what it saves.
fn learning(trace: &Trace, states: &[f32], from: Option<&SavedTensors>) -> (History, SavedTensors) {
    let mut history = History::new(SHAPE, 1);
    history.correct(Corrections::Learned { hidden: HIDDEN });
    if let Some(saved) = from {
        history.recall(saved).unwrap();
    }
    for token in 0..trace.token_count() {
        for layer in 0..SHAPE.layers {
            let chosen: Vec<u32> =
                trace.experts(token, layer).iter().map(|&expert| expert.into()).collect();
            history.step(layer, 0, &chosen, None);
            let at = (token * SHAPE.layers + layer) * HIDDEN;
            history.note_state(layer, 0, &states[at..at + HIDDEN]);
            history.learn(layer);
        }
    }
    let mut saved = SavedTensors::default();
    history.save(&mut saved);
    (history, saved)
}

#[test]
fn learning_goes_on_after_a_restart() {
    let (trace, states) = topics(10, 3);
    let (_, saved) = learning(&trace, &states, None);
    let first = Correction::recall(&saved, SHAPE).unwrap().unwrap();
    assert!(first.up.iter().any(|&up| up != 0.0));
    // Written, read and written again it is the same, and further texts change it.
    let read = SavedTensors::read(&saved.write("m"), "m").unwrap();
    let (none, again) = topics(0, 1);
    let (_, again) = learning(&none, &again, Some(&read));
    assert_eq!(Correction::recall(&again, SHAPE).unwrap().unwrap(), first);
    let (_, later) = learning(&trace, &states, Some(&read));
    assert_ne!(Correction::recall(&later, SHAPE).unwrap().unwrap(), first);

    // Learning begins anew beside one of another rank, and one with a part missing is refused.
    let with = |rank: usize| {
        let mut other = SavedTensors::default();
        History::new(SHAPE, 1).save(&mut other);
        Correction::new(SHAPE, HIDDEN, rank).save(&mut other);
        let mut history = history();
        history.correct(Corrections::Learned { hidden: HIDDEN });
        let before = bits(&mut history);
        let result = history.recall(&other).map_err(|e| e.to_string());
        (result, bits(&mut history) == before)
    };
    assert_eq!(with(3), (Ok(false), false));
    let (refused, unchanged) = with(first.rank);
    assert!(unchanged && refused.unwrap_err().contains("correction.changes"));
    // A history that does not learn has no use for it.
    History::new(SHAPE, 1).recall(&read).unwrap();
}

/// Numbers at the bounds of what is accepted are still accepted when they have changed.
#[test]
fn what_a_learner_saves_is_what_it_reads() {
    let (trace, states) = topics(4, 3);
    let mut large = Learner::new(SHAPE, HIDDEN).correction().clone();
    large.up.iter_mut().for_each(|up| *up = 1e4);
    large.states.iter_mut().for_each(|state| *state = UpperHalf::of(9984.0));
    let (_, mut saved) = learning(&topics(0, 1).0, &[], None);
    for (tensor, new) in saved.tensors_mut().iter_mut().filter_map(|tensor| {
        let mut all = SavedTensors::default();
        large.save(&mut all);
        let new = all.tensors_mut().iter().find(|new| new.0 == tensor.0)?.clone();
        Some((tensor, new))
    }) {
        *tensor = new;
    }
    let (_, again) = learning(&trace, &states, Some(&saved));
    let changed = Correction::recall(&again, SHAPE).unwrap().unwrap();
    assert!(changed.up.iter().all(|up| up.abs() <= 100.0));
    learning(&trace, &states, Some(&again));
}

/// A saved state whose correction raises all chances, and whose trial has these misses.
fn tried(rank: usize, misses: [f32; 2]) -> SavedTensors {
    let mut saved = SavedTensors::default();
    PolicyKind::Expected.build(layers(SHAPE)).save(&mut saved);
    raising(HIDDEN, rank).save(&mut saved);
    let floats = |all: &[f32]| all.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    saved.push("correction.changes", Dtype::F32, &[SHAPE.layers], floats(&[9.0; SHAPE.layers]));
    let counts = [0.0, 1e5, misses[0], misses[1], 10.0];
    saved.push("correction.trial", Dtype::F32, &[counts.len()], floats(&counts));
    saved
}

/// A correction that raises the chances of all experts.
fn raising(hidden: usize, rank: usize) -> Correction {
    let mut correction = Correction::new(SHAPE, hidden, rank);
    let outputs = HORIZONS * SHAPE.experts;
    for layer in correction.up.chunks_exact_mut((rank + 1) * outputs) {
        layer[rank * outputs..].fill(3.0);
    }
    correction
}

fn layers(shape: HistoryShape) -> ExpertLayers {
    let HistoryShape { layers, experts, top_k } = shape;
    let count = layers as u32;
    let with_experts = (0..count).collect();
    ExpertLayers { count, with_experts, visits: Vec::new(), experts, top_k, sequences: 1 }
}

/// True if the corrections count after they have recalled the state.
fn counts(corrections: Corrections, saved: &SavedTensors) -> bool {
    let chance = |corrections: Corrections| {
        let mut policy = PolicyKind::Expected.build_corrected(layers(SHAPE), corrections);
        policy.recall(saved).unwrap();
        let pass = Pass::single(0, &[1]);
        policy.begin(&pass);
        // The model has no expert of that number.
        policy.routed(&RouterChoice { pass: &pass, layer: 0, experts: &[2, 99] });
        policy.on_router_state(0, 0, &[1.0; HIDDEN]);
        policy.on_layer_demanded(0);
        policy.use_probability(PieceId::expert(0, 3), 1)
    };
    chance(corrections) > 1.5 * chance(Corrections::None)
}

#[test]
fn each_correction_has_its_own_trial() {
    let rank = Learner::new(SHAPE, HIDDEN).correction().rank;
    let (won, lost) = ([500.0, 300.0], [300.0, 500.0]);
    let learned = || Corrections::Learned { hidden: HIDDEN };
    assert!(counts(learned(), &tried(rank, won)));
    assert!(!counts(learned(), &tried(rank, lost)));
    // Learning begins anew, and so does the trial.
    assert!(!counts(learned(), &tried(3, won)));
    // A fitted one does not lose by what another has lost.
    let fitted = Corrections::Fitted(Arc::new(raising(0, 1)));
    assert!(counts(fitted, &tried(rank, lost)));
}

/// Experts of some layers come and go in a prompt; the cache has as many slots as before.
#[test]
fn a_prompt_does_not_end_a_trial() {
    let shape = HistoryShape { layers: 26, experts: 16, top_k: 2 };
    let learned = Corrections::Learned { hidden: 0 };
    let policy = PolicyKind::Expected.build_corrected(layers(shape), learned);
    let mut cache = PredictiveCache::new(policy, vec![(1, ()); 100]);
    let mut random = Random(5);
    let mut run = |passes: usize, tokens: usize| {
        for position in 0..passes {
            let ids: Vec<u32> = (0..tokens as u32).collect();
            let pass = Pass::single(position, &ids);
            cache.begin_pass(&pass);
            for layer in 0..shape.layers as u32 {
                let mut half = |from: usize| (from + random.below(8)) as u32;
                let experts: Vec<u32> = (0..tokens).flat_map(|_| [half(0), half(8)]).collect();
                cache.routed(&RouterChoice { pass: &pass, layer, experts: &experts });
                for &expert in &experts {
                    let piece = PieceId::expert(layer, expert);
                    if cache.lookup(piece) == Lookup::Absent {
                        cache.begin(layer, piece, 1, Need::Now).unwrap();
                        cache.ready(piece, ());
                    }
                }
                cache.policy_mut().on_layer_demanded(layer);
            }
        }
        let mut saved = SavedTensors::default();
        cache.policy().save(&mut saved);
        saved.floats("correction.trial", &[5], 0.0..=1e9).unwrap()
    };
    let before = run(400, 1);
    let after = run(3, 40);
    let later = run(50, 1);
    assert_eq!(before[0], 100.0, "slots");
    assert!(before[1] > 1_000.0 && after[1] >= before[1] && later[1] > after[1], "{later:?}");
}

#[test]
fn samples_of_texts_that_end_are_given_up() {
    let mut history = History::new(SHAPE, 3);
    history.correct(Corrections::Learned { hidden: HIDDEN });
    let state = [1.0, -1.0, 0.5, 0.0, 2.0, 0.0, 0.0, 1.0];
    let mut step = |sequence: usize, count: usize| {
        for step in 0..count {
            history.step(0, sequence, &[step as u32 % 5, 7], None);
            history.note_state(0, sequence, &state);
            history.learn(0);
        }
        let mut saved = SavedTensors::default();
        history.save(&mut saved);
        Correction::recall(&saved, SHAPE).unwrap().unwrap()
    };
    // Two texts leave samples behind in all places, and the third has to wait.
    step(0, 600);
    let before = step(1, 24);
    assert_eq!(step(2, 1000), before);
    let after = step(2, 2000);
    assert_ne!(before, after);
    assert!(after.up.iter().all(|up| up.is_finite()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a correction says, the experts of the running layer and pinned ones stay.
    #[test]
    fn corrected_policy_never_evicts_held_pieces(
        seed in 1u64..1 << 40,
        slots in 3usize..20,
        learns: bool,
        size in prop::sample::select(vec![0.0f32, 1.0, 1e4]),
    ) {
        let mut random = Random(seed);
        let mut correction = Correction::new(SHAPE, HIDDEN, 2);
        let Correction { states, statistics, up, .. } = &mut correction;
        let mut weight = || size * (random.below(201) as f32 / 100.0 - 1.0);
        states.iter_mut().chain(statistics).for_each(|half| *half = UpperHalf::of(weight()));
        up.iter_mut().for_each(|up| *up = weight());
        let corrections = match learns {
            true => Corrections::Learned { hidden: HIDDEN },
            false => Corrections::Fitted(Arc::new(correction)),
        };
        let layers = ExpertLayers {
            count: 3, with_experts: vec![0, 1, 2], visits: Vec::new(), experts: 16, top_k: 2, sequences: 1,
        };
        let policy = PolicyKind::Expected.build_corrected(layers, corrections);
        let mut cache = PredictiveCache::new(policy, vec![(1, ()); slots]);
        let mut pinned: Option<PieceId> = None;
        for position in 0..600 {
            let pass = Pass::single(position, &[position as u32 % 9]);
            cache.begin_pass(&pass);
            for layer in 0..3u32 {
                let experts = [random.below(8) as u32, 8 + random.below(8) as u32];
                cache.routed(&RouterChoice { pass: &pass, layer, experts: &experts });
                let state = [0; HIDDEN].map(|_: i32| random.below(100) as f32 - 50.0);
                cache.policy_mut().on_router_state(layer, 0, &state);
                for expert in experts {
                    let piece = PieceId::expert(layer, expert);
                    if cache.lookup(piece) == Lookup::Absent {
                        let claim = cache.begin(layer, piece, 1, Need::Now).unwrap();
                        prop_assert!(claim.evicted.is_none() || claim.evicted != pinned);
                        prop_assert!(!experts.iter().any(|&e| claim.evicted == Some(PieceId::expert(layer, e))));
                        cache.ready(piece, ());
                    }
                }
                for expert in experts {
                    prop_assert!(cache.get(PieceId::expert(layer, expert)).is_some());
                }
                cache.policy_mut().on_layer_demanded(layer);
                cache.assert_within_budget();
                if let Some(old) = pinned.take_if(|_| random.below(4) == 0) {
                    cache.unpin(old);
                }
                if pinned.is_none() {
                    let piece = PieceId::expert(layer, experts[0]);
                    pinned = cache.pin(piece).then_some(piece);
                }
            }
        }
    }
}
