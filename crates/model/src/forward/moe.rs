//! The feed-forward block of a layer: one MLP, or experts.

use std::ops::Range;

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::{add, axpy, sigmoid};
use sws_kernels::{PackedInput, Tier};

use super::by_rows::by_rows;
use super::experts::{CpuExecutor, ROWS_TOGETHER, TOGETHER};
use super::linear::{Product, multiply};
use super::mlp::{MlpBlock, gated_mlp, weighed_mlp};
use super::norms::{NormVectors, norm_rows, scale, scale_row};
use super::router;
use super::strips::strips;
use super::{ForwardError, ForwardPass};
use crate::executor::{ExpertBatch, ExpertExecutor, place_of};
use crate::role::Role;
use crate::source::{Routed, SourceError, WeightSource, Weights};
use crate::spec::{LatentNorm, MlpSpec, MoeSpec, SharedSpec};
use crate::state::ForwardState;
use crate::workspace::{ExpertWork, Workspace, grown};

impl ForwardPass {
    /// Computes the MLP of a dense layer, into `work.branch`.
    pub(super) fn dense(
        &self,
        l: usize,
        spec: MlpSpec,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let tier = self.tier;
        let hidden = self.spec.hidden;
        let piece = PieceId::new(l as u32, PieceKind::Mlp);
        let scaled = self.spec.layers[l].residual.scaled_mlp;
        let tokens = state.pass.len();
        let Workspace { x, input, branch, mlp, scratch, .. } = &mut state.work;
        let y = grown(branch, tokens * hidden);
        for rows in strips(tokens, self.strip) {
            source.infrastructure(l, &[PieceKind::Mlp], &mut |weights| {
                let y = &mut y[rows.start * hidden..rows.end * hidden];
                pack_strip(tier, (x, hidden), rows.clone(), tokens, input);
                gated_mlp(MlpBlock { tier, piece, spec }, weights, input, mlp, y, scratch)?;
                if scaled {
                    scale(weights.vector(piece, Role::MlpScale)[0], y);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Selects the experts of a layer, into `work.routed`.
    pub(super) fn route(&self, spec: &MoeSpec, state: &mut ForwardState) {
        let Workspace { router, routed, experts, .. } = &mut state.work;
        let logits = &mut router.scores[..state.pass.len() * spec.scored()];
        router::select(self.tier, spec, logits, &router.ranks, routed);
        if spec.shared_scored > 0 {
            router::weigh_shared(spec, logits, experts.factor, routed);
        }
        group(routed, experts);
    }

    /// Computes the shared expert of a layer, into `work.experts.shared`.
    pub(super) fn shared_expert(
        &self,
        l: usize,
        shared: SharedSpec,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let tier = self.tier;
        let hidden = self.spec.hidden;
        let weighed = self.spec.layers[l].moe().is_some_and(|moe| moe.shared_scored > 0);
        let Workspace { x, input, mlp, experts, routed, scratch, .. } = &mut state.work;
        let tokens = state.pass.len();
        let parts = routed.shared.len() / tokens;
        let kind = shared.piece();
        let piece = PieceId::new(l as u32, kind);
        let y = grown(&mut experts.shared, tokens * hidden);
        let gates = grown(&mut experts.shared_gate, tokens);
        for rows in strips(tokens, self.strip) {
            source.infrastructure(l, &[kind], &mut |weights| {
                let block = MlpBlock { tier, piece, spec: shared.mlp };
                let y = &mut y[rows.start * hidden..rows.end * hidden];
                let factors = &routed.shared[rows.start * parts..rows.end * parts];
                pack_strip(tier, (x, hidden), rows.clone(), tokens, input);
                match weighed {
                    false => gated_mlp(block, weights, input, mlp, y, scratch)?,
                    true => weighed_mlp(block, factors, weights, input, mlp, y, scratch)?,
                }
                if shared.gated {
                    let gates = &mut gates[rows.clone()];
                    let product = Product::new(piece, Role::SharedGate, input, &mut *gates, 1);
                    multiply(tier, weights, &mut [Some(product)], scratch)?;
                    sigmoid(tier, gates);
                    by_rows(y, hidden, |first, rows| {
                        for (row, gate) in rows.chunks_exact_mut(hidden).zip(&gates[first..]) {
                            scale_row(*gate, row);
                        }
                    });
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Computes the projection of the normed state that a layer's experts read.
    pub(super) fn project(
        &self,
        l: usize,
        latent: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let Workspace { x, input, experts, scratch, .. } = &mut state.work;
        let tier = self.tier;
        let tokens = state.pass.len();
        let hidden = self.spec.hidden;
        let id = PieceId::new(l as u32, PieceKind::SharedExpert);
        let input_norm = self.spec.layers[l].moe().and_then(|moe| moe.latent_input);
        experts.latent_width = latent;
        let y = grown(&mut experts.latent, tokens * latent);
        for rows in strips(tokens, self.strip) {
            source.infrastructure(l, &[PieceKind::SharedExpert], &mut |weights| {
                let y = &mut y[rows.start * latent..rows.end * latent];
                pack_strip(tier, (x, hidden), rows.clone(), tokens, input);
                let down = Product::new(id, Role::ExpertsDown, input, &mut *y, latent);
                multiply(tier, weights, &mut [Some(down)], scratch)?;
                if let Some(by) = input_norm {
                    let vectors = NormVectors::of(weights, id, Role::LatentInputNorm, by);
                    norm_rows(tier, by, y, latent, vectors);
                }
                Ok(())
            })?;
        }
        if tokens <= self.strip {
            experts.packed.pack(tier, y, tokens, latent);
        }
        Ok(())
    }

    /// Computes the chosen experts of a layer and adds the output of the shared one, into
    /// `work.branch`.
    pub(super) fn moe(
        &self,
        l: usize,
        spec: MoeSpec,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        if spec.weighted_inputs {
            self.weigh_inputs(&mut state.work, state.pass.len());
        }
        self.dispatch(l, &spec, state, source)?;
        match spec.latent {
            None => self.sum_outputs(state),
            Some(_) => self.sum_latents(l, &spec, state, source)?,
        }
        self.add_identities(&mut state.work, state.pass.len());
        if spec.added_later {
            let Workspace { branch, experts, .. } = &mut state.work;
            let y = &mut branch[..state.pass.len() * self.spec.hidden];
            grown(&mut experts.later, y.len()).copy_from_slice(y);
            y.fill(0.0);
        }
        if self.spec.layers[l].residual.split {
            self.norm_experts(l, state, source)?;
        }
        if let Some(shared) = spec.shared {
            self.add_shared(shared, &mut state.work, state.pass.len());
        }
        Ok(())
    }

    /// Multiplies the input of each token by the weight of its only expert. The unweighted input is
    /// not used afterwards.
    fn weigh_inputs(&self, work: &mut Workspace, tokens: usize) {
        let hidden = self.spec.hidden;
        let Workspace { x, input, routed, .. } = work;
        for (row, weight) in x.chunks_exact_mut(hidden).zip(&mut routed.weights) {
            let weight = std::mem::replace(weight, 1.0);
            scale_row(weight, row);
        }
        if tokens <= self.strip {
            input.pack(self.tier, &x[..tokens * hidden], tokens, hidden);
        }
    }

    /// Lets the chosen experts be computed as their weights arrive, into `work.experts.outputs`.
    fn dispatch(
        &self,
        l: usize,
        spec: &MoeSpec,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let tier = self.tier;
        let tokens = state.pass.len();
        let Workspace { x, input, routed, mlp, experts, scratch, .. } = &mut state.work;
        let width = spec.latent.unwrap_or(self.spec.hidden);
        grown(&mut experts.outputs, tokens * spec.top_k * width);
        let ExpertWork { starts, rows, done, outputs, inputs, latent, packed, .. } = experts;
        let (x, input) = match spec.latent {
            None => (&x[..tokens * width], &*input),
            Some(_) => (&latent[..tokens * width], &*packed),
        };
        let input = (tokens <= self.strip).then_some(input);
        let strip = self.strip.max(ROWS_TOGETHER);
        let batch = ExpertBatch {
            layer: l as u32,
            experts: &[],
            part: 0..usize::MAX,
            spec: spec.expert,
            hidden: width,
            x,
            state: &state.hidden,
            routed,
            places: rows,
            starts,
        };
        source.experts(l, routed, &mut |ready, weights| {
            let mut rest = ready;
            while !rest.is_empty() {
                let (experts, later) = rest.split_at(together(rest, &batch));
                rest = later;
                begin(routed, experts, done);
                // Blocks of a matrix arrive once, for all rows. Matrices should be requested in the
                // order of reading, so the check is made only for an expert with more rows than a
                // strip.
                let whole = weights.executor().is_none()
                    && experts.iter().all(|&expert| {
                        batch.rows(expert).len() > strip
                            && is_whole(weights, l, expert, spec.expert)
                    });
                let batch = ExpertBatch { experts, ..batch.clone() };
                let mut compute = |batch: ExpertBatch<'_>| {
                    let refused = match weights.executor() {
                        Some(elsewhere) => elsewhere.compute(&batch, outputs),
                        None => CpuExecutor { tier, weights, input, inputs, mlp, scratch }
                            .compute(&batch, outputs),
                    };
                    for expert in refused? {
                        done[place_of(routed, expert)] = false;
                    }
                    Ok::<(), SourceError>(())
                };
                match *experts {
                    [expert] if whole => {
                        let rows = batch.rows(expert);
                        for strip in strips(rows.len(), strip) {
                            let part = rows.start + strip.start..rows.start + strip.end;
                            compute(ExpertBatch { part, ..batch.clone() })?;
                        }
                    }
                    _ => compute(batch)?,
                }
            }
            Ok(())
        })?;
        assert!(experts.done.iter().all(|&done| done), "the source has left out an expert");
        Ok(())
    }

    /// Sums the outputs of the experts of each token, into `work.branch`.
    fn sum_outputs(&self, state: &mut ForwardState) {
        let Workspace { branch, routed, experts, .. } = &mut state.work;
        let hidden = self.spec.hidden;
        sum(self.tier, routed, experts, hidden, grown(branch, state.pass.len() * hidden));
    }

    /// Like `sum_outputs`, for experts that read a latent: the sums are projected back.
    fn sum_latents(
        &self,
        l: usize,
        spec: &MoeSpec,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let tier = self.tier;
        let hidden = self.spec.hidden;
        let tokens = state.pass.len();
        let Workspace { branch, routed, experts, scratch, .. } = &mut state.work;
        let width = experts.latent_width;
        let y = grown(branch, tokens * hidden);
        // The inputs are no longer needed.
        let mut sums = std::mem::take(&mut experts.latent);
        let rows = &mut sums[..tokens * width];
        let by = self.spec.layers[l].norm;
        let id = PieceId::new(l as u32, PieceKind::SharedExpert);
        source.infrastructure(l, &[PieceKind::SharedExpert], &mut |weights| {
            if let LatentNorm::OfEach(by) = spec.latent_norm {
                let vectors = NormVectors::of(weights, id, Role::LatentNorm, by);
                let outputs = &mut experts.outputs[..routed.choices.len() * width];
                norm_rows(tier, by, outputs, width, vectors);
            }
            sum(tier, routed, experts, width, rows);
            if spec.latent_norm == LatentNorm::OfSum {
                let vectors = NormVectors::of(weights, id, Role::LatentNorm, by);
                norm_rows(tier, by, rows, width, vectors);
            }
            Ok(())
        })?;
        for part in strips(tokens, self.strip) {
            source.infrastructure(l, &[PieceKind::SharedExpert], &mut |weights| {
                let from = &rows[part.start * width..part.end * width];
                let y = &mut y[part.start * hidden..part.end * hidden];
                experts.packed.pack(tier, from, part.len(), width);
                let up = Product::new(id, Role::ExpertsUp, &experts.packed, y, hidden);
                multiply(tier, weights, &mut [Some(up)], scratch)
            })?;
        }
        experts.latent = sums;
        Ok(())
    }

    /// Adds the inputs of tokens for identity choices, multiplied by their weights.
    fn add_identities(&self, work: &mut Workspace, tokens: usize) {
        let hidden = self.spec.hidden;
        let Workspace { x, branch, routed, .. } = work;
        if routed.identity.is_empty() {
            return;
        }
        by_rows(&mut branch[..tokens * hidden], hidden, |first, y| {
            let own = x[first * hidden..].chunks_exact(hidden).zip(&routed.identity[first..]);
            for (y, (x, weight)) in y.chunks_exact_mut(hidden).zip(own) {
                axpy(self.tier, *weight, x, y);
            }
        });
    }

    /// Norms the sums of experts.
    fn norm_experts(
        &self,
        l: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let hidden = self.spec.hidden;
        let by = self.spec.layers[l].norm;
        let y = &mut state.work.branch[..state.pass.len() * hidden];
        source.infrastructure(l, &[PieceKind::Norms], &mut |weights| {
            let norms = PieceId::new(l as u32, PieceKind::Norms);
            let weight = weights.vector(norms, Role::ExpertsPostNorm);
            norm_rows(self.tier, by, y, hidden, weight);
            Ok(())
        })?;
        Ok(())
    }

    /// Adds the output of the shared expert.
    fn add_shared(&self, shared: SharedSpec, work: &mut Workspace, tokens: usize) {
        let hidden = self.spec.hidden;
        let Workspace { branch, experts, .. } = work;
        let y = &mut branch[..tokens * hidden];
        by_rows(y, hidden, |first, rows| {
            add(self.tier, &experts.shared[first * hidden..][..rows.len()], rows);
        });
        scale(if shared.averaged { 0.5 } else { 1.0 }, y);
    }
}

/// Marks experts as computed.
fn begin(routed: &Routed, experts: &[u32], done: &mut [bool]) {
    for &expert in experts {
        let twice = std::mem::replace(&mut done[place_of(routed, expert)], true);
        assert!(!twice, "the source serves expert {expert} twice");
    }
}

/// Packs a strip of the normed state of `tokens` tokens. The state of a single-strip pass is
/// already packed.
fn pack_strip(
    tier: Tier,
    (x, hidden): (&[f32], usize),
    rows: Range<usize>,
    tokens: usize,
    input: &mut PackedInput,
) {
    if rows.len() < tokens {
        input.pack(tier, &x[rows.start * hidden..rows.end * hidden], rows.len(), hidden);
    }
}

/// True if all matrices of an expert are in memory.
fn is_whole(weights: &mut dyn Weights, layer: usize, expert: u32, spec: MlpSpec) -> bool {
    let id = PieceId::expert(layer as u32, expert);
    let has = |role| weights.matrix(id, role).is_some();
    spec.gates().iter().all(|&(role, _)| has(role)) && has(Role::Down)
}

/// Sorts the choices by expert, then by token.
pub(super) fn group(routed: &Routed, work: &mut ExpertWork) {
    let ExpertWork { starts, rows, by_token, found, done, .. } = work;
    rows.clear();
    // Repeated choices are identity choices, and have no expert output.
    let is_first = |place: &usize| {
        let own = &routed.choices[place - place % routed.top_k..];
        let place = place % routed.top_k;
        routed.identity.is_empty() || !own[..place].contains(&own[place])
    };
    rows.extend((0..routed.choices.len()).filter(is_first));
    rows.sort_unstable_by_key(|&place| (routed.choices[place], place));
    starts.clear();
    for (row, &place) in rows.iter().enumerate() {
        if row == 0 || routed.choices[place] != routed.choices[rows[row - 1]] {
            starts.push(row);
        }
    }
    starts.push(rows.len());
    by_token.resize(routed.choices.len(), 0);
    found.clear();
    found.resize(routed.choices.len() / routed.top_k, 0);
    for (row, place) in rows.iter().enumerate() {
        let token = place / routed.top_k;
        by_token[token * routed.top_k + found[token]] = row;
        found[token] += 1;
    }
    done.clear();
    done.resize(routed.distinct.len(), false);
}

/// Number of experts at the front of `ready` that are computed together.
fn together(ready: &[u32], layer: &ExpertBatch<'_>) -> usize {
    let mut rows = 0;
    let few = ready.iter().take(TOGETHER).take_while(|&&expert| {
        rows += layer.rows(expert).len();
        rows <= ROWS_TOGETHER
    });
    few.count().max(1)
}

/// y = Σ weight · output for each token, in ascending order of experts. The sum does not depend on
/// when, or with which other tokens, the outputs were computed.
fn sum(tier: Tier, routed: &Routed, work: &ExpertWork, hidden: usize, y: &mut [f32]) {
    let ExpertWork { rows, by_token, found, outputs, .. } = work;
    by_rows(y, hidden, |first, y| {
        y.fill(0.0);
        let own = by_token[first * routed.top_k..].chunks_exact(routed.top_k);
        for ((y, own), &count) in y.chunks_exact_mut(hidden).zip(own).zip(&found[first..]) {
            for &row in &own[..count] {
                let output = &outputs[row * hidden..][..hidden];
                axpy(tier, routed.weights[rows[row]], output, y);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of these numbers shows its order: a number that is added to 1e8 before it is
    /// subtracted again is lost.
    #[test]
    fn outputs_are_summed_in_ascending_order_of_experts() {
        // The experts that the router selects for outputs of 1e8, -1e8 and 1, and the sum.
        let cases = [
            ([0, 1, 2], 1.0),
            ([1, 0, 2], 1.0),
            ([1, 2, 0], 0.0),
            ([2, 1, 0], 0.0),
            ([0, 2, 1], 0.0),
            ([2, 0, 1], 0.0),
        ];
        for (choices, expected) in cases {
            let routed = Routed {
                top_k: 3,
                choices: choices.to_vec(),
                weights: vec![1e8, -1e8, 1.0],
                identity: Vec::new(),
                shared: Vec::new(),
                distinct: vec![0, 1, 2],
            };
            let mut work = ExpertWork { outputs: vec![1.0; 3], ..ExpertWork::default() };
            group(&routed, &mut work);
            let mut y = [f32::NAN];
            sum(Tier::best(), &routed, &work, 1, &mut y);
            assert_eq!(y, [expected], "{choices:?}");
        }
    }
}
