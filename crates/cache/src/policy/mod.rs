//! Eviction policies.

mod expected;
mod lru;
mod sharing;
mod spans;
mod trial;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use sws_format::{Pass, PieceId};

use crate::correction::Corrections;
use crate::history::HistoryShape;
use crate::{SavedError, SavedTensors};

pub use crate::choice::{ChoiceRow, RouterChoice};
pub use expected::{ExpectedUse, ExpertLayers};
pub use lru::Lru;
pub use sharing::SharedMisses;

/// The policies, by their names on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyKind {
    /// [`ExpectedUse`].
    #[default]
    Expected,
    /// [`Lru`].
    Lru,
}

/// The name of an unknown policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a policy; there are {names}", names = PolicyKind::ALL.map(PolicyKind::name).join(", "))]
pub struct UnknownPolicy(pub String);

impl PolicyKind {
    /// All policies.
    pub const ALL: [PolicyKind; 2] = [PolicyKind::Expected, PolicyKind::Lru];

    /// Name of the policy.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Expected => "expected",
            PolicyKind::Lru => "lru",
        }
    }

    /// Memory that corrections add to the policy for this many sequences of a model of this shape.
    pub fn bytes_of(
        self,
        corrections: &Corrections,
        shape: HistoryShape,
        sequences: usize,
    ) -> usize {
        match self {
            PolicyKind::Expected => ExpectedUse::bytes_of(corrections, shape, sequences),
            PolicyKind::Lru => 0,
        }
    }

    /// Creates the policy for a model with these layers.
    pub fn build(self, layers: ExpertLayers) -> Box<dyn Policy> {
        self.build_corrected(layers, Corrections::None)
    }

    /// Like [`build`](Self::build), with a correction, if the policy makes forecasts.
    pub fn build_corrected(
        self,
        layers: ExpertLayers,
        corrections: Corrections,
    ) -> Box<dyn Policy> {
        match self {
            PolicyKind::Expected => Box::new(ExpectedUse::corrected(layers, corrections)),
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

/// Picks the piece that a [`PredictiveCache`](crate::cache::PredictiveCache) evicts.
///
/// The cache reports its contents by slot number; the policy keeps whatever order it needs. A
/// policy never sees weights. The cache, not the policy, decides which pieces are evictable.
pub trait Policy: RouteLearner + UseForecast + fmt::Debug + Send {
    /// Name on the command line.
    fn name(&self) -> &'static str;

    /// A piece is now in `slot`, or being read into it.
    fn arrived(&mut self, slot: usize, piece: PieceId);

    /// The piece in `slot` is used.
    fn used(&mut self, slot: usize, piece: PieceId);

    /// The piece in `slot` has left the cache.
    fn left(&mut self, slot: usize, piece: PieceId);

    /// Returns the slot to evict, among those that are `evictable`.
    fn victim(&mut self, now: PieceId, evictable: &dyn Fn(usize) -> bool) -> Option<usize>;

    /// Adds the learned state to `to`, for the next start.
    fn save(&self, to: &mut SavedTensors) {
        let _ = to;
    }

    /// Restores the state that [`save`](Self::save) added.
    fn recall(&mut self, saved: &SavedTensors) -> Result<(), SavedError> {
        let _ = saved;
        Ok(())
    }

    /// Memory held, in bytes.
    fn bytes(&self) -> usize;
}

/// The part of a [`Policy`] that learns from the choices of routers. By default it does nothing.
pub trait RouteLearner {
    /// A pass begins; its routers have not chosen yet.
    fn begin(&mut self, pass: &Pass) {
        let _ = pass;
    }

    /// A router has chosen its experts.
    fn routed(&mut self, choice: &RouterChoice<'_>) {
        let _ = choice;
    }

    /// Elements of the hidden states that the policy uses; 0 if it uses none.
    fn hidden(&self) -> usize {
        0
    }

    /// Reports the hidden state from which the router of a layer has [chosen](Self::routed) for a sequence.
    fn on_router_state(&mut self, layer: u32, sequence: usize, state: &[f32]) {
        let _ = (layer, sequence, state);
    }

    /// Learns from the choices of a layer so far. Called after the misses of the last choice were
    /// demanded, so that they are read meanwhile.
    fn on_layer_demanded(&mut self, layer: u32) {
        let _ = layer;
    }
}

/// The part of a [`Policy`] that forecasts when pieces are used next, and accepts forecasts. By
/// default it does nothing.
pub trait UseForecast {
    /// Returns the `evictable` piece with the latest expected use, ignoring forecasts. The piece
    /// need not be in the cache. `None` from a policy that knows only pieces in the cache.
    fn least_urgent(
        &mut self,
        now: PieceId,
        evictable: &dyn Fn(PieceId) -> bool,
    ) -> Option<PieceId> {
        let _ = (now, evictable);
        None
    }

    /// True if the piece `old` is expected later than `new`, which will be used in this step with
    /// the given probability. A speculative read of `new` may then evict `old`.
    fn is_needed_later(
        &mut self,
        now: PieceId,
        old: PieceId,
        new: PieceId,
        probability: f32,
    ) -> bool {
        let _ = (now, old, new, probability);
        true
    }

    /// Sets the probability that the piece in `slot` is used in the next turn of its layer. Until
    /// its router has chosen, this forecast overrides other estimates.
    fn set_forecast(&mut self, slot: usize, piece: PieceId, probability: f32) {
        let _ = (slot, piece, probability);
    }

    /// Returns the probability that a piece is used within `steps` steps: 0.5 from a policy without
    /// an estimate.
    fn use_probability(&mut self, piece: PieceId, steps: usize) -> f32 {
        let _ = (piece, steps);
        0.5
    }

    /// Forecasts the misses of these sequences in a cache of `slots` slots, if each continues with
    /// its recent use of experts, one token at a time: in shared passes, and in turns of `turn`
    /// tokens. `None` from a policy without an estimate.
    fn shared_misses(
        &mut self,
        sequences: &[usize],
        slots: usize,
        turn: usize,
    ) -> Option<SharedMisses> {
        let _ = (sequences, slots, turn);
        None
    }
}
