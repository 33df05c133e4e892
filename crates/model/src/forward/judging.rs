//! What stand-ins of experts have computed, as far as it says how far off they may be.

use sws_kernels::functional::elementary::silu;
use sws_store::PieceId;

use crate::source::{Contribution, Weights};

/// The least that silu gives is above the negative of this.
const SILU_LEAST: f64 = 0.2785;

/// The contributions of a batch of experts that have to be judged: measured in two steps, as the gates
/// are overwritten by the products of which they are a factor.
#[derive(Default)]
pub(super) struct Judging {
    /// Of one expert and token each, with the place of its row in the batch.
    contributions: Vec<(usize, PieceId, Contribution)>,
}

impl Judging {
    /// Adds what a row of the batch has before it is activated; `contribution` knows what does not
    /// depend on weights.
    pub(super) fn add(
        &mut self,
        row: usize,
        expert: PieceId,
        mut contribution: Contribution,
        gates: &[f32],
        ups: &[f32],
    ) {
        let largest = gates.iter().copied().fold(0.0, f32::max);
        contribution.gate = f64::from(silu(largest)).max(SILU_LEAST);
        contribution.up = ups.iter().map(|u| f64::from(u.abs())).fold(0.0, f64::max);
        self.contributions.push((row, expert, contribution));
    }

    /// Asks about each; `hidden` is what became of the gates. Calls `refused` with every expert of which
    /// a contribution may not count.
    pub(super) fn ask(
        self,
        weights: &mut dyn Weights,
        hidden: &[f32],
        width: usize,
        mut refused: impl FnMut(PieceId),
    ) {
        for (row, expert, mut contribution) in self.contributions {
            contribution.hidden = norm(&hidden[row * width..][..width]);
            if !weights.judge(expert, &contribution) {
                refused(expert);
            }
        }
    }
}

/// ‖row‖; NaN if a number is.
pub(super) fn norm(row: &[f32]) -> f64 {
    row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}
