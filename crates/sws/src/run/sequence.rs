//! The sequences of a loaded model. The tokens of the first one are recorded, and passes run on the
//! thread pool.

use std::fmt;

use sws_engine::{SpeculativeWeightStreamer, Waiter};
use sws_model::{CausalLm, Chunk, ForwardError, Observer, Prefix, StepOutcome};

use crate::Threads;
use crate::speculative::SpeculativeDecoder;

/// The model that computes passes.
pub(crate) enum AnyLm {
    /// The engine. Its weights are in memory, or are read as they are needed.
    Streamer(Box<SpeculativeWeightStreamer>),
    /// Another backend, with one sequence.
    #[cfg_attr(not(feature = "candle"), expect(dead_code, reason = "candle is the only other one"))]
    Other(Box<dyn CausalLm>),
    /// A simulation without weights.
    Simulated(Box<dyn SimulatedLm>),
}

/// A simulated model of several sequences without a KV cache, to test the scheduling of texts. The
/// sequence of [`CausalLm`] has the number 0.
pub trait SimulatedLm: CausalLm {
    /// Adds an empty sequence and returns its number. `None` if there is no room for another.
    fn add_sequence(&mut self) -> Option<usize>;

    /// Number of positions of a sequence.
    fn sequence_len(&self, sequence: usize) -> usize;

    /// Empties a sequence.
    fn release(&mut self, sequence: usize);

    /// Maximum number of tokens that go through the layers in one pass.
    fn longest_pass(&self) -> usize;

    /// Continues several sequences in shared passes; see
    /// [`Sequences::step`](sws_model::Sequences::step).
    fn step(&mut self, chunks: &[Chunk<'_>], observer: &mut dyn Observer, step: &mut StepOutcome);
}

/// A model with its sequence, usable from any thread.
pub(crate) struct Sequence {
    pub(crate) lm: AnyLm,
    /// Number of logits per position, and the maximum number of positions.
    vocab: usize,
    limit: usize,
    threads: Threads,
    /// Tokens in the sequence; empty after a failed pass.
    tokens: Vec<u32>,
    /// Numbers of the other sequences.
    others: Vec<usize>,
    /// Speculative decoding; `None` to compute each token by itself.
    pub(crate) speculative: Option<SpeculativeDecoder>,
}

impl Sequence {
    pub(crate) fn new(lm: AnyLm, threads: Threads) -> Sequence {
        let one = lm.one();
        Sequence {
            vocab: one.vocab(),
            limit: one.limit(),
            lm,
            threads,
            tokens: Vec::new(),
            others: Vec::new(),
            speculative: None,
        }
    }

    /// Turns speculative decoding on or off.
    pub(crate) fn with_speculative(mut self, proposes: bool) -> Sequence {
        self.speculative = proposes.then(SpeculativeDecoder::default);
        self
    }

    /// Calls `ask` with the text including `token`, which is not in the sequence yet, and with the
    /// speculative decoder.
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

    /// Calls [`SpeculativeWeightStreamer::verify`].
    pub(crate) fn verify(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        let Sequence { lm, threads, tokens: all, .. } = self;
        let streamer = lm.verifier();
        let done = threads.run(|| streamer.verify(tokens, observer));
        match &done {
            Ok(()) => all.extend(tokens),
            Err(_) => all.clear(),
        }
        done
    }

    /// Calls [`SpeculativeWeightStreamer::accept`].
    pub(crate) fn accept(&mut self, len: usize) {
        self.lm.verifier().accept(len);
        self.tokens.truncate(len);
    }

    /// Calls [`SpeculativeWeightStreamer::draft_token`].
    pub(crate) fn draft_token(
        &mut self,
        token: u32,
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        let Sequence { lm, threads, tokens, .. } = self;
        let streamer = lm.verifier();
        let done = threads.run(|| streamer.draft_token(token, observer));
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
        let known = self.len() == self.tokens.len();
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
        match lm {
            AnyLm::Streamer(streamer) => streamer.share(),
            AnyLm::Simulated(_) => {}
            AnyLm::Other(_) => return None,
        }
        while others.len() + 1 < count {
            let added = match lm {
                AnyLm::Streamer(streamer) => streamer.add_sequence(),
                AnyLm::Simulated(simulated) => simulated.add_sequence(),
                AnyLm::Other(_) => None,
            };
            let Some(sequence) = added else { break };
            others.push(sequence);
        }
        Some([0].into_iter().chain(others.iter().copied()).take(count).collect())
    }

    /// Continues [several](Self::several) sequences in shared passes.
    ///
    /// # Panics
    ///
    /// If the model has only the first.
    pub(crate) fn step(
        &mut self,
        chunks: &[Chunk<'_>],
        observer: &mut dyn Observer,
        step: &mut StepOutcome,
    ) {
        let Sequence { lm, threads, .. } = self;
        threads.run(|| match lm {
            AnyLm::Streamer(streamer) => streamer.step(chunks, observer, step),
            AnyLm::Simulated(simulated) => simulated.step(chunks, observer, step),
            AnyLm::Other(_) => unreachable!("the model has one sequence"),
        });
    }

    /// Maximum number of tokens that go through the layers in one pass. A longer step takes several
    /// passes.
    pub(crate) fn longest_pass(&self) -> usize {
        match &self.lm {
            AnyLm::Streamer(streamer) => streamer.longest_pass(),
            AnyLm::Simulated(simulated) => simulated.longest_pass(),
            AnyLm::Other(_) => self.limit,
        }
    }

    /// Number of positions of one of [several](Self::several) sequences.
    pub(crate) fn len_of(&self, sequence: usize) -> usize {
        match &self.lm {
            AnyLm::Streamer(streamer) => streamer.state().len(sequence),
            AnyLm::Simulated(simulated) => simulated.sequence_len(sequence),
            AnyLm::Other(lm) => lm.len(),
        }
    }

    /// Restores one of [several](Self::several) sequences after a pass that failed in the middle.
    /// Either all of its positions stay, or none. Returns their number.
    pub(crate) fn settle(&mut self, sequence: usize) -> usize {
        let len = self.len_of(sequence);
        let is_whole = match &mut self.lm {
            AnyLm::Streamer(streamer) => len > 0 && streamer.truncate_sequence(sequence, len),
            AnyLm::Simulated(_) | AnyLm::Other(_) => true,
        };
        if is_whole {
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
        match &mut self.lm {
            AnyLm::Streamer(streamer) => streamer.release(sequence),
            AnyLm::Simulated(simulated) => simulated.release(sequence),
            AnyLm::Other(lm) => lm.clear(),
        }
    }

    /// A prefix with all positions of a sequence, sharing its memory until one of the two is
    /// written. `None` without a KV cache, or if a pass over the sequence failed in the middle.
    pub(crate) fn prefix(&mut self, sequence: usize) -> Option<Prefix> {
        self.lm.streamer()?.state().prefix(sequence)
    }

    /// Replaces one of [several](Self::several) sequences by the first `len` positions of a prefix. Returns
    /// false, and replaces nothing, if that is not possible.
    pub(crate) fn begin_with(&mut self, sequence: usize, prefix: &Prefix, len: usize) -> bool {
        if sequence == 0 {
            self.tokens.clear();
        }
        match self.lm.streamer() {
            Some(streamer) => streamer.begin_with(sequence, prefix, len),
            None => false,
        }
    }
}

impl AnyLm {
    /// The engine, if it computes the passes. No other model has a KV cache with shared prefixes,
    /// or verifies draft tokens.
    pub(crate) fn streamer(&mut self) -> Option<&mut SpeculativeWeightStreamer> {
        match self {
            AnyLm::Streamer(streamer) => Some(streamer),
            AnyLm::Other(_) | AnyLm::Simulated(_) => None,
        }
    }

    /// The engine, which verifies draft tokens.
    ///
    /// # Panics
    ///
    /// If another model computes the passes.
    pub(crate) fn verifier(&mut self) -> &mut SpeculativeWeightStreamer {
        self.streamer().expect("only the engine verifies draft tokens")
    }

    fn one(&self) -> &dyn CausalLm {
        match self {
            AnyLm::Streamer(streamer) => &**streamer,
            AnyLm::Other(lm) => &**lm,
            AnyLm::Simulated(simulated) => &**simulated,
        }
    }

    fn one_mut(&mut self) -> &mut dyn CausalLm {
        match self {
            AnyLm::Streamer(streamer) => &mut **streamer,
            AnyLm::Other(lm) => &mut **lm,
            AnyLm::Simulated(simulated) => &mut **simulated,
        }
    }
}

/// A model made elsewhere, whose texts are continued in batches.
#[derive(Debug)]
pub struct LoadedSequences {
    pub(crate) sequence: Sequence,
    pub(crate) waiter: Waiter,
}

impl LoadedSequences {
    /// Wraps a model whose passes run on these threads.
    pub fn new(mut streamer: SpeculativeWeightStreamer, threads: &Threads) -> LoadedSequences {
        let waiter = streamer.waiter();
        let lm = AnyLm::Streamer(Box::new(streamer));
        LoadedSequences { sequence: Sequence::new(lm, threads.clone()), waiter }
    }

    /// Wraps a simulation whose passes run on these threads. `waiter` has its clock.
    pub fn simulated(
        lm: Box<dyn SimulatedLm>,
        threads: &Threads,
        waiter: Waiter,
    ) -> LoadedSequences {
        let sequence = Sequence::new(AnyLm::Simulated(lm), threads.clone());
        LoadedSequences { sequence, waiter }
    }
}

impl CausalLm for Sequence {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn limit(&self) -> usize {
        self.limit
    }

    fn len(&self) -> usize {
        self.lm.one().len()
    }

    fn clear(&mut self) {
        self.lm.one_mut().clear();
        self.tokens.clear();
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        let Sequence { lm, threads, tokens: all, .. } = self;
        let lm = lm.one_mut();
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
        let lm = lm.one_mut();
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
