//! Residual states: the mix of a state and of earlier ones that a branch reads.

use super::lanes::{LANES, dot, padded, tree};
use super::reference::softmax_ascending;
use super::shapes::StateWeights;
use super::streams::mixed;
use super::{reference, tiered};
use crate::Tier;
use crate::scalar::fma;

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
            acc[lane] = fma(x[lane] * factor * norm[lane], row[lane], acc[lane]);
        }
    }
    tree(acc)
}
