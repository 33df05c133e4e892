//! One sequence, from tokens to logits.

use crate::forward::{ForwardError, ForwardPass};
use crate::handle::CausalLm;
use crate::layer_state::KvPrecision;
use crate::observer::Observer;
use crate::sequences::Sequences;
use crate::source::PassSource;
use crate::state::ForwardState;

/// One sequence of a [`Sequences`]: a [`CausalLm`].
#[derive(Debug)]
pub struct Session<S> {
    sequences: Sequences<S>,
    sequence: usize,
}

impl<S: PassSource> Session<S> {
    /// A session for a sequence of up to `limit` positions, capped at the model's context length.
    pub fn new(model: ForwardPass, source: S, limit: usize, precision: KvPrecision) -> Self {
        let mut sequences = Sequences::new(model, source, limit, precision);
        let sequence = sequences.add();
        Session { sequences, sequence }
    }

    /// Sets the chunk length; see [`Sequences::set_chunk`].
    pub fn set_chunk(&mut self, tokens: usize) {
        self.sequences.set_chunk(tokens);
    }

    /// The model.
    pub fn model(&self) -> &ForwardPass {
        self.sequences.model()
    }

    /// The state of the pass.
    pub fn state(&self) -> &ForwardState {
        self.sequences.state()
    }

    /// The source of the weights.
    pub fn source(&mut self) -> &mut S {
        self.sequences.source()
    }
}

impl<S: PassSource> CausalLm for Session<S> {
    fn vocab(&self) -> usize {
        self.sequences.model().spec().vocab
    }

    fn limit(&self) -> usize {
        self.sequences.state().limit()
    }

    fn len(&self) -> usize {
        self.sequences.state().len(self.sequence)
    }

    fn clear(&mut self) {
        self.sequences.state_mut().clear(self.sequence);
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.sequences.continue_one(self.sequence, tokens, observer)?;
        Ok(self.sequences.logits(0))
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.sequences.score(self.sequence, tokens, observer)
    }
}
