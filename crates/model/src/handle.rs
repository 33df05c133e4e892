//! A model that is ready to run, whatever computes it: asked for what it can do, never for what it is.

use crate::forward::ForwardError;
use crate::observer::Observer;
use crate::spec::ModelSpec;

/// A model that is ready to run. Who needs a capability asks for it, and says in a sentence of his own
/// what cannot be done without; a capability that only some models have is one more method here that
/// answers None unless it is overridden.
///
/// ```
/// use sws_model::{ForwardError, ModelHandle};
///
/// fn likeliest(model: &mut dyn ModelHandle, text: &[u32]) -> Result<Option<usize>, ForwardError> {
///     let Some(lm) = model.as_causal_lm() else { return Ok(None) };
///     let logits = lm.prefill(text)?;
///     Ok(logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token))
/// }
/// ```
pub trait ModelHandle {
    /// What it computes.
    fn spec(&self) -> &ModelSpec;

    /// As a model that continues a text.
    fn as_causal_lm(&mut self) -> Option<&mut dyn CausalLm> {
        None
    }
}

/// Continues one sequence of tokens: each call goes on where the last one ended.
///
/// Tokens that cannot be taken are refused before any of them is processed. After any other error the
/// sequence has to be [cleared](Self::clear).
pub trait CausalLm: Send {
    /// How many logits there are for a position; token ids are below.
    fn vocab(&self) -> usize;

    /// The most positions that the sequence can have.
    fn limit(&self) -> usize;

    /// Positions in use.
    fn len(&self) -> usize;

    /// Begins a new sequence in place of this one.
    fn clear(&mut self);

    /// Continues the sequence, with somebody looking on; the logits (`vocab` of them) of what comes next.
    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError>;

    /// As [`observed`](Self::observed), with the logits of every position told to the observer.
    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError>;

    /// Continues the sequence; the logits (`vocab` of them) of what comes next.
    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], ForwardError> {
        self.observed(tokens, &mut ())
    }

    /// Continues the sequence by one token; the logits (`vocab` of them) of what comes next.
    fn decode(&mut self, token: u32) -> Result<&[f32], ForwardError> {
        self.observed(&[token], &mut ())
    }

    /// Whether nothing has been processed.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Refuses tokens that cannot continue a sequence of `used` positions: none at all, more than there is
/// room for with `limit` positions, or one that is not below `vocab`.
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
