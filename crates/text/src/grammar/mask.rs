//! A compiled structure, and the current position in it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::{Constraint, ConstraintError, TokenMask};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::bounds::sentence;

/// A compiled structure, at the beginning of a text.
pub struct Grammar {
    matcher: Matcher,
    /// Tokens that end a text.
    ends: Arc<[u32]>,
    /// True if these tokens may end the text.
    may_end: bool,
    /// Tokens that must come next.
    forced: VecDeque<u32>,
}

impl Grammar {
    /// Bytes of a structure for which one unit of memory is reserved, and bytes of a unit. That
    /// covers the heap during and after compilation.
    pub const UNIT: [usize; 2] = [4 << 10, 2 << 20];
    /// Additional heap bytes of each structured text.
    pub const WRITTEN: u64 = 16 << 20;

    pub(crate) fn new(matcher: Matcher, ends: Arc<[u32]>) -> Grammar {
        Grammar { matcher, ends, may_end: true, forced: VecDeque::new() }
    }

    /// Lets a text continue as long as possible, ignoring tokens that would end it.
    pub fn without_ends(mut self) -> Grammar {
        self.may_end = false;
        self
    }

    /// A copy of the structure at the same position.
    pub fn copy(&self) -> Grammar {
        Grammar {
            matcher: self.matcher.deep_clone(),
            ends: Arc::clone(&self.ends),
            may_end: self.may_end,
            forced: self.forced.clone(),
        }
    }

    /// Tokens that end a text.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Fails if no token can come next.
    pub(crate) fn check(&mut self) -> Result<(), ConstraintError> {
        self.allowed().map(|_| ())
    }

    /// The tokens that may come next: a single token if it is forced, otherwise a set.
    pub(crate) fn allowed(&mut self) -> Result<AllowedTokens, ConstraintError> {
        self.look_ahead()?;
        if let Some(&token) = self.forced.front() {
            return Ok(AllowedTokens::One(token));
        }
        let mut set = self.matcher.compute_mask().map_err(|e| failure(&e.to_string()))?;
        if !self.may_end {
            for &end in self.ends.iter() {
                set.disallow_token(end);
            }
        }
        match set.is_zero() {
            true => Err(failure("no token fits")),
            false => Ok(AllowedTokens::Set(set)),
        }
    }

    /// Finds the forced tokens, once those found earlier were taken. The result does not depend on
    /// whether a text takes them at once or one by one.
    fn look_ahead(&mut self) -> Result<(), ConstraintError> {
        if self.forced.is_empty() && !self.is_complete() {
            self.forced = self.matcher.compute_ff_tokens().into();
            if let Some(error) = self.matcher.get_error() {
                return Err(failure(&error));
            }
        }
        Ok(())
    }
}

/// Tokens that may come next.
pub(crate) enum AllowedTokens {
    One(u32),
    Set(SimpleVob),
}

impl AllowedTokens {
    pub(crate) fn has(&self, token: u32) -> bool {
        match self {
            AllowedTokens::One(one) => *one == token,
            AllowedTokens::Set(set) => (token as usize) < set.len() && set.is_allowed(token),
        }
    }
}

/// Rules out the tokens that may not come next.
pub(crate) fn restrict(logits: &mut [f32], may_come: impl Fn(u32) -> bool) {
    for (token, logit) in (0..).zip(logits) {
        if *logit < f32::INFINITY && !may_come(token) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

impl Constraint for Grammar {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let allowed = self.allowed()?;
        restrict(logits, |token| allowed.has(token));
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        if let Some(next) = self.forced.pop_front()
            && next != token
        {
            return Err(failure("another token had to come"));
        }
        self.matcher.consume_token(token).map_err(|e| failure(&e.to_string()))
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        self.look_ahead()?;
        Ok(self.forced.iter().copied().collect())
    }

    fn is_complete(&self) -> bool {
        self.forced.is_empty() && self.matcher.is_stopped()
    }
}

impl TokenMask for Grammar {
    fn begin(&self) -> Box<dyn Constraint> {
        Box::new(self.copy())
    }
}

fn failure(why: &str) -> ConstraintError {
    ConstraintError(format!(
        "the structure of the text cannot be kept ({}); simplify the schema or the grammar",
        sentence(why)
    ))
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("forced", &self.forced).finish_non_exhaustive()
    }
}
