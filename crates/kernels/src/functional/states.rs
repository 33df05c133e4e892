//! Residual states: the mix of a state and of earlier ones that a branch reads.

use super::elementary::exp;
use super::lanes::{LANES, dot, padded, tree};
use super::streams::mixed;
use super::{reference, tiered};
use crate::Tier;

/// The vectors by which states are weighed, each as long as a state.
#[derive(Clone, Copy, Debug)]
pub struct StateWeights<'a> {
    /// Factors of a normed state.
    pub norm: &'a [f32],
    /// Multiplied with the result, to the logit of the state.
    pub row: &'a [f32],
    /// Added to the mean of squares.
    pub eps: f32,
}

/// The largest number of states.
pub const MAX_STATES: usize = 64;

/// y = Σ p_i · x_i for one token, whose states `x` are [count, width], where p is the softmax of
///
/// (x_i / √(mean(x_i²) + eps) · norm) · row
///
/// The product is the canonical dot; all other sums go over states in ascending order.
pub fn mix_states(tier: Tier, weights: StateWeights, x: &[f32], y: &mut [f32]) {
    assert!(
        !y.is_empty()
            && x.len().is_multiple_of(y.len())
            && (1..=MAX_STATES).contains(&(x.len() / y.len()))
            && [weights.norm, weights.row].iter().all(|vector| vector.len() == y.len()),
        "mix_states: shapes"
    );
    mix_states_tiered(tier, weights, x, y);
}

tiered! {
    mix_states_tiered(weights: StateWeights, x: &[f32], y: &mut [f32])
    lanes: mix_states_lanes, reference: reference::mix_states
}

#[inline(always)]
fn mix_states_lanes(weights: StateWeights, x: &[f32], y: &mut [f32]) {
    let mut shares = [0.0; MAX_STATES];
    let shares = &mut shares[..x.len() / y.len()];
    for (share, x) in shares.iter_mut().zip(x.chunks_exact(y.len())) {
        *share = logit(weights, x);
    }
    softmax_ascending(shares);
    mixed(shares, x, y);
}

/// Σ ((x · factor) · norm) · row.
#[inline(always)]
fn logit(StateWeights { norm, row, eps }: StateWeights, x: &[f32]) -> f32 {
    let factor = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    let mut acc = [0.0; LANES];
    let blocks = x.chunks(LANES).zip(norm.chunks(LANES)).zip(row.chunks(LANES));
    for ((x, norm), row) in blocks {
        // 0 · -0 leaves every accumulator unchanged.
        let x = padded(x, 0.0);
        let norm = padded(norm, 0.0);
        let row = padded(row, -0.0);
        for lane in 0..LANES {
            acc[lane] = (x[lane] * factor * norm[lane]).mul_add(row[lane], acc[lane]);
        }
    }
    tree(acc)
}

/// The softmax of a few numbers: in the plainest form, which is also the reference.
#[inline(always)]
pub(super) fn softmax_ascending(x: &mut [f32]) {
    let mut largest = f32::NEG_INFINITY;
    for &x in &*x {
        largest = if x > largest { x } else { largest };
    }
    let mut sum = 0.0;
    for x in &mut *x {
        *x = exp(*x - largest);
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}
