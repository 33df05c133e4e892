//! Per-layer inputs, which tokens add to each layer besides their embedding. They are computed
//! before the first layer, and added at the end of each layer.

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::gate;

use super::branches::BranchWeights;
use super::by_rows::by_rows;
use super::linear::{Product, multiply};
use super::norms::{NormVectors, norm_rows, scale};
use super::rows::look_up;
use super::{ForwardError, ForwardPass};
use crate::order::Site;
use crate::role::Role;
use crate::source::WeightSource;
use crate::spec::LayerInputs;
use crate::state::ForwardState;
use crate::workspace::{MlpWork, Workspace, grown};

impl ForwardPass {
    /// Computes the inputs of all layers from the tokens of the batch and their embeddings, which
    /// are the hidden state at this point.
    pub(super) fn layer_inputs(
        &self,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let Some(spec) = self.spec.layer_inputs else { return Ok(()) };
        let tier = self.tier;
        let width = self.spec.inputs_width();
        let by = self.spec.layers[0].norm;
        let piece = PieceId::new(0, PieceKind::LayerInput);
        let norms = PieceId::new(0, PieceKind::Norms);
        let ForwardState { work, hidden, sequences, pass, .. } = state;
        let Workspace { input, inputs, scratch, .. } = work;
        input.pack(tier, hidden, pass.len(), self.spec.hidden);
        inputs.len = pass.len() * width;
        let y = grown(&mut inputs.numbers, inputs.len);
        source.infrastructure(0, &[PieceKind::LayerInput, PieceKind::Norms], &mut |weights| {
            let product = Product::new(piece, Role::LayerInputs, input, &mut *y, width);
            multiply(tier, weights, &mut [Some(product)], scratch)?;
            scale(spec.product_scale, y);
            let weight = weights.vector(norms, Role::LayerInputsNorm);
            norm_rows(tier, by, y, spec.width, weight);
            Ok(())
        })?;
        look_up((&self.spec, 0), (pass, sequences), source, &mut |place, row| {
            for (y, x) in y[place * width..][..width].iter_mut().zip(row) {
                *y = (*y + x * spec.row_scale) * spec.scale;
            }
        })?;
        Ok(())
    }

    /// Adds the input of a layer to the hidden state, through its matrices.
    pub(super) fn add_input(
        &self,
        l: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let Some(LayerInputs { width, activation, .. }) = self.spec.layer_inputs else {
            return Ok(());
        };
        let tier = self.tier;
        let hidden_width = self.spec.hidden;
        let all = self.spec.inputs_width();
        let id = |kind| PieceId::new(l as u32, kind);
        let piece = id(PieceKind::LayerInput);
        let norms = id(PieceKind::Norms);
        let ForwardState { work, hidden, pass, .. } = state;
        let tokens = pass.len();
        let Workspace { input, inputs, branch, mlp, streams, scratch, .. } = work;
        let MlpWork { gate: gates, up: own, packed, .. } = mlp;
        input.pack(tier, hidden, tokens, hidden_width);
        let gates = grown(gates, tokens * width);
        let own = grown(own, tokens * width);
        let rows = inputs.numbers[..inputs.len].chunks_exact(all);
        for (own, row) in own.chunks_exact_mut(width).zip(rows) {
            own.copy_from_slice(&row[l * width..][..width]);
        }
        if packed.is_empty() {
            packed.push(Default::default());
        }
        source.infrastructure(l, &[PieceKind::LayerInput, PieceKind::Norms], &mut |weights| {
            let product = Product::new(piece, Role::LayerInputGate, input, &mut *gates, width);
            multiply(tier, weights, &mut [Some(product)], scratch)?;
            by_rows(gates, width, |first, rows| {
                gate(tier, activation, rows, &own[first * width..][..rows.len()]);
            });
            packed[0].pack(tier, gates, tokens, width);
            let y = grown(branch, tokens * hidden_width);
            let product =
                Product::new(piece, Role::LayerInputUp, &packed[0], &mut *y, hidden_width);
            multiply(tier, weights, &mut [Some(product)], scratch)?;
            let by = self.spec.layers[l].norm;
            let norm = (by, NormVectors::of(weights, norms, Role::LayerInputNorm, by));
            let own = BranchWeights { norm: Some(norm), ..BranchWeights::NONE };
            self.add_branch((l, Site::Ffn), own, (branch, &streams.weights), hidden);
            Ok(())
        })?;
        Ok(())
    }
}
