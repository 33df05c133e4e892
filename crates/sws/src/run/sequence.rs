//! The sequences of a loaded model. Tokens of the first are recorded, and passes run on the thread
//! pool.

use std::fmt;

use sws_engine::Waiter;
use sws_model::{
    BatchLm, CausalLm, Chunk, ForwardError, Observer, Prefix, SpeculativeLm, StepOutcome,
};

use crate::speculative::SpeculativeDecoder;
use crate::{Batch, Threads};

/// A model with its sequence, usable from any thread.
pub(crate) struct Sequence {
    lm: Box<dyn CausalLm>,
    threads: Threads,
    /// Tokens in the sequence; empty after a failed pass.
    tokens: Vec<u32>,
    /// The numbers of the sequences beside it.
    others: Vec<usize>,
    /// Speculative decoding; `None` to compute each token by itself.
    pub(crate) speculative: Option<SpeculativeDecoder>,
}

impl Sequence {
    pub(crate) fn new(lm: Box<dyn CausalLm>, threads: Threads) -> Sequence {
        Sequence { lm, threads, tokens: Vec::new(), others: Vec::new(), speculative: None }
    }

    /// Decodes speculatively, or not.
    pub(crate) fn with_speculative(mut self, proposes: bool) -> Sequence {
        self.speculative = proposes.then(SpeculativeDecoder::default);
        self
    }

    /// Asks about the text that a token continues which is not in the sequence yet, with the decoder
    /// for it.
    pub(crate) fn with_next<T>(
        &mut self,
        token: u32,
        ask: impl FnOnce(&[u32], Option<&mut SpeculativeDecoder>) -> T,
    ) -> T {
        let Sequence { tokens, speculative, .. } = self;
        tokens.push(token);
        let answer = ask(tokens, speculative.as_mut());
        tokens.pop();
        answer
    }

    /// Maximum number of tokens of a [`verify`](Self::verify); below 2 if there can be none.
    pub(crate) fn verify_len(&mut self) -> usize {
        self.lm.as_speculative_lm().map_or(0, |lm| lm.verify_len())
    }

    /// Forwards to [`SpeculativeLm::verify`].
    pub(crate) fn verify(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        let Sequence { lm, threads, tokens: all, .. } = self;
        let done = threads.run(|| speculative_lm(&mut **lm).verify(tokens, observer));
        match &done {
            Ok(()) => all.extend(tokens),
            Err(_) => all.clear(),
        }
        done
    }

    /// Forwards to [`SpeculativeLm::verified_logits`].
    pub(crate) fn verified_logits(&mut self, token: usize) -> &mut [f32] {
        speculative_lm(&mut *self.lm).verified_logits(token)
    }

    /// Forwards to [`SpeculativeLm::accept`].
    pub(crate) fn accept(&mut self, len: usize) {
        speculative_lm(&mut *self.lm).accept(len);
        self.tokens.truncate(len);
    }

    /// Forwards to [`SpeculativeLm::can_draft`].
    pub(crate) fn can_draft(&mut self) -> bool {
        self.lm.as_speculative_lm().is_some_and(|lm| lm.can_draft())
    }

    /// Forwards to [`SpeculativeLm::draft_token`].
    pub(crate) fn draft_token(
        &mut self,
        token: u32,
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        let Sequence { lm, threads, tokens, .. } = self;
        let done = threads.run(|| speculative_lm(&mut **lm).draft_token(token, observer));
        if done.is_err() {
            tokens.clear();
        }
        done
    }

    /// Threads that compute the passes.
    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Keeps the sequence if it is a proper prefix of `tokens`, and clears it otherwise. Returns
    /// the number of tokens kept.
    pub(crate) fn resume(&mut self, tokens: &[u32]) -> usize {
        let known = self.lm.len() == self.tokens.len();
        if !known || !tokens.starts_with(&self.tokens) || tokens.len() == self.tokens.len() {
            self.clear();
        }
        self.tokens.len()
    }

    /// Clears the sequence, and adds others until there are `count`, or no room for more. Returns
    /// their numbers. `None` if the model has only the first.
    pub(crate) fn several(&mut self, count: usize) -> Option<Vec<usize>> {
        self.clear();
        let Sequence { lm, others, .. } = self;
        let lm = lm.as_batch_lm()?;
        lm.share();
        while others.len() + 1 < count
            && let Some(sequence) = lm.add_sequence()
        {
            others.push(sequence);
        }
        Some([0].into_iter().chain(others.iter().copied()).take(count).collect())
    }

    /// Continues [several](Self::several) sequences.
    pub(crate) fn step(
        &mut self,
        chunks: &[Chunk<'_>],
        observer: &mut dyn Observer,
        step: &mut StepOutcome,
    ) {
        let threads = self.threads.clone();
        threads.run(|| self.batch().step(chunks, observer, step));
    }

    /// The model as one of [several](Self::several) sequences.
    ///
    /// # Panics
    ///
    /// If the model has only the first.
    pub(crate) fn batch(&mut self) -> &mut dyn BatchLm {
        self.lm.as_batch_lm().expect("there are sequences beside the first")
    }

    /// Drops the positions of one of [several](Self::several) sequences from `len` on, or all of them.
    /// Returns the number that is left.
    pub(crate) fn truncate_one(&mut self, sequence: usize, len: usize) -> usize {
        if len > 0 && self.batch().truncate_sequence(sequence, len) {
            return len;
        }
        self.release(sequence);
        0
    }

    /// Clears one of [several](Self::several) sequences and frees its memory.
    pub(crate) fn release(&mut self, sequence: usize) {
        if sequence == 0 {
            self.tokens.clear();
        }
        self.batch().release(sequence);
    }

    /// As [`BatchLm::begin_with`], for one of [several](Self::several) sequences.
    pub(crate) fn begin_with(&mut self, sequence: usize, prefix: &Prefix, len: usize) -> bool {
        if sequence == 0 {
            self.tokens.clear();
        }
        self.batch().begin_with(sequence, prefix, len)
    }
}

/// A model that was made elsewhere, whose texts are continued in batches.
#[derive(Debug)]
pub struct LoadedSequences {
    sequence: Sequence,
    waiter: Waiter,
}

impl LoadedSequences {
    /// Of a model whose passes run on these threads, and wait by `waiter`, whose clock counts.
    pub fn new(lm: Box<dyn CausalLm>, threads: &Threads, waiter: Waiter) -> LoadedSequences {
        LoadedSequences { sequence: Sequence::new(lm, threads.clone()), waiter }
    }

    /// Begins an empty batch of at most so many texts. Its pieces are tokens without text.
    pub fn batch(&mut self, texts: usize) -> crate::Result<Batch<'_>> {
        Batch::new(&mut self.sequence, None, Some(self.waiter.clone()), texts)
    }
}

fn speculative_lm(lm: &mut dyn CausalLm) -> &mut dyn SpeculativeLm {
    lm.as_speculative_lm().expect("the sequence goes back")
}

impl CausalLm for Sequence {
    fn vocab(&self) -> usize {
        self.lm.vocab()
    }

    fn limit(&self) -> usize {
        self.lm.limit()
    }

    fn len(&self) -> usize {
        self.lm.len()
    }

    fn clear(&mut self) {
        self.lm.clear();
        self.tokens.clear();
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        let Sequence { lm, threads, tokens: all, .. } = self;
        match threads.run(|| lm.observed(tokens, observer)) {
            Ok(logits) => {
                all.extend(tokens);
                Ok(logits)
            }
            Err(error) => {
                all.clear();
                Err(error)
            }
        }
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        let Sequence { lm, threads, tokens: all, .. } = self;
        let done = threads.run(|| lm.score(tokens, observer));
        match &done {
            Ok(()) => all.extend(tokens),
            Err(_) => all.clear(),
        }
        done
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence").field("threads", &self.threads).finish_non_exhaustive()
    }
}
