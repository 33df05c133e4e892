//! Inputs of a layer's branches, and addition of branches to the hidden state.

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::add;

use super::by_rows::by_rows;
use super::norms::{NormVectors, norm, scale};
use super::{ForwardError, ForwardPass, kept, streams};
use crate::order::{Branch, Site};
use crate::role::Role;
use crate::source::WeightSource;
use crate::state::ForwardState;

impl ForwardPass {
    /// Adds a branch of a layer to the hidden state, after a norm with these weights if it has one.
    /// `own` has the weights of residual streams, if there are several.
    pub(super) fn add_branch(
        &self,
        (l, site): (usize, Site),
        post_norm: Option<&[f32]>,
        (branch, own): (&mut [f32], &[f32]),
        hidden: &mut [f32],
    ) {
        let tier = self.tier;
        let width = self.spec.hidden;
        let layer = &self.spec.layers[l];
        let branch = &mut branch[..hidden.len() / self.spec.state_width() * width];
        if let Some(weight) = post_norm {
            by_rows(branch, width, |_, rows| norm(tier, layer.norm, rows, width, weight));
        }
        scale(layer.residual.scale, branch);
        let branch = &*branch;
        if self.spec.streams.is_some() {
            return streams::write(tier, &self.spec, own, branch, hidden);
        }
        if self.spec.kept_every.is_some() {
            let of = Branch { spec: &self.spec, layer: l, site };
            return kept::write(tier, of, branch, hidden);
        }
        by_rows(hidden, width, |first, rows| {
            add(tier, &branch[first * width..][..rows.len()], rows);
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
            by_rows(shared, width, |_, rows| norm(tier, by, rows, width, weight));
            Ok(())
        })?;
        Ok(())
    }
}
