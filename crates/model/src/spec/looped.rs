//! Layers that a pass visits several times.

use super::{LayerSpec, ModelSpec, MoeSpec};

/// Layers that a pass visits several times, with the same weights. The layers before them are
/// visited once before all rounds, those behind them once after the last. Each visit has keys and
/// values of its own.
///
/// Each round but the first begins with the state from which the first began. Its branches read
/// their inputs together with messages: mixes of the states that the previous round has kept, and of
/// the one at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopSpec {
    /// The first of the layers.
    pub first: usize,
    /// The layer behind the last of them.
    pub end: usize,
    /// Number of rounds.
    pub rounds: usize,
    /// Elements of the latent of the gates of messages.
    pub rank: usize,
}

impl LoopSpec {
    /// Number of the layers.
    pub const fn layers(&self) -> usize {
        self.end - self.first
    }

    /// Number of visits in a pass beyond one for each layer.
    pub(crate) const fn more(&self) -> usize {
        (self.rounds - 1) * self.layers()
    }
}

impl ModelSpec {
    /// Number of visits of layers in a pass: more than layers if it visits some several times.
    pub fn visits(&self) -> usize {
        self.layers.len() + self.looped.map_or(0, |of| of.more())
    }

    /// The layer of a visit.
    pub fn layer_of(&self, visit: usize) -> usize {
        match self.looped {
            Some(of) if visit >= of.end + of.more() => visit - of.more(),
            Some(of) if visit >= of.end => of.first + (visit - of.first) % of.layers(),
            _ => visit,
        }
    }

    /// The layers in the order of a pass: those that it visits several times come as often.
    pub fn in_order(&self) -> impl DoubleEndedIterator<Item = &LayerSpec> {
        (0..self.visits()).map(|visit| &self.layers[self.layer_of(visit)])
    }

    /// Number of states kept in a round of these layers.
    pub(crate) fn kept_in(&self, of: LoopSpec) -> usize {
        self.kept_before(of.end) - self.kept_before(of.first)
    }

    /// The mixtures of experts in the order of a pass.
    pub fn routings(&self) -> impl Iterator<Item = &MoeSpec> {
        self.in_order().filter_map(LayerSpec::moe)
    }

    /// The mixtures of experts of visits beyond the first of each layer.
    pub fn routings_again(&self) -> impl Iterator<Item = &MoeSpec> {
        let again = self.looped.into_iter().flat_map(|of| of.end..of.end + of.more());
        again.filter_map(|visit| self.layers[self.layer_of(visit)].moe())
    }

    /// Number of visits of a layer in a pass.
    pub fn times(&self, layer: usize) -> usize {
        let again = self.looped.filter(|of| (of.first..of.end).contains(&layer));
        again.map_or(1, |of| of.rounds)
    }

    /// The layers that a pass visits several times, if this is a visit in a later round.
    pub(crate) fn round_of(&self, visit: usize) -> Option<LoopSpec> {
        self.looped.filter(|of| (of.end..of.end + of.more()).contains(&visit))
    }
}
