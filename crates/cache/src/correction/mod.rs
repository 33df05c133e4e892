//! Corrections of a history's forecasts, learned for one model.
//!
//! The weights of a [`History`](crate::history::History) are the same for all models. A
//! [`Correction`] adds what one model shows: to the log-odds of each expert's use within 1, 4, 16 and
//! 64 steps it adds a linear function of low rank. Its inputs are the statistics of all experts of the
//! layer and, if the correction looks at states, the one that the layer's router saw. It forecasts spans of
//! time, not the next step alone: what stays in a cache depends on all of them.
//!
//! Where it looks at states and none is known, it changes nothing.
//!
//! It is [fitted](crate::fit::Fit) to recordings, or learned as the model runs ([`Corrections::Learned`]).

mod file;
pub(crate) mod net;
mod online;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::math::dot;
use crate::shape::{HORIZONS, HistoryShape, STATISTICS};

use net::{CorrectionNet, SCALE};
pub(crate) use online::Learner;

/// The highest rank.
pub const MAX_RANK: usize = 256;

/// Magnitude from which a projected state counts as garbage.
const GARBAGE: f32 = 1e15;

/// A correction of the forecasts for the experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    shape: HistoryShape,
    /// Elements of a router's hidden state; 0 if the correction uses expert usage alone.
    hidden: usize,
    rank: usize,
    /// [layers, rank, hidden]: projects a state of unit mean square. These and the next are most of a
    /// correction, and in bf16 half as long to read.
    states: Vec<UpperHalf>,
    /// [layers, rank, statistics · experts]: projects the statistics of the history.
    statistics: Vec<UpperHalf>,
    /// [layers, rank + 1, horizons · experts]: what each projected number adds; the last is a constant.
    up: Vec<f32>,
}

/// The upper half of an f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UpperHalf(u16);

/// The corrections of a policy's forecasts.
#[derive(Clone, Debug, Default)]
pub enum Corrections {
    /// No corrections.
    #[default]
    None,
    /// A correction that was fitted to recordings.
    Fitted(Arc<Correction>),
    /// A correction that is learned as the model runs.
    Learned {
        /// Elements of a router's hidden state; 0 to learn from expert usage alone.
        hidden: usize,
    },
}

impl Corrections {
    fn hidden(&self) -> usize {
        match self {
            Corrections::None => 0,
            Corrections::Fitted(correction) => correction.hidden,
            &Corrections::Learned { hidden } => hidden,
        }
    }

    /// Memory that corrections add to a history of this many sequences.
    pub(crate) fn bytes(&self, shape: HistoryShape, sequences: usize) -> usize {
        let own = match self {
            Corrections::None => return 0,
            Corrections::Fitted(correction) => correction.bytes(sequences),
            &Corrections::Learned { hidden } => Learner::bytes(shape, hidden, sequences),
        };
        // A history keeps chances with the correction beside those without, and the states of a
        // pass.
        let chances = (shape.layers + 1) * HORIZONS * shape.experts;
        own + size_of::<f32>() * (chances + sequences.max(1) * self.hidden())
    }
}

impl Correction {
    /// A correction that changes nothing.
    pub fn new(shape: HistoryShape, hidden: usize, rank: usize) -> Correction {
        let HistoryShape { layers, experts, .. } = shape;
        Correction {
            shape,
            hidden,
            rank,
            states: vec![UpperHalf::default(); layers * rank * hidden],
            statistics: vec![UpperHalf::default(); layers * rank * STATISTICS * experts],
            up: vec![0.0; layers * (rank + 1) * HORIZONS * experts],
        }
    }

    /// The number of layers and experts that the correction is for.
    pub fn shape(&self) -> HistoryShape {
        self.shape
    }

    /// Elements of the hidden states that the correction uses; 0 if it uses none.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Memory of a correction, including what a history of this many sequences stores for it.
    fn bytes(&self, sequences: usize) -> usize {
        Correction::bytes_for(self.shape, self.hidden, self.rank, sequences)
    }

    fn bytes_for(shape: HistoryShape, hidden: usize, rank: usize, sequences: usize) -> usize {
        let HistoryShape { layers, experts, .. } = shape;
        let halves = layers * rank * (hidden + STATISTICS * experts);
        let up = layers * (rank + 1) * HORIZONS * experts;
        let floats = up + layers * sequences.max(1) * rank + 2 * rank;
        size_of::<Correction>() + size_of::<UpperHalf>() * halves + size_of::<f32>() * floats
    }

    /// Writes the projection of the hidden state that the router of a layer sees. It is empty if
    /// the correction uses no states, or if this state contains garbage.
    pub(crate) fn project(&self, layer: usize, state: &[f32], projected: &mut Vec<f32>) {
        projected.clear();
        if self.hidden == 0 || state.len() != self.hidden || layer >= self.shape.layers {
            return;
        }
        let scale = unit_scale(state);
        let len = self.rank * self.hidden;
        let rows = self.states[layer * len..][..len].chunks_exact(self.hidden);
        projected.extend(rows.map(|row| scale * halves_dot(row, state)));
        if !projected.iter().all(|x| x.abs() < GARBAGE) {
            projected.clear();
        }
    }

    /// The weights of a layer, in the form in which they are learned.
    fn net(&self, layer: usize) -> CorrectionNet {
        let hidden = self.hidden;
        let statistics = STATISTICS * self.shape.experts;
        let mut down = Vec::with_capacity(self.rank * (hidden + statistics));
        for row in layer * self.rank..(layer + 1) * self.rank {
            down.extend(self.states[row * hidden..][..hidden].iter().map(|x| x.get()));
            let scaled = &self.statistics[row * statistics..][..statistics];
            down.extend(scaled.iter().map(|x| x.get() / SCALE));
        }
        let len = (self.rank + 1) * HORIZONS * self.shape.experts;
        CorrectionNet { rank: self.rank, down, up: self.up[layer * len..][..len].to_vec() }
    }

    /// Sets the weights of a layer.
    pub(crate) fn set(&mut self, layer: usize, net: &CorrectionNet) {
        let hidden = self.hidden;
        let statistics = STATISTICS * self.shape.experts;
        for (r, row) in net.down.chunks_exact((hidden + statistics).max(1)).enumerate() {
            let (states, scaled) = row.split_at(hidden);
            let at = layer * self.rank + r;
            let to = &mut self.states[at * hidden..][..hidden];
            for (to, &x) in to.iter_mut().zip(states) {
                *to = UpperHalf::of(x);
            }
            let to = &mut self.statistics[at * statistics..][..statistics];
            for (to, x) in to.iter_mut().zip(scaled) {
                *to = UpperHalf::of(SCALE * x);
            }
        }
        self.up[layer * net.up.len()..][..net.up.len()].copy_from_slice(&net.up);
    }

    /// Corrects the log-odds of use of a layer's experts [horizons, experts], given their statistics
    /// [statistics, experts] and the projected state of the last step, if it is known.
    pub(crate) fn apply(
        &self,
        layer: usize,
        statistics: &[f32],
        seen: &[f32],
        projected: &mut Vec<f32>,
        odds: &mut [f32],
    ) {
        if self.hidden > 0 && seen.len() != self.rank {
            return;
        }
        let len = statistics.len();
        let rows = self.statistics[layer * self.rank * len..].chunks_exact(len);
        projected.clear();
        projected.extend(rows.take(self.rank).map(|row| halves_dot(row, statistics)));
        for (all, state) in projected.iter_mut().zip(seen) {
            *all += state;
        }
        let len = odds.len();
        let rows = self.up[layer * (self.rank + 1) * len..].chunks_exact(len);
        for (row, x) in rows.zip(projected.iter().chain([&1.0])) {
            for (odds, up) in odds.iter_mut().zip(row) {
                *odds += x * up;
            }
        }
    }
}

/// Factor that gives a state a mean square of 1.
fn unit_scale(state: &[f32]) -> f32 {
    let mean = dot(state, state) / state.len() as f32;
    1.0 / (mean + 1e-6).sqrt()
}

impl UpperHalf {
    /// Rounds to the nearest bf16, ties to even.
    fn of(x: f32) -> UpperHalf {
        let bits = x.to_bits();
        UpperHalf((bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }

    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// Like [`dot`], with bf16 and f32 numbers.
fn halves_dot(a: &[UpperHalf], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let a = a.as_chunks::<16>();
    let b = b.as_chunks::<16>();
    for (a, b) in a.0.iter().zip(b.0) {
        for i in 0..16 {
            sums[i] += a[i].get() * b[i];
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(a, b)| a.get() * b).sum();
    sums.iter().sum::<f32>() + rest
}
