//! The forward pass, shared by all families and all sources of weights.

mod attention;
mod blocks;
mod branches;
mod by_rows;
mod compressed;
mod conv;
mod delta;
mod error;
mod experts;
mod head;
mod indexer;
mod inputs;
mod judging;
mod kept;
mod latent;
mod linear;
mod messages;
mod mix;
mod mixer;
mod mlp;
mod moe;
mod ngrams;
mod norms;
mod past;
mod recurrence;
mod router;
mod rows;
mod size;
mod state_space;
mod streams;
mod strips;
mod table;
mod work;

use sws_format::{PieceId, PieceKind};
use sws_kernels::Tier;
use sws_kernels::functional::add;

use crate::order::Site;
use crate::role::Role;
use crate::source::{WeightSource, Weights};
use crate::spec::{Ffn, ModelSpec, Norm};
use crate::state::{BatchProgress, ForwardState};
use crate::workspace::{Workspace, grown};
use branches::BranchWeights;
use by_rows::by_rows;
pub use error::ForwardError;
use norms::{NormVectors, norm_rows, scale};
use past::{Conv, add_conv};
pub use router::RouterProbe;
pub use size::PassSize;
use strips::STRIP;

/// A model: its specification and the kernels that compute it. Its weights come from a
/// [`WeightSource`], and the state of a pass is kept in a [`ForwardState`].
///
/// The caller owns the loop: [`begin`](Self::begin), then [`layer`](Self::layer) for each
/// [visit](ModelSpec::visits) of a layer, then [`logits`](Self::logits) if they are wanted. The
/// logits are the same, bit for bit, for any division of a prompt into batches, any other sequences
/// in a batch, any number of threads and any choice of kernels.
#[derive(Clone, Debug)]
pub struct ForwardPass {
    spec: ModelSpec,
    tier: Tier,
    strip: usize,
}

/// Tokens that continue a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The number of the sequence, from [`ForwardState::add_sequence`].
    pub sequence: usize,
    /// The tokens, at least one.
    pub tokens: &'a [u32],
}

/// The rows of a batch for which logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// The last row of each chunk.
    Last,
    /// All rows.
    All,
}

impl ForwardPass {
    /// A model on the fastest kernels of this CPU.
    pub fn new(spec: ModelSpec) -> ForwardPass {
        ForwardPass::with_tier(spec, Tier::best())
    }

    /// A model on the given kernels.
    pub fn with_tier(spec: ModelSpec, tier: Tier) -> ForwardPass {
        ForwardPass { spec, tier, strip: STRIP }
    }

    /// Sets the number of tokens that the parts of a layer take at a time, except that each expert is
    /// read once for all tokens of a pass. The results are the same bit for bit; only the amount of
    /// working memory depends on it.
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn with_strips(mut self, tokens: usize) -> ForwardPass {
        assert!(tokens > 0, "a strip needs at least one token");
        self.strip = tokens;
        self
    }

    /// The specification of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The kernels that compute the model.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Begins a pass over a batch, in which each chunk continues a different sequence.
    ///
    /// # Panics
    ///
    /// If two chunks continue the same sequence, or a sequence was never added.
    pub fn begin(
        &self,
        state: &mut ForwardState,
        batch: &[Chunk<'_>],
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        self.check(state, batch)?;
        let hidden = self.spec.hidden;
        let width = self.spec.state_width();
        state.pass.clear();
        state.work.reselect(None);
        state.progress = BatchProgress::Interrupted;
        for &Chunk { sequence, tokens } in batch {
            let twice = state.pass.spans.iter().any(|span| span.sequence == sequence);
            assert!(!twice, "two chunks continue the sequence {sequence}");
            let first_position = state.len(sequence);
            state.pass.push(sequence, first_position, tokens);
            state.sequences[sequence].reserve(tokens.len());
        }
        self.expect_rows(state, source)?;
        let rows = state.pass.len();
        // `resize` would double the capacity, and the budget relies on the exact length.
        state.hidden.reserve_exact((rows * width).saturating_sub(state.hidden.len()));
        state.hidden.resize(rows * width, 0.0);
        let embeddings = &mut state.hidden[..rows * hidden];
        source.embed(&state.pass.tokens, embeddings)?;
        scale(self.spec.embedding_scale, embeddings);
        let states = self.spec.states();
        if states > 1 {
            // Every state begins as the embedding. Rows are copied from the last to the first, so
            // that none is overwritten before it is copied.
            for to in (0..rows * states).rev() {
                let from = to / states * hidden;
                state.hidden.copy_within(from..from + hidden, to * hidden);
            }
        }
        state.progress = BatchProgress::Before(0);
        Ok(())
    }

    /// Checks that a pass over this batch could begin.
    pub(crate) fn check(
        &self,
        state: &ForwardState,
        batch: &[Chunk<'_>],
    ) -> Result<(), ForwardError> {
        let limit = state.limit();
        for &Chunk { sequence, tokens } in batch {
            if !state.has(sequence) {
                return Err(ForwardError::Removed(sequence));
            }
            let used = state.len(sequence);
            if state.sequences[sequence].partial {
                return Err(ForwardError::Interrupted);
            }
            if tokens.is_empty() {
                return Err(ForwardError::NoTokens);
            }
            if tokens.len() > limit - used {
                return Err(ForwardError::ContextFull { used, asked: tokens.len(), limit });
            }
            if let Some(&token) = tokens.iter().find(|&&token| token as usize >= self.spec.vocab) {
                return Err(ForwardError::UnknownToken { token, last: self.spec.vocab - 1 });
            }
        }
        Ok(())
    }

    /// Runs one layer, given the number of its [visit](ModelSpec::visits): that of the layer, unless a
    /// pass visits layers several times. After the last, the batch is part of its sequences.
    ///
    /// If the source fails, the pass is over: its sequences can be cleared, or rewound to a state
    /// that was saved before.
    ///
    /// # Panics
    ///
    /// If another layer comes next ([`ForwardState::layer`]).
    pub fn layer(
        &self,
        visit: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        self.attend(visit, state, source)?;
        self.share(visit, state, source)?;
        self.finish(visit, state, source)
    }

    /// Runs a layer up to its feed-forward block: attention, and the router's selection.
    /// [`share`](Self::share) and [`finish`](Self::finish) have to follow. [`ForwardState::save`] in
    /// between includes the selection.
    ///
    /// # Panics
    ///
    /// Same as for [`layer`](Self::layer).
    pub fn attend(
        &self,
        visit: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let next = state.layer().ok_or(ForwardError::Interrupted)?;
        assert_eq!(visit, next, "the layer that comes next");
        state.progress = BatchProgress::Interrupted;
        let l = self.spec.layer_of(visit);
        for span in &state.pass.spans {
            let sequence = &mut state.sequences[span.sequence];
            sequence.partial = true;
            sequence.select(l, visit);
        }
        if let Some(by) = self.spec.embedding_norm.filter(|_| l == 0) {
            self.norm_embeddings(by, state, source)?;
        }
        if l == 0 {
            self.layer_inputs(state, source)?;
            self.learn_angles(state, source)?;
            self.learn_messages(state, source)?;
        }
        self.begin_visit(visit, state);
        self.mix(l, state, source)?;
        if let Some(moe) = self.spec.layers[l].moe() {
            self.route(moe, state);
        }
        state.progress = BatchProgress::Attended(visit);
        Ok(())
    }

    /// Reads the factors of angles, if weights have any.
    fn learn_angles(
        &self,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let Some(rope) = self.spec.ropes.first().filter(|_| self.spec.learned_angles) else {
            return Ok(());
        };
        let norms = PieceId::new(0, PieceKind::Norms);
        source.infrastructure(0, &[PieceKind::Norms], &mut |weights| {
            state.work.learn_angles(rope, weights.vector(norms, Role::Angles));
            Ok(())
        })?;
        Ok(())
    }

    /// Norms the embeddings of a batch.
    fn norm_embeddings(
        &self,
        by: Norm,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let tier = self.tier;
        let width = self.spec.hidden;
        let hidden = &mut state.hidden;
        let norms = PieceId::new(0, PieceKind::Norms);
        source.infrastructure(0, &[PieceKind::Norms], &mut |weights| {
            let vectors = NormVectors::of(weights, norms, Role::EmbeddingNorm, by);
            norm_rows(tier, by, hidden, width, vectors);
            Ok(())
        })?;
        Ok(())
    }

    /// Computes the shared expert of a layer, if it has one.
    ///
    /// # Panics
    ///
    /// If the previous step was not [`attend`](Self::attend).
    pub fn share(
        &self,
        visit: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        assert_eq!(
            state.progress,
            BatchProgress::Attended(visit),
            "the layer that has been attended"
        );
        state.progress = BatchProgress::Interrupted;
        let l = self.spec.layer_of(visit);
        self.restore(state);
        if let Some(latent) = self.spec.layers[l].moe().and_then(|moe| moe.latent) {
            self.project(l, latent, state, source)?;
        }
        if let Some(shared) = self.spec.layers[l].moe().and_then(|moe| moe.shared) {
            let split = self.spec.layers[l].residual.split;
            if split {
                self.norm_for(l, Role::FfnNorm, state, source)?;
            }
            self.shared_expert(l, shared, state, source)?;
            if split {
                self.norm_shared(l, state, source)?;
                self.norm_for(l, Role::ExpertsNorm, state, source)?;
            }
        }
        state.progress = BatchProgress::Shared(visit);
        Ok(())
    }

    /// Rebuilds data derived from a state that was restored in the middle of a layer.
    fn restore(&self, state: &mut ForwardState) {
        let numbers = state.hidden.len() / self.spec.state_width() * self.spec.hidden;
        state.work.restore(self.tier, self.spec.hidden, numbers);
    }

    /// The output of a layer's shared expert, which is added to the hidden state: [tokens, hidden].
    /// It is empty without a shared expert, and in models with several residual streams or kept
    /// states. [`share`](Self::share) must have run before.
    pub fn shared<'s>(&self, visit: usize, state: &'s ForwardState) -> &'s [f32] {
        let has_shared = self.spec.layers[self.spec.layer_of(visit)]
            .moe()
            .is_some_and(|moe| moe.shared.is_some());
        let has_shared = has_shared && self.spec.states() == 1;
        state.work.shared(if has_shared { state.hidden.len() } else { 0 })
    }

    /// Runs the feed-forward block of a layer, which completes it.
    ///
    /// # Panics
    ///
    /// If the previous step was not [`share`](Self::share).
    pub fn finish(
        &self,
        visit: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        assert_eq!(state.progress, BatchProgress::Shared(visit), "the layer that has begun");
        state.progress = BatchProgress::Interrupted;
        self.restore(state);
        let l = self.spec.layer_of(visit);
        for span in &state.pass.spans {
            state.sequences[span.sequence].select(l, visit);
        }
        match self.spec.layers[l].ffn {
            Ffn::Dense(mlp) => self.dense(l, mlp, state, source)?,
            Ffn::Moe(moe) => self.moe(l, moe, state, source)?,
            Ffn::None => {}
        }
        let ForwardState { work, hidden, sequences, pass, .. } = state;
        let layer = &self.spec.layers[l];
        let norms = PieceId::new(l as u32, PieceKind::Norms);
        if let Some(conv) = layer.residual.conv {
            let before = layer.convs(self.spec.hidden)[..3].iter().sum();
            let numbers = hidden.len() / self.spec.states();
            source.infrastructure(l, &[PieceKind::Norms], &mut |weights: &mut dyn Weights| {
                let weight = weights.vector(norms, Role::FfnConv);
                let Workspace { branch, x, .. } = &mut *work;
                let branch = &mut branch[..numbers];
                let of = Conv { layer: l, conv, weight, before };
                add_conv(
                    self.tier,
                    of,
                    (&pass.spans[..], &mut sequences[..]),
                    branch,
                    grown(x, numbers),
                );
                Ok(())
            })?;
        }
        if layer.residual.after_ffn.is_some() || layer.residual.shares.is_some() {
            source.infrastructure(l, &[PieceKind::Norms], &mut |weights: &mut dyn Weights| {
                let own = BranchWeights::of(weights, l, layer, Site::Ffn);
                let branch = (&mut *work.branch, &*work.streams.weights);
                self.add_branch((l, Site::Ffn), own, branch, hidden);
                Ok(())
            })?;
        } else if layer.ffn != Ffn::None {
            let branch = (&mut *work.branch, &*work.streams.weights);
            self.add_branch((l, Site::Ffn), BranchWeights::NONE, branch, hidden);
        }
        if l > 0 && self.spec.layers[l - 1].moe().is_some_and(|it| it.added_later) {
            let later = &work.experts.later;
            by_rows(hidden, self.spec.hidden, |first, rows| {
                add(self.tier, &later[first * self.spec.hidden..][..rows.len()], rows);
            });
        }
        self.add_input(l, state, source)?;
        let ForwardState { work, hidden, sequences, pass, .. } = state;
        if layer.residual.scaled_state {
            source.infrastructure(l, &[PieceKind::Norms], &mut |weights: &mut dyn Weights| {
                scale(weights.vector(norms, Role::StateScale)[0], hidden);
                Ok(())
            })?;
        }
        if visit + 1 == self.spec.visits() {
            work.inputs.clear();
            for span in &pass.spans {
                let sequence = &mut sequences[span.sequence];
                (sequence.len, sequence.partial) = (span.first_position + span.tokens, false);
            }
        }
        state.progress = BatchProgress::Before(visit + 1);
        Ok(())
    }
}
