//! One sequence, from tokens to logits.

use crate::forward::{Chunk, ForwardError, ForwardPass, LogitRows};
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
        Session::with_pages(model, source, limit, precision, usize::MAX)
    }

    /// As [`new`](Self::new), with sequences in [pages](ForwardState::with_pages).
    pub fn with_pages(
        model: ForwardPass,
        source: S,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> Self {
        let mut sequences = Sequences::new(model, source, limit, precision).with_pages(page);
        let sequence = sequences.add();
        Session { sequences, sequence }
    }

    /// As [`Sequences::set_chunk`].
    pub fn set_chunk(&mut self, tokens: usize) {
        self.sequences.set_chunk(tokens);
    }

    /// As [`Sequences::chunk`].
    pub fn chunk(&self) -> usize {
        self.sequences.chunk()
    }

    /// The model.
    pub fn model(&self) -> &ForwardPass {
        self.sequences.model()
    }

    /// The state of the pass.
    pub fn state(&self) -> &ForwardState {
        self.sequences.state()
    }

    /// As [`Sequences::release_work`].
    pub fn release_work(&mut self) {
        self.sequences.release_work();
    }

    /// The source of the weights.
    pub fn source(&mut self) -> &mut S {
        self.sequences.source()
    }

    /// The sequences, for further ones.
    pub fn sequences(&mut self) -> &mut Sequences<S> {
        &mut self.sequences
    }

    /// Continues the sequence by all tokens in one pass, and computes the [logits](Self::verified_logits)
    /// behind each.
    pub fn verify(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        let Session { sequences, sequence } = self;
        let batch = [Chunk { sequence: *sequence, tokens }];
        sequences.model().check(sequences.state(), &batch)?;
        sequences.layers(&batch, observer)?;
        sequences.behind(LogitRows::All)?;
        Ok(())
    }

    /// The logits behind a token of the last [`verify`](Self::verify).
    ///
    /// # Panics
    ///
    /// If it had no such token, or another pass came since.
    pub fn verified_logits(&mut self, token: usize) -> &mut [f32] {
        self.sequences.logits_of(token)
    }

    /// Drops the positions from `len` on; see [`ForwardState::truncate`].
    pub fn truncate(&mut self, len: usize) -> bool {
        self.sequences.truncate(self.sequence, len)
    }

    /// Runs tokens through the layers, a chunk at a time; refuses those that do not fit before any of
    /// them is processed. `each` gets the position of each chunk's first token.
    fn run(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
        mut each: impl FnMut(&mut Sequences<S>, usize, &mut dyn Observer) -> Result<(), ForwardError>,
    ) -> Result<(), ForwardError> {
        let Session { sequences, sequence } = self;
        let sequence = *sequence;
        sequences.model().check(sequences.state(), &[Chunk { sequence, tokens }])?;
        for tokens in tokens.chunks(sequences.chunk()) {
            let first = sequences.len(sequence);
            sequences.layers(&[Chunk { sequence, tokens }], observer)?;
            each(sequences, first, observer)?;
        }
        Ok(())
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
        self.sequences.len(self.sequence)
    }

    fn clear(&mut self) {
        self.sequences.clear(self.sequence);
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.run(tokens, observer, |_, _, _| Ok(()))?;
        self.sequences.behind(LogitRows::Last)
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.run(tokens, observer, |sequences, first, observer| {
            observer.logits(first, sequences.behind(LogitRows::All)?);
            Ok(())
        })
    }
}
