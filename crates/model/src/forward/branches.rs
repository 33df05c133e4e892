//! Inputs of a layer's branches, and addition of branches to the hidden state.

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::add;
use sws_kernels::functional::elementary::sigmoid;

use super::by_rows::by_rows;
use super::norms::{NormVectors, norm_rows, scale};
use super::{ForwardError, ForwardPass, kept, streams};
use crate::order::{Branch, Site};
use crate::role::Role;
use crate::source::{WeightSource, Weights};
use crate::spec::{LayerSpec, Norm, Residual};
use crate::state::ForwardState;

/// The least square of a state's share.
const LEAST: f32 = 1e-3;

/// The weights by which a branch is added to the hidden state.
#[derive(Clone, Copy)]
pub(super) struct BranchWeights<'w> {
    /// The norm of the branch.
    pub(super) norm: Option<(Norm, NormVectors<'w>)>,
    /// The gates of the shares of state and branch, and their divisor.
    pub(super) shares: Option<(&'w [f32], f32)>,
}

impl<'w> BranchWeights<'w> {
    /// The weights of a branch that is added as it is.
    pub(super) const NONE: BranchWeights<'static> = BranchWeights { norm: None, shares: None };

    /// The weights of the mixer or the feed-forward block of a layer.
    pub(super) fn of(weights: &'w dyn Weights, l: usize, layer: &LayerSpec, site: Site) -> Self {
        let piece = PieceId::new(l as u32, PieceKind::Norms);
        let Residual { after_mixer, after_ffn, shares, .. } = layer.residual;
        let (norm, roles) = match site {
            Site::Mixer => (after_mixer, [Role::MixerPostNorm, Role::MixerShares]),
            Site::Ffn => (after_ffn, [Role::FfnPostNorm, Role::FfnShares]),
        };
        let norm = norm.map(|by| (by, NormVectors::of(weights, piece, roles[0], by)));
        let shares = shares.map(|divisor| (weights.vector(piece, roles[1]), divisor));
        BranchWeights { norm, shares }
    }
}

/// Adds up shares of a state and a branch, which gates determine for each element.
fn add_shares(gates: &[f32], divisor: f32, branch: &[f32], state: &mut [f32]) {
    for ((state, branch), gate) in state.iter_mut().zip(branch).zip(gates) {
        let gate = gate / divisor;
        let share = sigmoid(gate);
        let kept = (sigmoid(-gate) * (1.0 + share)).max(LEAST).sqrt();
        *state = kept * *state + share * branch;
    }
}

impl ForwardPass {
    /// Adds a branch of a layer to the hidden state, after the norm if it has one.
    /// `own` has the weights of residual streams, if there are several.
    pub(super) fn add_branch(
        &self,
        (l, site): (usize, Site),
        weights: BranchWeights<'_>,
        (branch, own): (&mut [f32], &[f32]),
        hidden: &mut [f32],
    ) {
        let tier = self.tier;
        let width = self.spec.hidden;
        let layer = &self.spec.layers[l];
        let branch = &mut branch[..hidden.len() / self.spec.state_width() * width];
        if let Some((by, vectors)) = weights.norm {
            norm_rows(tier, by, branch, width, vectors);
        }
        scale(layer.residual.scale, branch);
        let branch = &*branch;
        if self.spec.streams.is_some() {
            return streams::write(tier, &self.spec, own, branch, hidden);
        }
        if self.spec.kept.is_some() {
            let of = Branch { spec: &self.spec, layer: l, site };
            return kept::write(tier, of, branch, hidden);
        }
        by_rows(hidden, width, |first, rows| {
            let branch = &branch[first * width..][..rows.len()];
            match weights.shares {
                None => add(tier, branch, rows),
                Some((gates, divisor)) => {
                    let rows = rows.chunks_exact_mut(width).zip(branch.chunks_exact(width));
                    for (row, branch) in rows {
                        add_shares(gates, divisor, branch, row);
                    }
                }
            }
        });
    }

    /// Writes the hidden state, normed with the weights of a role, to `work.x` and `work.input`.
    pub(super) fn norm_for(
        &self,
        l: usize,
        role: Role,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let norms = PieceId::new(l as u32, PieceKind::Norms);
        let ForwardState { work, hidden, .. } = state;
        source.infrastructure(l, &[PieceKind::Norms], &mut |weights| {
            let by = self.spec.layers[l].norm;
            let vectors = NormVectors::of(weights, norms, role, by);
            work.norm(self.tier, by, hidden, vectors);
            Ok(())
        })?;
        Ok(())
    }

    /// Norms the output of the shared expert.
    pub(super) fn norm_shared(
        &self,
        l: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let tier = self.tier;
        let width = self.spec.hidden;
        let by = self.spec.layers[l].norm;
        let norms = PieceId::new(l as u32, PieceKind::Norms);
        let shared = &mut state.work.experts.shared[..state.hidden.len()];
        source.infrastructure(l, &[PieceKind::Norms], &mut |weights| {
            let weight = weights.vector(norms, Role::SharedPostNorm);
            norm_rows(tier, by, shared, width, weight);
            Ok(())
        })?;
        Ok(())
    }
}
