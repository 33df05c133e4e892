//! A trial of a correction: its forecasts are compared with the routes that follow.

use sws_format::Dtype;

use super::spans::{SpanTimes, Spans};
use crate::history::{Absence, HistoryShape};
use crate::saved::{SavedError, SavedTensors};

/// Maximum number of layers in a trial.
pub(super) const LAYERS: usize = 12;
/// Number of turns of a layer over which counts decay.
const WINDOW: f64 = 4096.0;
/// Minimum number of turns of each layer before the trial has a result.
const LEAST: f64 = 128.0;
/// Standard deviations by which the saved misses must exceed zero to activate a correction, or fall
/// below zero to deactivate it, if misses were independent. They come in bursts, which at least
/// doubles the deviation.
const SURE: f64 = 5.0;
const DOUBT: f64 = 2.0;
/// The trial starts again if the number of slots changes by more than one part in this many of the new one.
const CHANGE: usize = 4;

const COUNTS: &str = "correction.trial";
/// The largest accepted count.
const LARGEST: f32 = 1e9;

/// Simulates two small caches, and counts the misses of both: one evicts by the forecasts without the
/// correction, the other by those with it.
///
/// A forecast is scored by the routes that follow it, so a correction is never scored by its own
/// training data. The caches hold the experts of some layers, with as many slots as these have in
/// the real cache. There are several layers, because a correction also decides which layers get
/// more slots. Passes whose tokens may turn out wrong are ignored.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// One layer in this many is in the trial.
    every: usize,
    /// The simulated caches without the correction, and with it.
    sides: [SimulatedCache; 2],
    counts: TrialCounts,
    /// Number of slots of all layers when counting began; 0 before.
    slots: usize,
}

/// Counts of both caches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TrialCounts {
    /// Turns of all layers.
    turns: f64,
    /// Misses without the correction, and with it.
    misses: [f64; 2],
    /// Misses of only one of the caches: the variance of the difference, if it is chance.
    alone: f64,
}

/// A simulated cache.
#[derive(Clone, Debug)]
struct SimulatedCache {
    layers: Vec<TrialLayer>,
    /// Experts in the cache.
    count: usize,
    scores: Vec<f32>,
    /// Score, layer and expert of those that may be evicted.
    candidates: Vec<(f32, usize, usize)>,
}

#[derive(Clone, Debug)]
struct TrialLayer {
    spans: Spans,
    holds: Vec<bool>,
}

impl Trial {
    pub(super) fn new(shape: HistoryShape) -> Trial {
        let every = shape.layers.div_ceil(LAYERS).max(1);
        let layer =
            TrialLayer { spans: Spans::new(shape.experts), holds: vec![false; shape.experts] };
        let count = shape.layers.div_ceil(every);
        let sides = [0, 1].map(|_| SimulatedCache {
            layers: vec![layer.clone(); count],
            count: 0,
            scores: Vec::with_capacity(shape.experts),
            candidates: Vec::with_capacity(count * shape.experts),
        });
        Trial { every, sides, counts: TrialCounts::default(), slots: 0 }
    }

    pub(super) fn bytes_for(shape: HistoryShape) -> usize {
        let candidate = size_of::<bool>() + size_of::<(f32, usize, usize)>();
        let layer =
            size_of::<TrialLayer>() + Spans::bytes_for(shape.experts) + candidate * shape.experts;
        let every = shape.layers.div_ceil(LAYERS).max(1);
        let side = shape.layers.div_ceil(every) * layer + size_of::<f32>() * shape.experts;
        size_of::<Trial>() + 2 * side
    }

    /// The layers in the trial.
    pub(super) fn layers(&self) -> impl Iterator<Item = usize> + use<> {
        let every = self.every;
        (0..self.sides[0].layers.len()).map(move |place| place * every)
    }

    /// Restarts the trial if the number of slots has changed much, since a correction may win in a
    /// large cache and lose in a small one. Returns true if it restarts.
    pub(super) fn adapts(&mut self, slots: usize) -> bool {
        let least = slots - slots / CHANGE;
        let most = slots + slots / CHANGE;
        if (least..=most).contains(&self.slots) {
            return false;
        }
        let starts_again = self.slots > 0;
        if starts_again {
            self.counts = TrialCounts::default();
        }
        self.slots = slots;
        starts_again
    }

    /// The index of a layer among those in the trial.
    pub(super) fn place(&self, layer: usize) -> Option<usize> {
        layer.is_multiple_of(self.every).then_some(layer / self.every)
    }

    /// Simulates a turn of a layer. `used` is true for each expert that is used. `absence` has the
    /// forecasts without the correction and with it, `room` the slots of all layers in the trial,
    /// and `times` the times to the spans of each.
    pub(super) fn turn(
        &mut self,
        place: usize,
        used: &[bool],
        absence: [Absence<'_>; 2],
        room: usize,
        times: &[SpanTimes],
    ) {
        let fade = 1.0 - 1.0 / (WINDOW * times.len() as f64);
        let TrialCounts { turns, misses, alone } = &mut self.counts;
        let [without, with] = &self.sides;
        let both = without.layers[place].holds.iter().zip(&with.layers[place].holds);
        let differ = used.iter().zip(both).filter(|&(&used, (a, b))| used && a != b);
        *alone = *alone * fade + differ.count() as f64;
        *turns = *turns * fade + 1.0;
        for ((side, absence), misses) in self.sides.iter_mut().zip(absence).zip(misses) {
            side.layers[place].spans.set(absence);
            *misses = *misses * fade + side.take(place, used) as f64;
            side.shrink(room, place, used, times);
        }
    }

    /// True if the correction should be active, given whether it is now. It becomes active once it
    /// reliably saves misses, and stays so until it seems to cost some.
    pub(super) fn judge(&self, counts: bool) -> bool {
        let TrialCounts { turns, misses: [without, with], alone } = self.counts;
        let saved = without - with;
        match turns >= LEAST * self.sides[0].layers.len() as f64 {
            true if counts => saved >= -DOUBT * alone.sqrt(),
            true => saved > SURE * alone.sqrt(),
            false => counts,
        }
    }

    /// Adds the counts to `to`.
    pub(super) fn save(&self, to: &mut SavedTensors) {
        let TrialCounts { turns, misses: [without, with], alone } = self.counts;
        let all = [self.slots as f64, turns, without, with, alone].map(|x| x as f32);
        let bytes = all.iter().flat_map(|x| x.to_le_bytes()).collect();
        to.push(COUNTS, Dtype::F32, &[all.len()], bytes);
    }

    /// The number of slots and the counts that [`save`](Self::save) added, if there are any.
    pub(super) fn known(saved: &SavedTensors) -> Result<Option<(usize, TrialCounts)>, SavedError> {
        if !saved.contains(COUNTS) {
            return Ok(None);
        }
        let all = saved.floats(COUNTS, &[5], 0.0..=LARGEST)?;
        let [turns, without, with, alone] = [all[1], all[2], all[3], all[4]].map(f64::from);
        let counts = TrialCounts { turns, misses: [without, with], alone };
        Ok(Some((all[0] as usize, counts)))
    }

    /// Resumes with saved counts.
    pub(super) fn resume(&mut self, (slots, counts): (usize, TrialCounts)) {
        self.slots = slots;
        self.counts = counts;
    }
}

impl SimulatedCache {
    /// Adds the experts of a turn. Returns the misses.
    fn take(&mut self, place: usize, used: &[bool]) -> usize {
        let mut misses = 0;
        for (holds, &used) in self.layers[place].holds.iter_mut().zip(used) {
            misses += usize::from(used && !*holds);
            *holds |= used;
        }
        self.count += misses;
        misses
    }

    /// Evicts the experts with the latest expected use, until `room` experts are left, or only
    /// those of the turn.
    fn shrink(&mut self, room: usize, place: usize, used: &[bool], times: &[SpanTimes]) {
        let surplus = self.count.saturating_sub(room);
        if surplus == 0 {
            return;
        }
        self.candidates.clear();
        for (number, (layer, &times)) in self.layers.iter().zip(times).enumerate() {
            layer.spans.scores(times, &mut self.scores);
            for (expert, (&score, &holds)) in self.scores.iter().zip(&layer.holds).enumerate() {
                if holds && !(number == place && used[expert]) {
                    self.candidates.push((score, number, expert));
                }
            }
        }
        if surplus < self.candidates.len() {
            self.candidates.select_nth_unstable_by(surplus, |a, b| b.0.total_cmp(&a.0));
            self.candidates.truncate(surplus);
        }
        self.count -= self.candidates.len();
        for &(_, layer, expert) in &self.candidates {
            self.layers[layer].holds[expert] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: HistoryShape = HistoryShape { layers: 2, experts: 8, top_k: 2 };
    const TIMES: [SpanTimes; 2] = [[0.0, 1.0, 3.0, 5.0, 7.0]; 2];

    fn used(experts: &[usize]) -> [bool; 8] {
        std::array::from_fn(|expert| experts.contains(&expert))
    }

    /// Turns that use the experts 0, 1, 2 one after the other, of which two fit. The first forecasts say
    /// that the next one comes last, the second that it comes first.
    fn turns(trial: &mut Trial, count: usize) {
        for turn in 0..count {
            let next = (turn + 1) % 3;
            let right: Vec<f32> = (0..8).map(|e| if e == next { 0.0 } else { 0.9 }).collect();
            let wrong: Vec<f32> = right.iter().map(|p| 0.9 - p).collect();
            for place in 0..2 {
                let absence = [&wrong, &right].map(|all| Absence {
                    within_1: all,
                    within_4: all,
                    within_16: all,
                    within_64: all,
                });
                trial.turn(place, &used(&[turn % 3]), absence, 4, &TIMES);
            }
        }
    }

    #[test]
    fn better_forecasts_win_once_they_have_saved_enough() {
        let mut trial = Trial::new(SHAPE);
        assert!(!trial.adapts(4), "it had not begun");
        turns(&mut trial, 100);
        assert_eq!([false, true].map(|counts| trial.judge(counts)), [false, true]);
        turns(&mut trial, 100);
        assert!(trial.judge(false), "{:?}", trial.counts);
        let [without, with] = trial.counts.misses;
        assert!(with < 0.6 * without, "{without} and {with}");
        // The other way round.
        trial.counts.misses.reverse();
        assert_eq!([false, true].map(|counts| trial.judge(counts)), [false, false]);
        // That may be chance, and nothing changes.
        (trial.counts.misses, trial.counts.alone) = ([110.0, 100.0], 36.0);
        assert_eq!([false, true].map(|counts| trial.judge(counts)), [false, true]);
    }

    #[test]
    fn counts_are_kept_for_a_cache_of_that_size() {
        let mut trial = Trial::new(SHAPE);
        trial.adapts(40);
        turns(&mut trial, 200);
        let mut saved = SavedTensors::default();
        trial.save(&mut saved);
        let mut again = Trial::new(SHAPE);
        again.resume(Trial::known(&saved).unwrap().unwrap());
        assert!(again.judge(false));
        assert!(!again.adapts(45));
        assert!(again.judge(false));
        assert!(again.adapts(80));
        assert!(!again.judge(false), "nothing is known of a larger cache");
        assert_eq!(Trial::known(&SavedTensors::default()).unwrap(), None);
        for bad in [f32::NAN, -1.0, 1e10] {
            let mut saved = SavedTensors::default();
            let bytes =
                [4.0, bad, 1.0, 1.0, 1.0].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
            saved.push(COUNTS, Dtype::F32, &[5], bytes);
            assert!(Trial::known(&saved).is_err(), "{bad}");
        }
    }

    #[test]
    fn experts_of_a_turn_stay_even_without_room() {
        let mut trial = Trial::new(SHAPE);
        let even = [0.5; 8];
        let absence =
            Absence { within_1: &even, within_4: &even, within_16: &even, within_64: &even };
        trial.turn(0, &used(&[1, 4, 6]), [absence; 2], 1, &TIMES);
        assert_eq!(trial.sides[0].count, 3);
        trial.turn(1, &used(&[2]), [absence; 2], 1, &TIMES);
        let only = |side: &SimulatedCache| side.count == 1 && side.layers[1].holds[2];
        assert!(trial.sides.iter().all(only));
        assert_eq!(trial.counts.misses[0].round(), 4.0);
    }

    #[test]
    fn memory_is_as_said() {
        for layers in [2, 30] {
            let shape = HistoryShape { layers, ..SHAPE };
            let trial = Trial::new(shape);
            let side = |side: &SimulatedCache| {
                let layer = |layer: &TrialLayer| {
                    size_of::<TrialLayer>() + layer.spans.held_bytes() + layer.holds.capacity()
                };
                let each = size_of::<(f32, usize, usize)>();
                side.layers.iter().map(layer).sum::<usize>()
                    + each * side.candidates.capacity()
                    + size_of::<f32>() * side.scores.capacity()
            };
            let held = size_of::<Trial>() + trial.sides.iter().map(side).sum::<usize>();
            assert_eq!(Trial::bytes_for(shape), held);
        }
    }

    #[test]
    fn a_dozen_layers_take_part_at_most() {
        for (layers, places) in [(1, 1), (8, 8), (12, 12), (13, 7), (48, 12), (58, 12), (61, 11)] {
            let trial = Trial::new(HistoryShape { layers, ..SHAPE });
            let all: Vec<usize> = trial.layers().collect();
            assert_eq!(all.len(), places, "{layers}");
            assert!(*all.last().unwrap() < layers);
            assert_eq!((0..layers).filter_map(|layer| trial.place(layer)).count(), places);
        }
    }
}
