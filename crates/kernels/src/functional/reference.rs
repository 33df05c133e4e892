//! The scalar reference: every functional in the plainest form, as its definition reads.
//!
//! It shares with the other tiers only what is a definition itself, for one number at a time: the
//! elementary functions and [`Activation::at`].

use super::elementary::exp;
use super::gate::Activation;
use super::norm::NormWeight;
use super::{elementary, row};

/// Sums `terms` into lane = index mod 32 by `add`, then folds the lanes.
fn reduce<T>(terms: impl Iterator<Item = T>, add: impl Fn(f32, T) -> f32) -> f32 {
    let mut lanes = [0.0; 32];
    for (i, term) in terms.enumerate() {
        lanes[i % 32] = add(lanes[i % 32], term);
    }
    fold(lanes)
}

/// Lane i with i + 16, then + 8, + 4, + 2, + 1.
pub(super) fn fold(mut lanes: [f32; 32]) -> f32 {
    for width in [16, 8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    reduce(a.iter().zip(b), |acc, (a, b)| a.mul_add(*b, acc))
}

pub(super) fn rms_norm(x: &mut [f32], width: usize, weight: NormWeight, eps: f32) {
    for row in x.chunks_mut(width) {
        let scale = 1.0 / (dot(row, row) / width as f32 + eps).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            *x *= scale;
            match weight {
                NormWeight::Ones => {}
                NormWeight::Plain(w) => *x *= w[i],
                NormWeight::OnePlus(w) => *x *= 1.0 + w[i],
            }
        }
    }
}

pub(super) fn layer_norm(
    x: &mut [f32],
    width: usize,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) {
    for row in x.chunks_mut(width) {
        let mean = reduce(row.iter(), |acc, x| acc + x) / width as f32;
        let squares = reduce(row.iter(), |acc, x| (x - mean).mul_add(x - mean, acc)) / width as f32;
        let scale = 1.0 / (squares + eps).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            let unit = (*x - mean) * scale;
            *x = match bias {
                Some(bias) => unit.mul_add(weight[i], bias[i]),
                None => unit * weight[i],
            };
        }
    }
}

pub(super) fn softmax(x: &mut [f32], width: usize) {
    for row in x.chunks_mut(width) {
        let maximum = row.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
        for x in row.iter_mut() {
            *x = exp(*x - maximum);
        }
        let sum = reduce(row.iter(), |acc, x| acc + x);
        for x in row {
            *x /= sum;
        }
    }
}

pub(super) fn gate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = activation.at(*g, u);
    }
}

pub(super) fn gate_interleaved(activation: Activation, gate_up: &[f32], y: &mut [f32]) {
    for (i, y) in y.iter_mut().enumerate() {
        *y = activation.at(gate_up[2 * i], gate_up[2 * i + 1]);
    }
}

pub(super) fn axpy(scale: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = scale.mul_add(*x, *y);
    }
}

pub(super) fn add(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

pub(super) fn sigmoid(x: &mut [f32]) {
    for x in x {
        *x = elementary::sigmoid(*x);
    }
}

pub(super) fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = row::capped(*x, cap);
    }
}
