//! Measurements of the computation of stand-ins, from which their error can be bounded.

use sws_format::PieceId;
use sws_kernels::functional::elementary::silu;

use crate::source::{Contribution, Weights};

/// The minimum of silu is above the negative of this.
const SILU_LEAST: f64 = 0.2785;

/// The contributions of a batch of experts that have to be judged. They are measured in two steps,
/// because the products of gates and ups overwrite the gates.
#[derive(Default)]
pub(super) struct Judging {
    /// One entry per expert and token, with the index of its row in the batch.
    contributions: Vec<(usize, PieceId, Contribution)>,
}

impl Judging {
    /// Adds a row of the batch before its activation. Gates and ups are each given with a stride.
    /// `contribution` has the measurements that do not depend on weights.
    pub(super) fn add(
        &mut self,
        row: usize,
        expert: PieceId,
        mut contribution: Contribution,
        [gates, ups]: [(&[f32], usize); 2],
    ) {
        let largest = each(gates).fold(0.0, f32::max);
        contribution.gate = f64::from(silu(largest)).max(SILU_LEAST);
        contribution.up = each(ups).map(|u| f64::from(u.abs())).fold(0.0, f64::max);
        self.contributions.push((row, expert, contribution));
    }

    /// Judges each contribution; `hidden` holds the activated gates times ups. Calls `refused` with
    /// every expert that has a rejected contribution.
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

/// Numbers at a fixed stride.
fn each((x, step): (&[f32], usize)) -> impl Iterator<Item = f32> {
    x.iter().copied().step_by(step)
}

/// ‖row‖; NaN if an element is NaN.
pub(super) fn norm(row: &[f32]) -> f64 {
    row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}
