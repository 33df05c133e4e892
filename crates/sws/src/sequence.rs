//! The sequence of a loaded model. Its tokens are recorded, and its passes run on the thread pool.

use std::fmt;

use sws_model::{CausalLm, ForwardError, Observer};

use crate::Threads;

/// A model with its sequence, usable from any thread.
pub(crate) struct Sequence {
    lm: Box<dyn CausalLm>,
    threads: Threads,
    /// Tokens in the sequence; empty after a failed pass.
    tokens: Vec<u32>,
}

impl Sequence {
    pub(crate) fn new(lm: Box<dyn CausalLm>, threads: Threads) -> Sequence {
        Sequence { lm, threads, tokens: Vec::new() }
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
        let Sequence { lm, threads, tokens: all } = self;
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
        let Sequence { lm, threads, tokens: all } = self;
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
