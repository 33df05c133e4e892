//! Forecasts of the experts that the next layers will need, and the trait that makes them.

use std::fmt;

use sws_store::{Pass, PieceId, PieceKind};

use sws_cache::{Saved, SavedError};

/// A forecast for some upcoming layers, with the pieces to read for them.
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

    /// As [`new`](Self::new), reusing the memory of this blueprint.
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

    /// Returns forecasts for a layer that `hidden` [tokens, hidden] is about to enter and for the
    /// layers after it, in order. `None` leaves the earlier forecasts in force.
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
    /// attention and its shared expert. Its other experts are yet to be added.
    fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let _ = (layer, state, gates);
        None
    }

    /// Bytes of memory it takes, or will take.
    fn bytes(&self) -> usize {
        0
    }

    /// Adds what it has learned about the model to `to`, for the next start.
    fn save(&self, to: &mut Saved) {
        let _ = to;
    }

    /// Restores what [`save`](Self::save) added, if anything. On error the draft is unchanged.
    fn recall(&mut self, saved: &Saved) -> Result<(), SavedError> {
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

/// A draft that replays a recorded run. It forecasts for each pass exactly the experts needed, or
/// only experts not needed. These are the best and the worst possible drafts, for tests of
/// streaming.
///
/// It follows one sequence from its beginning. Past the end of the record it selects no experts.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The numbers of the layers with experts.
    layers: Vec<usize>,
    experts: usize,
    top_k: usize,
    /// [tokens, layers, top-k]
    ids: Vec<u16>,
    lies: bool,
    /// Tokens of all passes begun so far.
    begun: usize,
    /// The latest forecast.
    said: Vec<LayerBlueprint>,
}

impl Recorded {
    /// A perfect forecast: the experts `ids` [tokens, layers, top-k] of the layers numbered
    /// `layers`, each of which has `experts`.
    ///
    /// # Panics
    ///
    /// If `top_k` is 0 while there are ids, or an id is no expert.
    pub fn oracle(layers: Vec<usize>, experts: usize, top_k: usize, ids: Vec<u16>) -> Recorded {
        assert!(top_k > 0 || ids.is_empty(), "tokens that choose no experts");
        assert!(ids.iter().all(|&id| usize::from(id) < experts), "an id that is no expert");
        let (begun, said) = Default::default();
        Recorded { layers, experts, top_k, ids, lies: false, begun, said }
    }

    /// Makes every forecast wrong, with the same confidence: as many experts as will be used, none
    /// of which is.
    pub fn adversarial(self) -> Recorded {
        Recorded { lies: true, ..self }
    }

    /// Marks the experts that `tokens` tokens from `first` on use in a layer. `place` is the index
    /// of the layer among those with experts.
    fn used(&self, place: usize, first: usize, tokens: usize) -> Vec<bool> {
        let mut used = vec![false; self.experts];
        let row = self.layers.len() * self.top_k;
        for token in self.ids.chunks_exact(row.max(1)).skip(first).take(tokens) {
            for &id in &token[place * self.top_k..][..self.top_k] {
                used[usize::from(id)] = true;
            }
        }
        used
    }

    fn layer(&self, place: usize, first: usize, tokens: usize) -> LayerBlueprint {
        let used = self.used(place, first, tokens);
        let count = used.iter().filter(|&&used| used).count();
        let named = (0..self.experts).filter(|&expert| used[expert] != self.lies);
        let selected: Vec<u32> = named.take(count).map(|expert| expert as u32).collect();
        let mut probs = vec![0.0; self.experts];
        selected.iter().for_each(|&expert| probs[expert as usize] = 1.0);
        let layer_idx = self.layers[place];
        LayerBlueprint { layer_idx, expert_probs: probs, selected_experts: selected }
    }
}

impl Draft for Recorded {
    fn begin(&mut self, pass: &Pass) {
        let (first, all) = (self.begun, 0..self.layers.len());
        self.begun += pass.len();
        self.said = all.map(|place| self.layer(place, first, pass.len())).collect();
    }

    fn entering(
        &mut self,
        layer: usize,
        _: &[f32],
        _: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        (layer == 0).then_some(&self.said)
    }
}

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

    #[test]
    fn recorded_draft_selects_used_or_unused_experts() {
        // Three tokens, two layers, two of four experts each.
        let ids = vec![0, 1, 2, 3, 1, 2, 2, 3, 3, 0, 0, 1];
        let truth = Recorded::oracle(vec![0, 2], 4, 2, ids);
        /// Tokens of a pass, and the experts selected for the layers 0 and 2.
        type Named = (usize, [&'static [u32]; 2]);
        let cases: [(_, &[Named]); 2] = [
            (truth.clone(), &[(2, [&[0, 1, 2], &[2, 3]]), (1, [&[0, 3], &[0, 1]])]),
            (truth.adversarial(), &[(2, [&[3], &[0, 1]]), (1, [&[1, 2], &[2, 3]])]),
        ];
        for (mut draft, passes) in cases {
            for (tokens, expected) in passes {
                draft.begin(&Pass::single(0, &vec![7; *tokens]));
                let said = draft.entering(0, &[], &mut ()).unwrap();
                let named = said.iter().map(|layer| &layer.selected_experts[..]);
                assert!(named.eq(expected.iter().copied()), "{said:?}");
                assert_eq!(draft.entering(2, &[], &mut ()), None);
            }
            draft.begin(&Pass::single(0, &[7]));
            let beyond = draft.entering(0, &[], &mut ()).unwrap();
            assert!(beyond.iter().all(|layer| layer.selected_experts.is_empty()), "{beyond:?}");
        }
    }
}
