//! Forecasts from the use of experts so far.
//!
//! A [`History`] keeps for all sequences together:
//!
//! - the total use of every expert of every layer,
//! - for pairs of experts of a layer, how often one followed the other after one step and after
//!   two,
//! - for tokens, how often each expert was used one step later;
//!
//! and for each sequence:
//!
//! - the recent use of every expert, as moving averages over five spans of time,
//! - the time since its last use,
//! - the experts of the last two steps, and the last token.
//!
//! A logistic model of these gives the chance that an expert is *not* used within the next 1, 4, 16
//! and 64 steps, which are tokens of a sequence. The weights of that model are the same for all
//! layers and models. They were learned on the routes of one model; frozen, they forecast those of
//! three other models as well as weights learned on those models. With several sequences an expert
//! is absent if none of them uses it.
//!
//! ```
//! use sws_cache::history::{History, HistoryShape};
//!
//! let mut history = History::new(HistoryShape { layers: 1, experts: 8, top_k: 2 }, 1);
//! for step in 0..50 {
//!     history.step(0, 0, &[1, if step % 2 == 0 { 2 } else { 3 }], None);
//! }
//! let absent = history.absence(0);
//! // Expert 1 is always used; after 3, which was used last, comes 2; 7 never was.
//! assert!(absent.within_1[1] < absent.within_1[2]);
//! assert!(absent.within_1[2] < absent.within_1[3]);
//! assert!(absent.within_64[3] < absent.within_64[7]);
//! ```

mod corrector;
mod cursor;
mod followers;
mod logistic;
mod pairs;
mod saved;

use sws_format::Pass;

use crate::correction::Corrections;
pub use crate::math::{dot, logistic};
pub use crate::shape::HistoryShape;
use crate::shape::{FEATURES, HORIZONS, STATISTICS};
use corrector::Corrector;
use cursor::SequenceCursor;
use followers::Followers;
pub use logistic::log_odds;
pub use pairs::ExpertPairs;

/// The half-lives of the moving averages, in steps.
const HALF_LIVES: [f32; 5] = [2.0, 8.0, 32.0, 128.0, 1024.0];

/// Weight of the average over all time, in steps, for pairs of experts that were rarely seen.
const PRIOR: f32 = 4.0;

/// The smallest chance of absence from which the frequency of use can be derived.
const TELLING: f32 = 0.1;

/// Number of steps of a layer before its tables are reliable.
const EMPTY: f32 = 256.0;

/// The use of a model's experts so far.
#[derive(Clone, Debug)]
pub struct History {
    shape: HistoryShape,
    layers: Vec<HistoryLayer>,
    followers: Followers,
    corrector: Option<Corrector>,
    /// The recent steps of each sequence.
    cursors: Vec<SequenceCursor>,
    /// The cursors of the sequences in the running pass.
    live: Vec<usize>,
    /// The cursor of the last step. A new text starts with its averages.
    latest: usize,
    /// Factor by which each moving average decays per step.
    keep: [f32; HALF_LIVES.len()],
    scratch: HistoryScratch,
}

#[derive(Clone, Debug)]
struct HistoryScratch {
    live: Vec<usize>,
    used: Vec<f32>,
    previous: Vec<u32>,
    /// [features, experts]
    features: Vec<f32>,
    /// Chances without a correction: [horizons, experts].
    absence: Vec<f32>,
    /// Chances with the correction; empty if there is none.
    corrected: Vec<f32>,
    /// Projected inputs of a correction.
    projected: Vec<f32>,
}

/// The chance that each expert of a layer is not used within 1, 4, 16 and 64 steps. It never
/// increases with the number of steps.
#[derive(Clone, Copy, Debug)]
pub struct Absence<'a> {
    /// Absent in the next step.
    pub within_1: &'a [f32],
    /// Absent in the next 4 steps.
    pub within_4: &'a [f32],
    /// Absent in the next 16 steps.
    pub within_16: &'a [f32],
    /// Absent in the next 64 steps.
    pub within_64: &'a [f32],
}

/// The use of a layer's experts by all sequences.
#[derive(Clone, Debug)]
struct HistoryLayer {
    steps: f32,
    /// For each expert, the number of steps that used it.
    count: Vec<f32>,
    /// Pair counts: experts used one step after an expert, and two steps after it.
    pairs: Option<[ExpertPairs; 2]>,
    /// Chances for all live sequences, without a correction: [horizons, experts].
    absence: Vec<f32>,
    /// Chances with the correction; empty if there is none.
    corrected: Vec<f32>,
    stale: bool,
}

impl History {
    /// An empty history for up to `sequences` sequences at the same time. Sequences with higher
    /// numbers share the last place.
    pub fn new(shape: HistoryShape, sequences: usize) -> History {
        let experts = shape.experts;
        let layer = HistoryLayer {
            steps: 0.0,
            count: vec![0.0; experts],
            pairs: shape.pairs().then(|| [ExpertPairs::new(experts), ExpertPairs::new(experts)]),
            absence: vec![0.0; HORIZONS * experts],
            corrected: Vec::new(),
            stale: true,
        };
        History {
            shape,
            layers: vec![layer; shape.layers],
            followers: Followers::default(),
            corrector: None,
            cursors: vec![SequenceCursor::new(shape); sequences.max(1)],
            live: vec![0],
            latest: 0,
            keep: HALF_LIVES.map(|half| (-1.0 / half).exp2()),
            scratch: HistoryScratch {
                live: Vec::new(),
                used: vec![0.0; experts],
                previous: Vec::new(),
                features: vec![0.0; FEATURES * experts],
                absence: vec![0.0; HORIZONS * experts],
                corrected: Vec::new(),
                projected: Vec::new(),
            },
        }
    }

    /// An empty history that also learns which experts follow each token of a
    /// [pass](Self::begin).
    pub fn with_tokens(shape: HistoryShape, sequences: usize) -> History {
        let followers = Followers::new(shape.layers, shape.experts);
        History { followers, ..History::new(shape, sequences) }
    }

    /// Sets corrections of the forecasts, unless they are for another shape. A correction that is
    /// still learning becomes active once the policy has found that it saves misses.
    pub fn correct(&mut self, corrections: Corrections) {
        self.corrector = Corrector::new(corrections, self.shape);
        let len = if self.corrector.is_some() { HORIZONS * self.shape.experts } else { 0 };
        self.scratch.corrected = vec![0.0; len];
        for layer in &mut self.layers {
            layer.corrected = vec![0.0; len];
            layer.stale = true;
        }
    }

    /// Activates or deactivates the correction. Returns true if that is a change.
    pub(crate) fn count_correction(&mut self, counts: bool) -> bool {
        let Some(corrector) = &mut self.corrector else { return false };
        std::mem::replace(&mut corrector.counts, counts) != counts
    }

    /// True if the history learns a correction.
    pub(crate) fn learns(&self) -> bool {
        self.corrector.as_ref().and_then(Corrector::learner).is_some()
    }

    /// True if the history has a correction.
    pub(crate) fn is_corrected(&self) -> bool {
        self.corrector.is_some()
    }

    /// True if the correction is active.
    pub(crate) fn counts_correction(&self) -> bool {
        self.corrector.as_ref().is_some_and(|corrector| corrector.counts)
    }

    /// Elements of the hidden states that the correction uses; 0 if it uses none.
    pub fn hidden(&self) -> usize {
        self.corrector.as_ref().map_or(0, |corrector| corrector.correction().hidden())
    }

    /// The number of layers and experts of the history.
    pub fn shape(&self) -> HistoryShape {
        self.shape
    }

    /// Number of steps seen of a layer, of all sequences together.
    pub fn steps(&self, layer: usize) -> usize {
        self.layers[layer].steps as usize
    }

    /// Begins a pass. From now on [`absence`](Self::absence) refers to its sequences. Returns true
    /// if that changes the forecasts.
    pub fn begin(&mut self, pass: &Pass) -> bool {
        let mut live = std::mem::take(&mut self.scratch.live);
        live.clear();
        let mut changed = false;
        for span in &pass.spans {
            let number = self.cursor(span.sequence);
            let SequenceCursor { next_position, stepped, .. } = self.cursors[number];
            if !stepped || next_position != span.first_position {
                changed = true;
                let begins = !stepped || span.first_position == 0;
                if begins
                    && let Ok([cursor, latest]) =
                        self.cursors.get_disjoint_mut([number, self.latest])
                {
                    cursor.begin_after(latest);
                }
                self.cursors[number].forget_last();
            }
            self.cursors[number].next_position = span.positions().end;
            if !live.contains(&number) {
                live.push(number);
            }
        }
        changed |= live != self.live;
        self.scratch.live = std::mem::replace(&mut self.live, live);
        if changed {
            for layer in &mut self.layers {
                layer.stale = true;
            }
        }
        for &token in &pass.tokens {
            self.followers.admit(token);
        }
        changed
    }

    /// Records the hidden state that the router of a layer saw in the last step of a sequence.
    pub fn note_state(&mut self, layer: usize, sequence: usize, state: &[f32]) {
        let cursor = self.cursor(sequence);
        if let Some(corrector) = &self.corrector
            && let Some(recent) = self.cursors[cursor].layers.get_mut(layer)
        {
            corrector.correction().project(layer, state, &mut recent.seen);
            self.layers[layer].stale = true;
            if !recent.seen.is_empty() {
                self.show(layer, cursor, state);
            }
        }
    }

    /// Offers the last step of a sequence to the learner, which may take it as a sample.
    fn show(&mut self, layer: usize, cursor: usize, state: &[f32]) {
        let Some(mut corrector) = self.corrector.take() else { return };
        if self.tells(layer)
            && let Some(learner) = corrector.learner_mut()
            && learner.wants(layer)
        {
            let (statistics, odds) = self.odds(layer, cursor);
            learner.show(layer, cursor, state, statistics, odds);
        }
        self.corrector = Some(corrector);
    }

    /// True if the tables of a layer are reliable enough to judge or learn a correction.
    pub(crate) fn tells(&self, layer: usize) -> bool {
        self.layers[layer].steps >= EMPTY
    }

    /// Makes the learner, if there is one, learn from earlier steps of a layer.
    pub(crate) fn learn(&mut self, layer: usize) {
        if let Some(learner) = self.corrector.as_mut().and_then(Corrector::learner_mut) {
            learner.learn(layer);
        }
    }

    /// Records that a step of a sequence uses these experts of a layer. `layer` is an index among
    /// the layers with experts. An expert may be listed several times; ids that the model does not
    /// have are ignored. `token` is the step's token, if it is known.
    pub fn step(&mut self, layer: usize, sequence: usize, experts: &[u32], token: Option<u32>) {
        let number = layer;
        let latest = self.cursor(sequence);
        let History { layers, followers, cursors, keep, scratch, corrector, .. } = self;
        let Some(layer) = layers.get_mut(layer) else { return };
        let cursor = &mut cursors[latest];
        cursor.stepped = true;
        self.latest = latest;
        let recent = &mut cursor.layers[number];
        recent.step(experts, keep, scratch);
        layer.steps += 1.0;
        layer.stale = true;
        for (count, used) in layer.count.iter_mut().zip(&scratch.used) {
            *count += used;
        }
        if let Some(pairs) = &mut layer.pairs {
            for (pairs, before) in pairs.iter_mut().zip([&recent.before, &scratch.previous]) {
                for &before in before {
                    pairs.note(before as usize, &recent.last);
                }
            }
        }
        if let Some(before) = std::mem::replace(&mut recent.token, token) {
            followers.note(before, number, &recent.last);
        }
        if let Some(learner) = corrector.as_mut().and_then(Corrector::learner_mut) {
            learner.stepped(number, latest, &recent.last);
            if learner.correction().hidden() == 0 {
                self.show(number, latest, &[]);
            }
        }
    }

    /// The chances that no sequence of the running pass uses a layer's experts soon, as of the
    /// layer's last steps.
    pub fn absence(&mut self, layer: usize) -> Absence<'_> {
        let counts = self.counts_correction();
        let [without, with] = self.both(layer);
        if counts { with } else { without }
    }

    /// Like [`absence`](Self::absence), without the correction and with it. The latter is empty if
    /// there is none.
    pub(crate) fn both(&mut self, layer: usize) -> [Absence<'_>; 2] {
        let number = layer;
        if std::mem::take(&mut self.layers[number].stale) {
            for at in 0..self.live.len() {
                self.weigh(number, self.live[at]);
                let layer = &mut self.layers[number];
                let own = &self.scratch;
                let sides =
                    [(&mut layer.absence, &own.absence), (&mut layer.corrected, &own.corrected)];
                for (all, own) in sides {
                    match at {
                        0 => all.copy_from_slice(own),
                        _ => all.iter_mut().zip(own).for_each(|(all, own)| *all *= own),
                    }
                }
            }
        }
        let HistoryLayer { absence, corrected, .. } = &self.layers[number];
        [absence, corrected].map(|all| Absence::of(all, self.shape.experts))
    }

    /// The chances that a sequence does not use a layer's experts soon, as of the layer's last
    /// step.
    pub fn absence_of(&mut self, layer: usize, sequence: usize) -> Absence<'_> {
        self.weigh(layer, self.cursor(sequence));
        let all =
            if self.counts_correction() { &self.scratch.corrected } else { &self.scratch.absence };
        Absence::of(all, self.shape.experts)
    }

    /// Writes, for each expert of a layer, the share of a sequence's steps that use it. It is the
    /// mean of two estimates: from the next step, and from the longest horizon that the expert is
    /// likely to miss. On routes of gpt-oss and DeepSeek the first alone predicts more hits than a
    /// cache has, and the second fewer.
    pub fn use_of(&mut self, layer: usize, sequence: usize, used: &mut [f32]) {
        let Absence { within_1, within_4, within_16, within_64 } = self.absence_of(layer, sequence);
        for (expert, used) in used.iter_mut().enumerate().take(within_1.len()) {
            let horizons = [(within_64, 64.0), (within_16, 16.0), (within_4, 4.0)];
            let telling = horizons.into_iter().find(|(absence, _)| absence[expert] > TELLING);
            let (absence, steps) = telling.unwrap_or((within_1, 1.0));
            let later = 1.0 - absence[expert].powf(1.0 / steps);
            *used = 0.5 * (1.0 - within_1[expert] + later);
        }
        // The estimates are scaled to the number of experts that a step uses.
        let count = match self.cursors[self.cursor(sequence)].layers[layer].last.len() {
            0 => self.shape.top_k,
            count => count,
        };
        let scale = count as f32 / used.iter().sum::<f32>().max(f32::MIN_POSITIVE);
        for used in used.iter_mut() {
            *used = (*used * scale).min(1.0);
        }
    }

    fn weigh(&mut self, layer: usize, cursor: usize) {
        self.odds(layer, cursor);
        let History { corrector, cursors, scratch, shape, .. } = self;
        let HistoryScratch { features, absence, corrected, projected, .. } = scratch;
        let recent = &cursors[cursor].layers[layer];
        if let Some(corrector) = corrector {
            corrected.copy_from_slice(absence);
            if !recent.last.is_empty() {
                let statistics = &features[..STATISTICS * shape.experts];
                let correction = corrector.correction();
                correction.apply(layer, statistics, &recent.seen, projected, corrected);
            }
        }
        logistic::absence(absence);
        logistic::absence(corrected);
    }

    /// Inputs of a sample for the sequence that stepped last: the statistics of a layer's experts
    /// [statistics, experts], and the log-odds of their use within the horizons [horizons, experts]
    /// before a correction.
    pub(crate) fn latest_odds(&mut self, layer: usize) -> (&[f32], &[f32]) {
        self.odds(layer, self.latest)
    }

    fn odds(&mut self, layer: usize, cursor: usize) -> (&[f32], &[f32]) {
        let even = self.shape.top_k as f32 / self.shape.experts.max(1) as f32;
        let recent = &self.cursors[cursor].layers[layer];
        let after = recent.token.and_then(|token| self.followers.after(token, layer));
        logistic::odds(&self.layers[layer], recent, after, even, &mut self.scratch);
        let statistics = STATISTICS * self.shape.experts;
        (&self.scratch.features[..statistics], &self.scratch.absence)
    }

    /// Index of a sequence's cursor.
    fn cursor(&self, sequence: usize) -> usize {
        sequence.min(self.cursors.len() - 1)
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        History::bytes_for(self.shape, self.cursors.len())
            + self.followers.bytes()
            + self.bytes_of_correction()
    }

    /// Additional memory of a [corrected](Self::correct) history.
    pub(crate) fn bytes_of_correction(&self) -> usize {
        self.corrector.as_ref().map_or(0, |corrector| corrector.bytes(self.cursors.len()))
    }

    /// Additional memory of a history [with tokens](Self::with_tokens): at most 2 MiB.
    pub fn bytes_of_tokens(shape: HistoryShape) -> usize {
        Followers::bytes_for(shape.layers, shape.experts)
    }

    /// Additional memory for each sequence but the first.
    pub fn bytes_of_sequence(shape: HistoryShape) -> usize {
        SequenceCursor::bytes_for(shape)
    }

    /// Memory of a history of this many sequences, for a model of this shape. For one sequence it
    /// is 1.9 MiB for 48 layers of 128 experts, and 8.3 MiB for 58 layers of 256.
    pub fn bytes_for(shape: HistoryShape, sequences: usize) -> usize {
        let floats = size_of::<f32>() * (1 + HORIZONS);
        let pairs = if shape.pairs() { 2 * (shape.experts + size_of::<u16>()) } else { 0 };
        let layer = size_of::<HistoryLayer>() + shape.experts * (floats + pairs);
        let scratch = size_of::<f32>() * (FEATURES + 1 + HORIZONS) * shape.experts;
        shape.layers * layer + sequences.max(1) * SequenceCursor::bytes_for(shape) + scratch
    }
}

impl<'a> Absence<'a> {
    /// `all` is [horizons, experts].
    fn of(all: &'a [f32], experts: usize) -> Absence<'a> {
        Absence {
            within_1: horizon(all, experts, 0),
            within_4: horizon(all, experts, 1),
            within_16: horizon(all, experts, 2),
            within_64: horizon(all, experts, 3),
        }
    }
}

/// The chances of one horizon; empty if there are none.
fn horizon(all: &[f32], experts: usize, number: usize) -> &[f32] {
    all.get(number * experts..(number + 1) * experts).unwrap_or_default()
}

#[cfg(test)]
mod tests;
