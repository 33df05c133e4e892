//! Forecasts of the experts that the next layers will need, and the trait of their sources.

use std::fmt;

use sws_format::{Pass, PieceId, PieceKind};

use sws_cache::{SavedError, SavedTensors};

/// A forecast for some upcoming layers, with the pieces to read.
#[derive(Clone, Debug, Default)]
pub struct ReassemblyBlueprint {
    /// The layers, in execution order.
    pub layers: Vec<LayerBlueprint>,
    /// Pieces at least as probable as the threshold, worth prefetching. In execution order; within
    /// a layer the most probable first.
    pub high_priority_pieces: Vec<PieceId>,
    /// The other selected pieces, worth a cheaper stand-in or nothing.
    pub low_priority_pieces: Vec<PieceId>,
    /// Layers left over from a longer earlier forecast, kept for their memory.
    spare: Vec<LayerBlueprint>,
}

/// The forecast for one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerBlueprint {
    /// The number of the layer, counting layers without experts.
    pub layer_idx: usize,
    /// For each expert, the probability that a token of the pass chooses it.
    pub expert_probs: Vec<f32>,
    /// The experts probable enough to list, the most probable first.
    pub selected_experts: Vec<u32>,
}

impl ReassemblyBlueprint {
    /// Splits the selected experts of the layers at `threshold`.
    pub fn new(layers: &[LayerBlueprint], threshold: f32) -> ReassemblyBlueprint {
        let mut blueprint = ReassemblyBlueprint::default();
        blueprint.plan(layers, threshold);
        blueprint
    }

    /// Like [`new`](Self::new), reusing the memory of this blueprint.
    pub fn plan(&mut self, layers: &[LayerBlueprint], threshold: f32) {
        self.high_priority_pieces.clear();
        self.low_priority_pieces.clear();
        while self.layers.len() > layers.len() {
            self.spare.extend(self.layers.pop());
        }
        while self.layers.len() < layers.len() {
            self.layers.push(self.spare.pop().unwrap_or_default());
        }
        for (to, layer) in self.layers.iter_mut().zip(layers) {
            to.layer_idx = layer.layer_idx;
            to.expert_probs.clone_from(&layer.expert_probs);
            to.selected_experts.clone_from(&layer.selected_experts);
            for &expert in &layer.selected_experts {
                let probability = layer.expert_probs.get(expert as usize).copied();
                let list = match probability.unwrap_or(0.0) >= threshold {
                    true => &mut self.high_priority_pieces,
                    false => &mut self.low_priority_pieces,
                };
                list.push(PieceId::expert(layer.layer_idx as u32, expert));
            }
        }
    }

    /// The probability of an expert; 0 for any other piece, and for experts without a forecast.
    pub fn probability(&self, piece: PieceId) -> f32 {
        let PieceKind::Expert(expert) = piece.kind() else { return 0.0 };
        let layer = self.layers.iter().find(|l| piece.layer() == Some(l.layer_idx as u32));
        layer.and_then(|l| l.expert_probs.get(expert as usize).copied()).unwrap_or(0.0)
    }
}

/// Forecasts which experts will be needed. Forecasts never change the result of a pass: they only
/// cause earlier reads.
///
/// A pass [begins](Self::begin) with its tokens. Each layer then reports three things: the state
/// [`entering`](Self::entering) it, the selection of its router ([`adapt`](Self::adapt)), and last
/// the state that the router has seen ([`attended`](Self::attended)). A pass may end anywhere; the
/// next begins with its tokens.
///
/// A forecast holds until there is another for the same layer, or the layer's router has chosen.
pub trait Draft: fmt::Debug + Send {
    /// Starts a pass.
    fn begin(&mut self, pass: &Pass) {
        let _ = pass;
    }

    /// Returns forecasts for a layer that `hidden` [tokens, hidden] is about to enter, and for the
    /// layers after it, in order. With `None`, earlier forecasts remain valid.
    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let _ = (layer, hidden, gates);
        None
    }

    /// Returns forecasts for later layers from `state` [tokens, hidden], the output of the layer's
    /// attention and shared expert. The outputs of the other experts are not included yet.
    fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let _ = (layer, state, gates);
        None
    }

    /// Bytes of memory that the draft takes, or will take.
    fn bytes(&self) -> usize {
        0
    }

    /// Adds the learned state of the draft to `to`, for the next start.
    fn save(&self, to: &mut SavedTensors) {
        let _ = to;
    }

    /// Restores what [`save`](Self::save) added, if anything. On error the draft is unchanged.
    fn recall(&mut self, saved: &SavedTensors) -> Result<(), SavedError> {
        let _ = saved;
        Ok(())
    }

    /// Learns from the choice of a layer's router: `top_k` experts for each token in turn, the most
    /// probable first.
    fn adapt(&mut self, layer: usize, choices: &[u32], top_k: usize) {
        let _ = (layer, choices, top_k);
    }
}

/// The routers of a model, lent to a draft by the caller that holds them in memory.
pub trait Gates {
    /// Writes to `logits` [tokens, experts] the output of a layer's router for `state` [tokens,
    /// hidden], as if it were the output of the layer's attention. Returns false if the router is
    /// not in memory, or the layer has none.
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool;
}

/// No routers in memory.
impl Gates for () {
    fn logits(&mut self, _: usize, _: &[f32], _: &mut [f32]) -> bool {
        false
    }
}

/// A draft without forecasts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDraft;

impl Draft for NoDraft {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_split_at_the_threshold() {
        let layer = |layer_idx, probs: &[f32], selected: &[u32]| LayerBlueprint {
            layer_idx,
            expert_probs: probs.to_vec(),
            selected_experts: selected.to_vec(),
        };
        let layers = vec![layer(3, &[0.2, 0.9, 0.5], &[1, 2, 0]), layer(4, &[0.7, 0.1], &[0, 9])];
        let blueprint = ReassemblyBlueprint::new(&layers, 0.5);
        let names = |ids: &[PieceId]| ids.iter().map(PieceId::to_string).collect::<Vec<_>>();
        let high = names(&blueprint.high_priority_pieces);
        assert_eq!(high, ["layer_3/expert_1", "layer_3/expert_2", "layer_4/expert_0"]);
        let low = names(&blueprint.low_priority_pieces);
        assert_eq!(low, ["layer_3/expert_0", "layer_4/expert_9"]);
    }
}
