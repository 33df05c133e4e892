//! Learned parameters of a draft: the weights of its features, and the corrections of routers.

use super::DraftShape;
use sws_cache::history::dot;

/// Lookahead: the number of layers that a state forecasts beyond its own.
pub const DEPTH: usize = 4;

/// Forecasts made for a layer per token: from the state entering it, from the states that the
/// routers 1 to [`DEPTH`] layers before it have seen, and from the token alone.
pub(super) const HEADS: usize = DEPTH + 2;
/// Index of the forecast from the token alone.
pub(super) const AHEAD: usize = DEPTH + 1;

/// Number of features of an expert: a constant, the margin of the router, and the log-odds of its
/// use given the history of its layer, the token, and the experts used in the layer run last.
pub(super) const FEATURES: usize = 5;
pub(super) const MARGIN: usize = 1;
pub(super) const HISTORY: usize = 2;
pub(super) const TOKEN: usize = 3;

/// Initial weights with routers: the margin counts for more than the other features, and less the
/// farther away its layer. Chosen, not measured; the first few hundred tokens correct them.
#[rustfmt::skip]
const WEIGHTS: [[f32; FEATURES]; HEADS] = [
    [-0.30, 4.00, 0.10, 0.20, 0.10],
    [-0.30, 3.00, 0.10, 0.20, 0.20],
    [-0.30, 2.00, 0.20, 0.20, 0.20],
    [-0.30, 2.00, 0.20, 0.20, 0.20],
    [-0.30, 2.00, 0.20, 0.20, 0.20],
    [ 0.00, 0.00, 0.40, 0.70, 0.00],
];

/// Fixed weights of forecasts without a router, close to the best ones on another model's routes.
#[rustfmt::skip]
const BLIND: [[f32; FEATURES]; HEADS] = [
    [0.10, 0.0, 0.30, 0.50, 0.60],
    [0.10, 0.0, 0.30, 0.50, 0.60],
    [0.10, 0.0, 0.30, 0.50, 0.60],
    [0.10, 0.0, 0.30, 0.50, 0.60],
    [0.10, 0.0, 0.30, 0.50, 0.60],
    [0.00, 0.0, 0.40, 0.70, 0.00],
];

/// Initial sum of squared gradients.
const SQUARES: f32 = 0.01;
/// Learning rate of weights: a step is the gradient times this, over the root of the sum of all
/// squared gradients.
const RATE: f32 = 0.1;
/// Learning rate of corrections: the share of the error that is removed if the same state recurs.
const CORRECTION_RATE: f32 = 0.02;

/// Learned parameters. The correction for a state has low rank: the state is projected to `rank`
/// numbers, once for all forecast layers, and each expert of these layers has weights for these
/// numbers. The projection also includes the experts chosen last, which are not part of the state
/// yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    pub(super) rank: usize,
    /// [layers, heads, features]
    pub(super) weights: Vec<f32>,
    /// Sums of squared gradients, shaped as `weights`.
    pub(super) squares: Vec<f32>,
    /// [layers, 2, rank, hidden]: for the state entering a layer, and for the one its router sees.
    pub(super) down: Vec<f32>,
    /// [layers, 2, experts, rank]: for the experts chosen last.
    pub(super) chosen: Vec<f32>,
    /// [layers, distances, experts, rank + 1]: the last is a constant.
    pub(super) up: Vec<f32>,
    /// [layers, distances]: true for forecasts that depend on the layer's router alone.
    pub(super) alone: Vec<bool>,
}

impl Learned {
    /// Initial parameters: weights that suit other models, and no correction of routers.
    pub fn new(shape: &DraftShape, rank: usize) -> Learned {
        let places = shape.layers.len();
        let weights = std::iter::repeat_n(WEIGHTS.as_flattened(), places).flatten().copied();
        Learned {
            rank,
            weights: weights.collect(),
            squares: vec![SQUARES; places * HEADS * FEATURES],
            down: vec![0.0; places * 2 * rank * shape.hidden],
            chosen: vec![0.0; places * 2 * shape.experts * rank],
            up: vec![0.0; places * (DEPTH + 1) * shape.experts * (rank + 1)],
            alone: vec![false; places * (DEPTH + 1)],
        }
    }

    /// Makes the forecast for the layer at `place`, from `distance` layers before it, depend on the
    /// layer's router alone. The order of experts is then the router's, and only the probabilities
    /// are learned.
    pub fn follow_router(&mut self, place: usize, distance: usize) {
        let head = (place * HEADS + distance) * FEATURES;
        self.weights[head..head + FEATURES].copy_from_slice(&WEIGHTS[distance]);
        self.squares[head..head + FEATURES].fill(SQUARES);
        self.alone[place * (DEPTH + 1) + distance] = true;
    }

    /// True if the forecast for the layer at `place`, from `distance` layers before it, depends on
    /// the layer's router alone.
    pub fn follows_router(&self, place: usize, distance: usize) -> bool {
        self.alone[place * (DEPTH + 1) + distance]
    }

    /// Sets the trained correction for the states of one layer: those entering it, or those its
    /// router sees if `attended`. `down` is [rank, hidden + experts]. Each target, one per forecast
    /// layer, is `up` [experts, rank + 1] and the weight of the router's margin. The other weights
    /// of these layers are set to 0, to be learned later.
    ///
    /// # Panics
    ///
    /// If a length does not match the shape.
    pub fn set_correction(
        &mut self,
        shape: &DraftShape,
        place: usize,
        attended: bool,
        down: &[f32],
        targets: &[(Vec<f32>, f32)],
    ) {
        let DraftShape { hidden, experts, .. } = *shape;
        let rank = self.rank;
        assert_eq!(down.len(), rank * (hidden + experts), "a projection of another shape");
        let which = place * 2 + usize::from(attended);
        for (r, row) in down.chunks_exact(hidden + experts).enumerate() {
            let (state, chosen) = row.split_at(hidden);
            self.down[(which * rank + r) * hidden..][..hidden].copy_from_slice(state);
            for (expert, &x) in chosen.iter().enumerate() {
                self.chosen[(which * experts + expert) * rank + r] = x;
            }
        }
        for (n, (up, margin)) in targets.iter().enumerate() {
            let distance = n + usize::from(attended);
            let range = self.up(shape, place + distance, distance);
            self.up[range].copy_from_slice(up);
            let at = ((place + distance) * HEADS + distance) * FEATURES;
            self.weights[at..at + FEATURES].fill(0.0);
            self.weights[at + MARGIN] = *margin;
        }
    }

    /// Bytes of memory for this shape and rank.
    pub(crate) fn bytes_for(shape: &DraftShape, rank: usize) -> usize {
        let DraftShape { hidden, experts, .. } = *shape;
        let down = 2 * rank * (hidden + experts);
        let up = (DEPTH + 1) * experts * (rank + 1);
        shape.layers.len() * (4 * (2 * HEADS * FEATURES + down + up) + DEPTH + 1)
    }

    pub(super) fn weights(&self, place: usize, head: usize, gate: bool) -> [f32; FEATURES] {
        let at = (place * HEADS + head) * FEATURES;
        let learned = self.weights[at..].first_chunk().copied();
        if gate || head == AHEAD { learned.unwrap_or_default() } else { BLIND[head] }
    }

    /// Projects the normed `state` and the experts `chosen` last to `u`, whose last element is 1.
    pub(super) fn project(
        &self,
        shape: &DraftShape,
        (place, attended): (usize, bool),
        state: &[f32],
        chosen: &[u32],
        u: &mut [f32],
    ) {
        let DraftShape { hidden, experts, .. } = *shape;
        let rank = self.rank;
        u[rank] = 1.0;
        if rank == 0 {
            return;
        }
        let which = place * 2 + usize::from(attended);
        let rows = self.down[which * rank * hidden..][..rank * hidden].chunks_exact(hidden);
        for (u, row) in u.iter_mut().zip(rows) {
            *u = dot(row, state);
        }
        let columns = &self.chosen[which * experts * rank..][..experts * rank];
        for column in chosen.iter().filter_map(|&e| columns.get(e as usize * rank..)) {
            for (u, x) in u[..rank].iter_mut().zip(column) {
                *u += x;
            }
        }
        // A state with NaN or infinity must not spoil the parameters learned from others.
        if !u.iter().all(|x| x.abs() < 1e15) {
            u[..rank].fill(0.0);
        }
    }

    fn up(&self, shape: &DraftShape, place: usize, distance: usize) -> std::ops::Range<usize> {
        let len = shape.experts * (self.rank + 1);
        let first = (place * (DEPTH + 1) + distance) * len;
        first..first + len
    }

    /// Writes the correction for each expert of a layer, seen from `distance` layers before it.
    pub(super) fn correct(
        &self,
        shape: &DraftShape,
        place: usize,
        distance: usize,
        u: &[f32],
        corrections: &mut [f32],
    ) {
        let rows = self.up[self.up(shape, place, distance)].chunks_exact(self.rank + 1);
        for (correction, row) in corrections.iter_mut().zip(rows) {
            *correction = dot(row, u);
        }
    }

    /// Updates the weights after one forecast with `features` [features, experts]. `errors`
    /// [experts] are the outcomes (0 or 1) less the forecast probabilities.
    pub(super) fn learn(&mut self, place: usize, head: usize, features: &[f32], errors: &[f32]) {
        let at = (place * HEADS + head) * FEATURES;
        let weights = self.weights[at..][..FEATURES].iter_mut();
        let squares = self.squares[at..][..FEATURES].iter_mut();
        for ((weight, square), feature) in
            weights.zip(squares).zip(features.chunks_exact(errors.len()))
        {
            let gradient = dot(feature, errors);
            *square += gradient * gradient;
            *weight += RATE * gradient / square.sqrt();
        }
    }

    /// Like [`learn`](Self::learn), for the correction.
    pub(super) fn learn_correction(
        &mut self,
        shape: &DraftShape,
        place: usize,
        distance: usize,
        u: &[f32],
        errors: &[f32],
    ) {
        let scale = CORRECTION_RATE / dot(u, u);
        let range = self.up(shape, place, distance);
        let rows = self.up[range].chunks_exact_mut(self.rank + 1);
        for (row, error) in rows.zip(errors) {
            let step = scale * error;
            for (x, u) in row.iter_mut().zip(u) {
                *x += step * u;
            }
        }
    }
}
