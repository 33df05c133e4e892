//! Corrections of a history's forecasts, learned for one model.
//!
//! The weights of a [`History`](crate::history::History) are the same for all models. A
//! [`Correction`] adds what one model shows: to the log-odds of each expert's use within 1, 4, 16 and
//! 64 steps it adds a linear function of low rank. Its inputs are the statistics of all experts of the
//! layer and, if the correction was fitted with them, the state that the layer's router
//! saw. It forecasts spans of time, not the next step alone: what stays in a cache depends on all of
//! them.
//!
//! A correction without a state to look at makes no difference.

mod file;
mod fit;
#[cfg(test)]
mod tests;

use crate::history::math::dot;
use crate::history::{HORIZONS, STATISTICS, Shape};

pub use fit::{Fit, Fitted, ReadState, Recorded};

/// The highest rank.
pub const MAX_RANK: usize = 256;

/// Magnitude from which on a projected state is taken for garbage.
const GARBAGE: f32 = 1e15;

/// A correction of the forecasts for the experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    shape: Shape,
    /// Elements of a router's state; 0 if it looks at the use of experts alone.
    hidden: usize,
    rank: usize,
    /// [layers, rank, hidden]: projects a state of unit mean square. These and the next are most of a
    /// correction, and in bf16 half as long to read.
    states: Vec<Bf16>,
    /// [layers, rank, statistics · experts]: projects the statistics of the history.
    statistics: Vec<Bf16>,
    /// [layers, rank + 1, horizons · experts]: what each projected number adds; the last is a constant.
    up: Vec<f32>,
}

/// The upper half of an f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bf16(u16);

impl Correction {
    /// A correction that changes nothing.
    pub fn new(shape: Shape, hidden: usize, rank: usize) -> Correction {
        let Shape { layers, experts, .. } = shape;
        Correction {
            shape,
            hidden,
            rank,
            states: vec![Bf16::default(); layers * rank * hidden],
            statistics: vec![Bf16::default(); layers * rank * STATISTICS * experts],
            up: vec![0.0; layers * (rank + 1) * HORIZONS * experts],
        }
    }

    /// The numbers of layers and experts it is for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Elements of the states it looks at; 0 if it looks at none.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Its rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Memory of a correction, and of what a history of so many sequences keeps for it.
    pub fn bytes(&self, sequences: usize) -> usize {
        let halves = self.states.len() + self.statistics.len();
        let seen = self.shape.layers * sequences.max(1) * self.rank;
        let floats = self.up.len() + seen + 2 * self.rank;
        size_of::<Correction>() + size_of::<Bf16>() * halves + size_of::<f32>() * floats
    }

    /// Writes the projection of the state that the router of a layer sees. It is empty if there is
    /// none: the correction looks at no states, or this one is not of numbers.
    pub fn project(&self, layer: usize, state: &[f32], projected: &mut Vec<f32>) {
        projected.clear();
        if self.hidden == 0 || state.len() != self.hidden || layer >= self.shape.layers {
            return;
        }
        let mean = dot(state, state) / self.hidden as f32;
        let scale = 1.0 / (mean + 1e-6).sqrt();
        let len = self.rank * self.hidden;
        let rows = self.states[layer * len..][..len].chunks_exact(self.hidden);
        projected.extend(rows.map(|row| scale * halves_dot(row, state)));
        if !projected.iter().all(|x| x.abs() < GARBAGE) {
            projected.clear();
        }
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
        projected.iter_mut().zip(seen).for_each(|(all, state)| *all += state);
        let len = odds.len();
        let rows = self.up[layer * (self.rank + 1) * len..].chunks_exact(len);
        for (row, x) in rows.zip(projected.iter().chain([&1.0])) {
            odds.iter_mut().zip(row).for_each(|(odds, up)| *odds += x * up);
        }
    }
}

impl Bf16 {
    /// The nearest one, of two the even one.
    fn of(x: f32) -> Bf16 {
        let bits = x.to_bits();
        Bf16((bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }

    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// As [`dot`], of two kinds of numbers.
fn halves_dot(a: &[Bf16], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a, b) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.0.iter().zip(b.0) {
        for i in 0..16 {
            sums[i] += a[i].get() * b[i];
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(a, b)| a.get() * b).sum();
    sums.iter().sum::<f32>() + rest
}
