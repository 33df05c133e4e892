//! Constraints on the tokens of a text.

use std::fmt;

/// Decides which tokens may continue a text.
///
/// A text calls [`mask`](Self::mask) before a token is chosen and [`take`](Self::take) after.
/// [`forced`](Self::forced) tokens need no choice, because `mask` would allow no other token in
/// their place. A text may therefore take all of them at once, and compute them in one pass.
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

/// A constraint for new texts. Several texts may have the same structure, each with its own
/// [`Constraint`].
pub trait TokenMask: fmt::Debug + Send + Sync {
    /// The constraint of a new text.
    fn begin(&self) -> Box<dyn Constraint>;
}

/// Failure of a constraint: one sentence with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);
