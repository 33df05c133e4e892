//! Learning a correction while a model runs.

use sws_format::Dtype;

use super::net::{CorrectionNet, LAST, NetGradients, SCALE, Sample, normed};
use super::{Correction, UpperHalf};
use crate::saved::{SavedError, SavedTensors};
use crate::shape::{HORIZONS, HistoryShape, STATISTICS};

/// Rank of a learned correction. Rank 8 learns less, and rank 32 learns more slowly.
const RANK: usize = 16;
/// One step in this many is a sample. Neighbouring steps are very similar.
const EVERY: u32 = 4;
/// Number of samples per update of the weights.
const BATCH: usize = 4;
/// Number of samples kept per layer: those whose next uses are not known yet, and a batch.
const PLACES: usize = LAST / EVERY as usize + BATCH + 1;
/// Root mean square of a row's first update.
const RATE: f32 = 1e-3;
/// Root mean square of a row's update after many updates.
const LEAST_RATE: f32 = 2.5e-4;
/// Number of updates after which the learning rate is smaller by a factor of √2.
const SLOWER: f32 = 400.0;
/// Maximum number of updates counted. The learning rate reaches its minimum long before.
const MOST_CHANGES: f32 = 1e6;
const CHANGES: &str = "correction.changes";
/// The largest weight. Fitted weights are below ten.
const LARGEST: f32 = 100.0;
/// Decay of the average of a row's squared gradients.
const SQUARE: f32 = 0.99;
/// Number of steps of a layer after which a sample of an unfinished sequence is dropped.
const PATIENCE: u32 = 32 * LAST as u32;

/// A correction that is learned while the model runs.
///
/// A sample is the same as for a [`Fit`](super::Fit): a step's inputs and, 64 steps later, the next
/// uses of all experts. Few samples are kept, each is used once, and each row of weights has a
/// single average of its squared gradients. A learner therefore takes little more memory than its
/// weights.
#[derive(Clone, Debug)]
pub(crate) struct Learner {
    correction: Correction,
    layers: Vec<LearnerLayer>,
    work: NetGradients,
    inputs: Vec<f32>,
    odds: Vec<f32>,
}

#[derive(Clone, Debug)]
struct LearnerLayer {
    net: CorrectionNet,
    /// Averages of the squared gradients of each row of `down` and of `up`.
    squares: Vec<f32>,
    /// Number of updates so far, including earlier runs.
    changes: f32,
    /// Steps since the last sample.
    since: u32,
    places: Vec<SampleSlot>,
}

/// Room for a sample.
#[derive(Clone, Debug)]
struct SampleSlot {
    state: PlaceState,
    /// The sequence of the sample, by its cursor.
    cursor: usize,
    /// Steps of all sequences since the sample.
    waited: u32,
    /// Inputs, then log-odds.
    halves: Vec<UpperHalf>,
    /// For each expert, steps until its next use.
    until: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceState {
    Free,
    /// The sample's sequence has made this many steps since, and some next uses are still unknown.
    Waiting(u8),
    Known,
}

impl Learner {
    /// A learner whose correction has no effect yet.
    pub(crate) fn new(shape: HistoryShape, hidden: usize) -> Learner {
        let inputs = inputs(shape, hidden);
        let outputs = outputs(shape);
        let place = SampleSlot {
            state: PlaceState::Free,
            cursor: 0,
            waited: 0,
            halves: vec![UpperHalf::default(); inputs + outputs],
            until: vec![u8::MAX; shape.experts],
        };
        let mut layers = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers as u64 {
            layers.push(LearnerLayer {
                net: CorrectionNet::new(RANK, inputs, outputs, &mut (layer << 32)),
                squares: vec![0.0; 2 * RANK + 1],
                changes: 0.0,
                since: 0,
                places: vec![place.clone(); PLACES],
            });
        }
        Learner {
            correction: Correction::new(shape, hidden, RANK),
            layers,
            work: NetGradients::new(RANK, inputs, outputs),
            inputs: vec![0.0; inputs],
            odds: vec![0.0; outputs],
        }
    }

    /// Adds the learned weights to `to`.
    pub(crate) fn save(&self, to: &mut SavedTensors) {
        self.correction.save(to);
        let changes = self.layers.iter().flat_map(|layer| layer.changes.to_le_bytes()).collect();
        to.push(CHANGES, Dtype::F32, &[self.layers.len()], changes);
    }

    /// The [saved](Self::save) state of an equal learner, if there is one: its correction, and its
    /// numbers of updates.
    pub(crate) fn known(
        &self,
        saved: &SavedTensors,
    ) -> Result<Option<(Correction, Vec<f32>)>, SavedError> {
        let Correction { shape, hidden, .. } = self.correction;
        let Some(known) = Correction::recall(saved, shape)? else { return Ok(None) };
        if known.hidden != hidden || known.rank != RANK {
            return Ok(None);
        }
        let changes = saved.floats(CHANGES, &[shape.layers], 0.0..=MOST_CHANGES)?;
        Ok(Some((known, changes)))
    }

    /// Resumes from the state that [`known`](Self::known) returned.
    pub(crate) fn resume(&mut self, (known, changes): (Correction, Vec<f32>)) {
        self.correction = known;
        for (number, (layer, changes)) in self.layers.iter_mut().zip(changes).enumerate() {
            layer.net = self.correction.net(number);
            layer.changes = changes;
            layer.squares.fill(0.0);
            for place in &mut layer.places {
                place.state = PlaceState::Free;
            }
        }
    }

    /// The correction learned so far.
    pub(crate) fn correction(&self) -> &Correction {
        &self.correction
    }

    /// Memory of a learner, including what a history of this many sequences stores for it.
    pub(crate) fn bytes(shape: HistoryShape, hidden: usize, sequences: usize) -> usize {
        let inputs = inputs(shape, hidden);
        let outputs = outputs(shape);
        let weights = RANK * inputs + (RANK + 1) * outputs;
        let place =
            size_of::<SampleSlot>() + size_of::<UpperHalf>() * (inputs + outputs) + shape.experts;
        let floats = weights + 2 * RANK + 1;
        let layer = size_of::<LearnerLayer>() + size_of::<f32>() * floats + PLACES * place;
        let work = weights + RANK + 1 + outputs + inputs + outputs;
        // The size of a learner includes that of its correction.
        Correction::bytes_for(shape, hidden, RANK, sequences) - size_of::<Correction>()
            + size_of::<Learner>()
            + shape.layers * layer
            + size_of::<f32>() * work
    }

    /// Counts a step of a layer whose state is known. True if the step should be a sample: see
    /// [`show`](Self::show).
    pub(crate) fn wants(&mut self, layer: usize) -> bool {
        let LearnerLayer { since, places, .. } = &mut self.layers[layer];
        *since = since.saturating_add(1);
        *since >= EVERY && places.iter().any(|place| place.state == PlaceState::Free)
    }

    /// Adds the last step of a sequence as a sample: the state that the router saw, the statistics
    /// of the experts, and the log-odds without a correction.
    pub(crate) fn show(
        &mut self,
        layer: usize,
        cursor: usize,
        state: &[f32],
        statistics: &[f32],
        odds: &[f32],
    ) {
        let LearnerLayer { since, places, .. } = &mut self.layers[layer];
        let free = places.iter_mut().find(|place| place.state == PlaceState::Free);
        let Some(place) = free else { return };
        *since = 0;
        place.state = PlaceState::Waiting(0);
        place.cursor = cursor;
        place.waited = 0;
        place.until.fill(u8::MAX);
        let statistics = statistics.iter().map(|x| SCALE * x);
        let all = normed(state).chain(statistics).chain(odds.iter().copied());
        for (half, x) in place.halves.iter_mut().zip(all) {
            *half = UpperHalf::of(x);
        }
    }

    /// Records the experts that a sequence uses in its next step.
    pub(crate) fn stepped(&mut self, layer: usize, cursor: usize, used: &[u32]) {
        for place in &mut self.layers[layer].places {
            let PlaceState::Waiting(steps) = place.state else { continue };
            place.waited += 1;
            if place.cursor == cursor {
                let steps = steps + 1;
                for &expert in used {
                    let until = &mut place.until[expert as usize];
                    *until = (*until).min(steps);
                }
                let is_last = usize::from(steps) == LAST;
                place.state = if is_last { PlaceState::Known } else { PlaceState::Waiting(steps) };
            } else if place.waited > PATIENCE {
                place.state = PlaceState::Free;
            }
        }
    }

    /// Learns from the samples of a layer with known next uses, once there is a batch of them.
    pub(crate) fn learn(&mut self, layer: usize) {
        let Learner { correction, layers, work, inputs, odds } = self;
        let number = layer;
        let layer = &mut layers[layer];
        let known = layer.places.iter().filter(|place| place.state == PlaceState::Known);
        if known.count() < BATCH {
            return;
        }
        work.clear();
        for place in &mut layer.places {
            if place.state != PlaceState::Known {
                continue;
            }
            let (x, z) = place.halves.split_at(inputs.len());
            for (to, x) in inputs.iter_mut().zip(x) {
                *to = x.get();
            }
            for (to, z) in odds.iter_mut().zip(z) {
                *to = z.get();
            }
            layer.net.learn(Sample { inputs, odds, until: &place.until }, work);
            place.state = PlaceState::Free;
        }
        layer.change(work);
        correction.set(number, &layer.net);
    }
}

impl LearnerLayer {
    /// Updates each row of weights against its gradients, scaled by their usual magnitude.
    fn change(&mut self, work: &NetGradients) {
        self.changes = (self.changes + 1.0).min(MOST_CHANGES);
        let rate = (RATE / (1.0 + self.changes / SLOWER).sqrt()).max(LEAST_RATE);
        for ((weights, gradients), square) in self.net.rows(work).zip(&mut self.squares) {
            let mean = gradients.iter().map(|x| x * x).sum::<f32>() / gradients.len() as f32;
            *square = if *square == 0.0 { mean } else { SQUARE * *square + (1.0 - SQUARE) * mean };
            let rate = rate / (square.sqrt() + 1e-8);
            for (weight, gradient) in weights.iter_mut().zip(gradients) {
                *weight = (*weight - rate * gradient).clamp(-LARGEST, LARGEST);
            }
        }
    }
}

fn inputs(shape: HistoryShape, hidden: usize) -> usize {
    hidden + STATISTICS * shape.experts
}

fn outputs(shape: HistoryShape) -> usize {
    HORIZONS * shape.experts
}

#[cfg(test)]
impl Learner {
    /// Memory of the learner, without the contents of its correction.
    pub(super) fn held_bytes(&self) -> usize {
        let floats = |all: &[f32]| size_of_val(all);
        let place = |place: &SampleSlot| {
            size_of::<SampleSlot>() + size_of_val(&*place.halves) + size_of_val(&*place.until)
        };
        let layer = |layer: &LearnerLayer| {
            let weights = floats(&layer.net.down) + floats(&layer.net.up) + floats(&layer.squares);
            size_of::<LearnerLayer>() + weights + layer.places.iter().map(place).sum::<usize>()
        };
        let layers = self.layers.iter().map(layer).sum::<usize>();
        let inputs = floats(&self.inputs) + floats(&self.odds);
        size_of::<Learner>() + layers + self.work.bytes() + inputs
    }
}
