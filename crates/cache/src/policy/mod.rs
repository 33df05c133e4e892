//! Which piece to give up.

mod expected;
mod lru;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use crate::{Saved, SavedError};
use sws_store::{Pass, PieceId};

pub use expected::{ExpectedUse, Layers};
pub use lru::Lru;

/// The experts that the router of a layer has chosen.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The pass; empty if its tokens are not known.
    pub pass: &'a Pass,
    /// The layer, counted among all layers.
    pub layer: u32,
    /// The experts: those of the first step, of the second, and so on. An expert may stand here
    /// several times.
    pub experts: &'a [u32],
    /// How many of them belong to one step. What a policy forecasts is the next step: for
    /// sequences that go on together it has a token of each, and all of `experts` are one step; in
    /// a prompt every token is a step.
    pub per_step: usize,
}

impl<'a> Choice<'a> {
    /// The experts of each step.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = &'a [u32]> {
        self.experts.chunks(self.per_step.max(1))
    }
}

/// The policies, by the names that they have on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyKind {
    /// [`ExpectedUse`].
    #[default]
    Expected,
    /// [`Lru`].
    Lru,
}

/// A word that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a policy; there are {names}", names = PolicyKind::ALL.map(PolicyKind::name).join(", "))]
pub struct UnknownPolicy(pub String);

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 2] = [PolicyKind::Expected, PolicyKind::Lru];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Expected => "expected",
            PolicyKind::Lru => "lru",
        }
    }

    /// The policy, for a model with these layers.
    pub fn build(self, layers: Layers) -> Box<dyn Policy> {
        match self {
            PolicyKind::Expected => Box::new(ExpectedUse::new(layers)),
            PolicyKind::Lru => Box::new(Lru::new()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = PolicyKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Decides which piece a [`PredictiveCache`](crate::cache::PredictiveCache) gives up.
///
/// The cache tells what it holds, by the number of the slot; the policy keeps what order it needs.
/// It never learns of weights and never decides what may not go: that is the cache's.
pub trait Policy: fmt::Debug + Send {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// A piece is now in `slot`, or being read into it.
    fn arrived(&mut self, slot: usize, piece: PieceId);

    /// The piece in `slot` is used.
    fn used(&mut self, slot: usize, piece: PieceId);

    /// The piece in `slot` is gone.
    fn left(&mut self, slot: usize, piece: PieceId);

    /// A pass begins; its routers have not selected yet.
    fn begin(&mut self, pass: &Pass) {
        let _ = pass;
    }

    /// A router has chosen.
    fn routed(&mut self, choice: &Choice<'_>) {
        let _ = choice;
    }

    /// The slot to empty among those that `may` go.
    fn victim(&mut self, now: PieceId, may: &dyn Fn(usize) -> bool) -> Option<usize>;

    /// Of the pieces that `may` go, in the cache or not, the one that is expected last by
    /// what is known without forecasts; none from a policy that knows only of pieces in the cache.
    fn last(&mut self, now: PieceId, may: &dyn Fn(PieceId) -> bool) -> Option<PieceId> {
        let _ = (now, may);
        None
    }

    /// Whether the piece `old` is expected later than `new`, which will be used in this step with
    /// that probability: a speculative read is allowed to push it out.
    fn later(&mut self, now: PieceId, old: PieceId, new: PieceId, probability: f32) -> bool {
        let _ = (now, old, new, probability);
        true
    }

    /// The piece in `slot` will be used when its layer comes next, with that probability: until its
    /// router has chosen that counts for more than what is known otherwise.
    fn foreseen(&mut self, slot: usize, piece: PieceId, probability: f32) {
        let _ = (slot, piece, probability);
    }

    /// How probably a piece is used within so many steps. One that has no opinion says as probably
    /// as not.
    fn within(&mut self, piece: PieceId, steps: usize) -> f32 {
        let _ = (piece, steps);
        0.5
    }

    /// Adds what has been learned, for the next start.
    fn save(&self, to: &mut Saved) {
        let _ = to;
    }

    /// Goes on from what [`save`](Self::save) added.
    fn recall(&mut self, saved: &Saved) -> Result<(), SavedError> {
        let _ = saved;
        Ok(())
    }

    /// Memory held, in bytes.
    fn bytes(&self) -> usize;
}
