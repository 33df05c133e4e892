//! Pools: several rows become one, by weights of their own for every element.

use super::elementary::exp;
use super::lanes::{LANES, Lanes, greater, padded};
use super::{reference, tiered};
use crate::Tier;
use crate::scalar::fma;

/// y = Σ e_i · x_i / Σ e_i for each element of the rows `x` [rows, width], with
/// e_i = exp(gate_i - the largest gate), in ascending order of rows, each product fused.
pub fn pool(tier: Tier, x: &[f32], gates: &[f32], y: &mut [f32]) {
    assert!(
        !y.is_empty() && !x.is_empty() && x.len().is_multiple_of(y.len()) && x.len() == gates.len(),
        "pool: shapes"
    );
    pool_tiered(tier, x, gates, y);
}

tiered! {
    pool_tiered(x: &[f32], gates: &[f32], y: &mut [f32])
    lanes: pool_lanes, reference: reference::pool
}

#[inline(always)]
fn pool_lanes(x: &[f32], gates: &[f32], y: &mut [f32]) {
    let width = y.len();
    for (block, y) in y.chunks_mut(LANES).enumerate() {
        let at = (block * LANES, y.len());
        let mut largest = [f32::NEG_INFINITY; LANES];
        for gates in gates.chunks_exact(width) {
            let gates = part(gates, at);
            for lane in 0..LANES {
                largest[lane] = greater(gates[lane], largest[lane]);
            }
        }
        let mut total = [0.0; LANES];
        let mut mixed = [0.0; LANES];
        for (x, gates) in x.chunks_exact(width).zip(gates.chunks_exact(width)) {
            let x = part(x, at);
            let gates = part(gates, at);
            for lane in 0..LANES {
                let weight = exp(gates[lane] - largest[lane]);
                total[lane] += weight;
                mixed[lane] = fma(weight, x[lane], mixed[lane]);
            }
        }
        for lane in 0..LANES {
            mixed[lane] /= total[lane];
        }
        y.copy_from_slice(&mixed[..y.len()]);
    }
}

#[inline(always)]
fn part(x: &[f32], (first, len): (usize, usize)) -> Lanes {
    padded(&x[first..first + len], 0.0)
}
