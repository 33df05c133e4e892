//! Models that are ready to run, by what they can do: one sequence, draft tokens, several sequences.

use crate::forward::{Chunk, ForwardError};
use crate::observer::Observer;
use crate::prefix::Prefix;
use crate::sequences::StepOutcome;

/// Continues one sequence of tokens: each call starts where the last one ended.
///
/// Invalid tokens are refused before any of them is processed. After any other error the sequence
/// has to be [cleared](Self::clear).
pub trait CausalLm: Send {
    /// Number of logits per position; token ids are below it.
    fn vocab(&self) -> usize;

    /// The maximum number of positions in the sequence.
    fn limit(&self) -> usize;

    /// Positions in use.
    fn len(&self) -> usize;

    /// Starts a new sequence in place of this one.
    fn clear(&mut self);

    /// Continues the sequence and reports to `observer`; returns the `vocab` logits of the next
    /// token.
    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError>;

    /// Like [`observed`](Self::observed), but passes the logits of every position to the observer.
    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError>;

    /// Continues the sequence; returns the `vocab` logits of the next token.
    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], ForwardError> {
        self.observed(tokens, &mut ())
    }

    /// Continues the sequence by one token; returns the `vocab` logits of the next token.
    fn decode(&mut self, token: u32) -> Result<&[f32], ForwardError> {
        self.observed(&[token], &mut ())
    }

    /// True if no token has been processed.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the model as one of several sequences, if it can continue more than one.
    fn as_batch_lm(&mut self) -> Option<&mut dyn BatchLm> {
        None
    }

    /// Returns the model as one that verifies draft tokens, if its sequence can be cut anywhere and
    /// there is room for the logits of several positions.
    fn as_speculative_lm(&mut self) -> Option<&mut dyn SpeculativeLm> {
        None
    }
}

/// Continues the sequence by several draft tokens: one pass computes all of them, and
/// those that turn out wrong are dropped.
///
/// The bits of a pass do not depend on its number of tokens, so the logits behind each token are those
/// of a pass over that token alone, as long as the tokens before it are right.
pub trait SpeculativeLm: CausalLm {
    /// The maximum number of tokens of a [`verify`](Self::verify), two or more.
    fn verify_len(&self) -> usize;

    /// Continues the sequence by all tokens in one pass, and computes the [logits](Self::verified_logits)
    /// behind each. What the pass tells of the use of experts counts once it is
    /// [accepted](Self::accept), as far as tokens are kept. Nothing else may come before that.
    fn verify(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError>;

    /// The `vocab` logits behind a token of the last [`verify`](Self::verify), which the caller may
    /// overwrite.
    ///
    /// # Panics
    ///
    /// If it had no such token, or another pass came since.
    fn verified_logits(&mut self, token: usize) -> &mut [f32];

    /// Keeps the first `len` positions of the sequence, and drops those of tokens that were
    /// [drafted](Self::draft_token), or verified and wrong.
    fn accept(&mut self, len: usize);

    /// True if stand-ins of all experts are in memory.
    fn can_draft(&self) -> bool {
        false
    }

    /// Continues the sequence by a token that is computed on stand-ins, without a read. Returns the
    /// `vocab` logits of the next token, which are not exact. The position has to be
    /// [dropped](Self::accept) before the sequence is continued otherwise.
    fn draft_token(
        &mut self,
        token: u32,
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.observed(&[token], observer)
    }
}

/// Continues several sequences in shared passes; see [`Sequences`](crate::Sequences). The sequence of
/// [`CausalLm`] has the number 0.
///
/// What is not required is for models with a KV cache, whose memory sequences and prefixes share: the streamer.
/// A simulated model has none.
pub trait BatchLm: CausalLm {
    /// Adds an empty sequence and returns its number. `None` if there is no room for another.
    fn add_sequence(&mut self) -> Option<usize>;

    /// Drops the positions of a sequence from `len` on. Returns false, and drops nothing, if that is not
    /// possible; see [`Sequences::truncate`](crate::Sequences::truncate).
    fn truncate_sequence(&mut self, sequence: usize, len: usize) -> bool;

    /// Number of positions of a sequence.
    fn sequence_len(&self, sequence: usize) -> usize;

    /// Lets sequences share pages with prefixes from now on, if their memory was laid out
    /// for one sequence. All of them are empty afterwards.
    fn share(&mut self) {}

    /// The positions of a sequence apart from it, in the same memory until one of the two writes.
    /// `None` if a pass over the sequence failed in the middle.
    fn prefix(&self, sequence: usize) -> Option<Prefix> {
        let _ = sequence;
        None
    }

    /// A prefix without positions, to be filled from bytes. `None` without a KV cache.
    fn empty_prefix(&self) -> Option<Prefix> {
        None
    }

    /// Replaces a sequence by the first `len` positions of a prefix. Returns false, and replaces
    /// nothing, if that is not possible; see [`goes_back`](Self::goes_back).
    fn begin_with(&mut self, sequence: usize, prefix: &Prefix, len: usize) -> bool {
        let _ = (sequence, prefix, len);
        false
    }

    /// Empties a sequence and frees its memory.
    fn release(&mut self, sequence: usize);

    /// True if a sequence, and a prefix, can be cut at any length. With recurrent layers or windows
    /// they can only be continued from where they are.
    fn goes_back(&self) -> bool {
        true
    }

    /// Bytes that there is room for, for all sequences and prefixes together.
    fn room(&self) -> u64 {
        u64::MAX
    }

    /// Bytes that so many more tokens of sequences take, with copies of memory that is shared.
    fn growth(&self, parts: &[(usize, usize)]) -> u64 {
        let _ = parts;
        0
    }

    /// Bytes held by all sequences and these prefixes. Pages that several share count once.
    fn held(&self, prefixes: &mut dyn Iterator<Item = &Prefix>) -> u64 {
        let _ = prefixes;
        0
    }

    /// Says how many bytes of [`room`](Self::room) nothing needs until the next call; `None` if nothing is kept
    /// beside the sequences from now on. Returns the bytes of experts in memory, if experts get such bytes,
    /// and otherwise 0.
    fn lend_context(&mut self, idle: Option<u64>) -> u64 {
        let _ = idle;
        0
    }

    /// Says that no text has structured output from now on, so that experts get the memory that was planned
    /// for structured output, or that some may have one, for which the memory is free when this returns.
    fn lend_structured(&mut self, is_idle: bool) {
        let _ = is_idle;
    }

    /// Forecasts what a token reads if these sequences go on, one token of each at a time: in shared
    /// passes, and in turns of so many tokens. `None` without an estimate, as where nothing is read.
    fn expected_reads(&mut self, sequences: &[usize], turn: usize) -> Option<ExpectedReads> {
        let _ = (sequences, turn);
        None
    }

    /// Tokens that go through the layers in one pass. A step of more takes several.
    fn longest_pass(&self) -> usize;

    /// Continues several sequences in shared passes, in which each expert is read once for all of
    /// them; see [`Sequences::step`](crate::Sequences::step).
    fn step(&mut self, chunks: &[Chunk<'_>], observer: &mut dyn Observer, step: &mut StepOutcome);
}

/// A forecast of the bytes of experts that a token reads, by the way in which sequences share a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpectedReads {
    /// In passes over all sequences.
    pub together: f64,
    /// In turns of one sequence after the other.
    pub in_turns: f64,
}

/// Returns an error for tokens that cannot continue a sequence of `used` positions: an empty slice,
/// more tokens than fit within `limit` positions, or a token that is not below `vocab`.
pub fn check_tokens(
    tokens: &[u32],
    used: usize,
    limit: usize,
    vocab: usize,
) -> Result<(), ForwardError> {
    if tokens.is_empty() {
        return Err(ForwardError::NoTokens);
    }
    if tokens.len() > limit.saturating_sub(used) {
        return Err(ForwardError::ContextFull { used, asked: tokens.len(), limit });
    }
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(&token) => Err(ForwardError::UnknownToken { token, last: vocab - 1 }),
        None => Ok(()),
    }
}
