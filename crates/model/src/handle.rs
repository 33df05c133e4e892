//! A model that is ready to run.

use crate::forward::ForwardError;
use crate::observer::Observer;

/// Continues one sequence of tokens: each call starts where the last one ended.
///
/// Invalid tokens are refused before any of them is processed. After any other error the sequence
/// has to be [cleared](Self::clear).
#[expect(clippy::len_without_is_empty, reason = "callers ask for the length alone")]
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

    /// Like [`observed`](Self::observed), but passes the logits of every position to the observer, or
    /// the final states if it [takes](Observer::takes_states) those.
    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError>;

    /// Continues the sequence; returns the `vocab` logits of the next token.
    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], ForwardError> {
        self.observed(tokens, &mut ())
    }

    /// Continues the sequence by one token; returns the `vocab` logits of the next token.
    fn decode(&mut self, token: u32) -> Result<&[f32], ForwardError> {
        self.observed(&[token], &mut ())
    }
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
