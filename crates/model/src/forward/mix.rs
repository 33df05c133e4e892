//! The part of a layer before its feed-forward block: the mixer, and the inputs of the router.

use std::ops::Range;

use sws_format::{PieceId, PieceKind, Span};

use super::attention::attention;
use super::branches::BranchWeights;
use super::compressed::compressed;
use super::conv::conv;
use super::delta::delta;
use super::latent::latent;
use super::mixer::MixerContext;
use super::ngrams::ngrams;
use super::past::{Conv, add_conv};
use super::state_space::state_space;
use super::strips::{cut, strips};
use super::{ForwardError, ForwardPass, router, streams, table};
use crate::layer_state::SequenceState;
use crate::order::{Branch, Site};
use crate::role::Role;
use crate::source::{SourceError, WeightSource, Weights};
use crate::spec::{Ffn, LayerSpec, Mixer, ModelSpec, MoeSpec, Residual, Router};
use crate::state::ForwardState;
use crate::workspace::{RouterWork, Workspace, grown};

impl ForwardPass {
    /// Runs everything before the feed-forward block. Leaves the normed input of that block in `work.x`
    /// and, for a pass of one strip, in `work.input`; and the router's logits in `work.router`.
    pub(super) fn mix(
        &self,
        l: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        self.look_up_ngrams(l, state, source)?;
        state.work.end_strips();
        let tokens = state.pass.len();
        let width = self.spec.hidden;
        let strip = self.spec.mixed_together(self.strip, tokens);
        let mut spans = std::mem::take(&mut state.work.strips.spans);
        for rows in strips(tokens, strip) {
            cut(&state.pass.spans, &rows, &mut spans);
            self.mix_rows(l, rows.clone(), &spans, state, source)?;
            if strip < tokens {
                let Workspace { x, strips, .. } = &mut state.work;
                let to = &mut grown(&mut strips.normed, tokens * width)
                    [rows.start * width..rows.end * width];
                to.copy_from_slice(&x[..to.len()]);
            }
        }
        state.work.strips.spans = spans;
        if strip < tokens {
            state.work.begin_strips();
        }
        Ok(())
    }

    /// [`mix`](Self::mix) of some rows of the pass, which are those of `spans`.
    fn mix_rows(
        &self,
        l: usize,
        rows: Range<usize>,
        spans: &[Span],
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let tier = self.tier;
        let width = self.spec.hidden;
        let layer = &self.spec.layers[l];
        let norms = PieceId::new(l as u32, PieceKind::Norms);
        let has_mixer = layer.mixer != Mixer::None;
        let ForwardState { work, hidden, sequences, pass, .. } = state;
        let state_width = self.spec.state_width();
        let hidden = &mut hidden[rows.start * state_width..rows.end * state_width];
        work.tables(&self.spec.ropes, spans);
        let branch = |site| Branch { spec: &self.spec, layer: l, site };
        let ropes = &self.spec.ropes;
        let context =
            MixerContext { tier, layer: l, norm: layer.norm, hidden: width, ropes, spans };
        source.infrastructure(l, pieces(&self.spec, layer), &mut |weights| {
            ngrams(&context, (&self.spec, &pass.tokens), weights, sequences, work, hidden)?;
            if has_mixer {
                streams::read(branch(Site::Mixer), tier, weights, hidden, work)?;
            }
            mixer(&context, &layer.mixer, weights, sequences, work)?;
            let Residual { parallel, split, conv, .. } = layer.residual;
            if let Some(conv) = conv.filter(|_| has_mixer) {
                let before = layer.convs(width)[..2].iter().sum();
                let weight = weights.vector(norms, Role::MixerConv);
                let Workspace { branch, x, .. } = &mut *work;
                let branch = &mut branch[..rows.len() * width];
                let room = grown(x, branch.len());
                let of = Conv { layer: l, conv, weight, before };
                add_conv(tier, of, (spans, &mut sequences[..]), branch, room);
            }
            if has_mixer {
                let own = BranchWeights::of(weights, l, layer, Site::Mixer);
                let branch = (&mut *work.branch, &*work.streams.weights);
                self.add_branch((l, Site::Mixer), own, branch, hidden);
            }
            let moe = layer.moe();
            if split && moe.is_some() {
                let id = PieceId::new(l as u32, PieceKind::Router);
                work.scaled_norm(tier, layer.norm, hidden, weights.vector(id, Role::RouterNorm));
            } else if !parallel && layer.ffn != Ffn::None {
                streams::read(branch(Site::Ffn), tier, weights, hidden, work)?;
            }
            match moe {
                Some(moe) => self.score((l, moe), &pass.tokens, rows.clone(), weights, work),
                None => Ok(()),
            }
        })?;
        Ok(())
    }

    /// Computes the router's logits for some rows of a pass with these tokens, and the scores and
    /// ranks of a ranking router.
    fn score(
        &self,
        (l, moe): (usize, &MoeSpec),
        tokens: &[u32],
        rows: Range<usize>,
        weights: &mut dyn Weights,
        work: &mut Workspace,
    ) -> Result<(), SourceError> {
        let id = PieceId::new(l as u32, PieceKind::Router);
        let all = tokens.len();
        let Workspace {
            input, router: RouterWork { scores, ranks }, scratch, routed, experts, ..
        } = work;
        let places = rows.start * moe.scored()..rows.end * moe.scored();
        let logits = &mut grown(scores, all * moe.scored())[places.clone()];
        router::logits(self.tier, (l, moe), weights, input, logits, scratch)?;
        match moe.router {
            Router::Softmax { .. } | Router::SoftmaxOfChosen | Router::Near { .. } => {}
            Router::SoftmaxScaled => {
                let factors = weights.vector(id, Role::RouterFactors);
                grown(ranks, all * moe.scored())[..moe.experts].copy_from_slice(factors);
            }
            Router::Ranked(router) | Router::Table(router) => {
                let ranks = &mut grown(ranks, all * moe.scored())[places];
                router::rank(self.tier, (l, router, moe.scored()), weights, logits, ranks);
            }
        }
        if moe.shared_scored > 0 {
            experts.factor = weights.vector(id, Role::RouterScale)[0];
        }
        if moe.has_table() {
            table::look_up((&self.spec, l, moe), weights, tokens, routed)?;
        }
        Ok(())
    }
}

/// The pieces needed before the feed-forward block of a layer.
fn pieces(spec: &ModelSpec, layer: &LayerSpec) -> &'static [PieceKind] {
    // The weights by which a feed-forward block reads streams or kept states are stored with its
    // router.
    let has_router = layer.moe().is_some() || spec.streams.is_some() || spec.kept.is_some();
    match (layer.mixer != Mixer::None, has_router) {
        (true, true) => &[PieceKind::Norms, PieceKind::Attention, PieceKind::Router],
        (true, false) => &[PieceKind::Norms, PieceKind::Attention],
        (false, true) => &[PieceKind::Norms, PieceKind::Router],
        (false, false) => &[PieceKind::Norms],
    }
}

/// Runs the mixer of a layer.
fn mixer(
    context: &MixerContext<'_>,
    mixer: &Mixer,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    match mixer {
        Mixer::Attention(spec) => attention(context, spec, weights, sequences, work),
        Mixer::Latent(spec) => latent(context, spec, weights, sequences, work),
        Mixer::Compressed(spec) => compressed(context, spec, weights, sequences, work),
        Mixer::Delta(spec) => delta(context, spec, weights, sequences, work),
        Mixer::Conv(spec) => conv(context, *spec, weights, sequences, work),
        Mixer::StateSpace(spec) => state_space(context, spec, weights, sequences, work),
        Mixer::None => Ok(()),
    }
}
