//! The sequences of a loaded model. Tokens of the first are recorded, and passes run on the thread
//! pool.

use std::fmt;

use sws_engine::Waiter;
use sws_model::{
    BatchLm, CausalLm, Chunk, ExpectedReads, ForwardError, Observer, Prefix, SpeculativeLm,
    StepOutcome,
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
        let Sequence { lm, threads, .. } = self;
        threads.run(|| batch(&mut **lm).step(chunks, observer, step));
    }

    /// Forwards to [`BatchLm::longest_pass`].
    pub(crate) fn longest_pass(&mut self) -> usize {
        batch(&mut *self.lm).longest_pass()
    }

    /// Number of positions of one of [several](Self::several) sequences.
    pub(crate) fn len_of(&mut self, sequence: usize) -> usize {
        batch(&mut *self.lm).sequence_len(sequence)
    }

    /// Drops the positions of one of [several](Self::several) sequences from `len` on, or all of them.
    /// Returns the number that is left.
    pub(crate) fn truncate_one(&mut self, sequence: usize, len: usize) -> usize {
        if len > 0 && batch(&mut *self.lm).truncate_sequence(sequence, len) {
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
        batch(&mut *self.lm).release(sequence);
    }

    /// As [`BatchLm::begin_with`].
    pub(crate) fn begin_with(&mut self, sequence: usize, prefix: &Prefix, len: usize) -> bool {
        if sequence == 0 {
            self.tokens.clear();
        }
        batch(&mut *self.lm).begin_with(sequence, prefix, len)
    }

    /// Forwards to [`BatchLm::expected_reads`].
    pub(crate) fn expected_reads(
        &mut self,
        sequences: &[usize],
        turn: usize,
    ) -> Option<ExpectedReads> {
        batch(&mut *self.lm).expected_reads(sequences, turn)
    }

    /// As [`BatchLm::prefix`].
    pub(crate) fn prefix(&mut self, sequence: usize) -> Option<Prefix> {
        batch(&mut *self.lm).prefix(sequence)
    }

    /// As [`BatchLm::empty_prefix`].
    pub(crate) fn empty_prefix(&mut self) -> Prefix {
        batch(&mut *self.lm).empty_prefix()
    }

    /// As [`BatchLm::goes_back`].
    pub(crate) fn goes_back(&mut self) -> bool {
        batch(&mut *self.lm).goes_back()
    }

    /// As [`BatchLm::room`].
    pub(crate) fn room(&mut self) -> u64 {
        batch(&mut *self.lm).room()
    }

    /// As [`BatchLm::growth`].
    pub(crate) fn growth(&mut self, parts: &[(usize, usize)]) -> u64 {
        batch(&mut *self.lm).growth(parts)
    }

    /// As [`BatchLm::lend_context`].
    pub(crate) fn lend_context(&mut self, idle: Option<u64>) -> u64 {
        batch(&mut *self.lm).lend_context(idle)
    }

    /// As [`BatchLm::lend_structured`].
    pub(crate) fn lend_structured(&mut self, is_idle: bool) {
        batch(&mut *self.lm).lend_structured(is_idle);
    }

    /// As [`BatchLm::held`].
    pub(crate) fn held(&mut self, prefixes: &mut dyn Iterator<Item = &Prefix>) -> u64 {
        batch(&mut *self.lm).held(prefixes)
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

fn batch(lm: &mut dyn CausalLm) -> &mut dyn BatchLm {
    lm.as_batch_lm().expect("there are sequences beside the first")
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
