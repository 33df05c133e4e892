//! Constraints on the tokens of a text.

use std::fmt;

/// Decides which tokens may continue a text.
///
/// A text calls [`mask`](Self::mask) before a token is chosen and [`take`](Self::take) after. Tokens that
/// are [`forced`](Self::forced) need no choice, so a text may take them at once and compute them in one
/// pass: each is the only one that `mask` would allow in its place.
pub trait Constraint: fmt::Debug + Send {
    /// Sets the logits of tokens that may not come next to -inf. NaN and +inf stay, as they are
    /// errors.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError>;

    /// Takes the next token.
    fn take(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Returns the tokens that must come next, as far as they are known; often none.
    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError>;

    /// True if nothing can follow.
    fn is_complete(&self) -> bool;
}

/// Restricts the tokens of texts: several may have the same structure, each by a constraint of its own.
pub trait TokenMask: fmt::Debug + Send + Sync {
    /// The constraint of a text that begins.
    fn begin(&self) -> Box<dyn Constraint>;
}

/// Failure of a constraint: one sentence with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);
