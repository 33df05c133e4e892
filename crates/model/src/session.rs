//! One sequence, from tokens to logits.

use crate::engine::Engine;
use crate::forward::{Chunk, ForwardError, Model, Rows};
use crate::handle::{CausalLm, ModelHandle};
use crate::layer_state::KvPrecision;
use crate::observer::Observer;
use crate::source::PassSource;
use crate::spec::ModelSpec;
use crate::state::State;

/// One sequence of an [`Engine`]: a [`CausalLm`].
#[derive(Debug)]
pub struct Session<S> {
    engine: Engine<S>,
    sequence: usize,
}

impl<S: PassSource> Session<S> {
    /// A session for a sequence of up to `limit` positions, capped at the model's context length.
    pub fn new(model: Model, source: S, limit: usize, precision: KvPrecision) -> Self {
        Session::with_pages(model, source, limit, precision, usize::MAX)
    }

    /// As [`new`](Self::new), for an engine with sequences in [pages](State::with_pages).
    pub fn with_pages(
        model: Model,
        source: S,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> Self {
        let mut engine = Engine::new(model, source, limit, precision).with_pages(page);
        let sequence = engine.add();
        Session { engine, sequence }
    }

    /// As [`Engine::set_chunk`].
    pub fn set_chunk(&mut self, tokens: usize) {
        self.engine.set_chunk(tokens);
    }

    /// As [`Engine::chunk`].
    pub fn chunk(&self) -> usize {
        self.engine.chunk()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.engine.model()
    }

    /// The state of the pass.
    pub fn state(&self) -> &State {
        self.engine.state()
    }

    /// As [`Engine::release_work`].
    pub fn release_work(&mut self) {
        self.engine.release_work();
    }

    /// The source of the weights.
    pub fn source(&mut self) -> &mut S {
        self.engine.source()
    }

    /// The engine, for further sequences.
    pub fn engine(&mut self) -> &mut Engine<S> {
        &mut self.engine
    }

    /// Continues the sequence by all tokens in one pass, and computes the [logits](Self::verified) behind
    /// each.
    pub fn verify(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        let Session { engine, sequence } = self;
        let batch = [Chunk { sequence: *sequence, tokens }];
        engine.model().check(engine.state(), &batch)?;
        engine.layers(&batch, observer)?;
        engine.behind(Rows::All)?;
        Ok(())
    }

    /// The logits behind a token of the last [`verify`](Self::verify).
    ///
    /// # Panics
    ///
    /// If it had no such token, or another pass came since.
    pub fn verified(&mut self, token: usize) -> &mut [f32] {
        self.engine.logits_of(token)
    }

    /// Drops the positions from `len` on; see [`State::truncate`].
    pub fn truncate(&mut self, len: usize) -> bool {
        self.engine.truncate(self.sequence, len)
    }

    /// Runs tokens through the layers, a chunk at a time; refuses those that do not fit before any of
    /// them is processed. `each` gets the position of each chunk's first token.
    fn run(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
        mut each: impl FnMut(&mut Engine<S>, usize, &mut dyn Observer) -> Result<(), ForwardError>,
    ) -> Result<(), ForwardError> {
        let Session { engine, sequence } = self;
        let sequence = *sequence;
        engine.model().check(engine.state(), &[Chunk { sequence, tokens }])?;
        for tokens in tokens.chunks(engine.chunk()) {
            let first = engine.len(sequence);
            engine.layers(&[Chunk { sequence, tokens }], observer)?;
            each(engine, first, observer)?;
        }
        Ok(())
    }
}

impl<S: PassSource> ModelHandle for Session<S> {
    fn spec(&self) -> &ModelSpec {
        self.engine.model().spec()
    }

    fn as_causal_lm(&mut self) -> Option<&mut dyn CausalLm> {
        Some(self)
    }
}

impl<S: PassSource> CausalLm for Session<S> {
    fn vocab(&self) -> usize {
        self.engine.model().spec().vocab
    }

    fn limit(&self) -> usize {
        self.engine.state().limit()
    }

    fn len(&self) -> usize {
        self.engine.len(self.sequence)
    }

    fn clear(&mut self) {
        self.engine.clear(self.sequence);
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.run(tokens, observer, |_, _, _| Ok(()))?;
        self.engine.behind(Rows::Last)
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.run(tokens, observer, |engine, first, observer| {
            observer.logits(first, engine.behind(Rows::All)?);
            Ok(())
        })
    }
}
