//! What a draft says: which experts the next layers will need.

use std::fmt;

use sws_store::{Pass, PieceId, PieceKind};

use sws_cache::{Saved, SavedError};

/// A forecast for some layers to come, and what follows from it for whoever assembles weights.
#[derive(Clone, Debug, Default)]
pub struct ReassemblyBlueprint {
    /// The layers, in the order in which they come.
    pub layers: Vec<LayerBlueprint>,
    /// Pieces at least as probable as the threshold: worth reading before they are asked for. In
    /// the order in which they come, within a layer the most probable first.
    pub high_priority_pieces: Vec<PieceId>,
    /// The other pieces that were selected: worth something smaller, or nothing.
    pub low_priority_pieces: Vec<PieceId>,
    /// Memory of layers that an earlier forecast had more.
    spare: Vec<LayerBlueprint>,
}

/// The forecast for one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerBlueprint {
    /// The number of the layer, those without experts counted.
    pub layer_idx: usize,
    /// The probability that a token of the pass chooses it, for each expert.
    pub expert_probs: Vec<f32>,
    /// The experts that are likely enough to name, the most probable first.
    pub selected_experts: Vec<u32>,
}

impl ReassemblyBlueprint {
    /// Splits what the layers have selected at `threshold`.
    pub fn new(layers: &[LayerBlueprint], threshold: f32) -> ReassemblyBlueprint {
        let mut blueprint = ReassemblyBlueprint::default();
        blueprint.plan(layers, threshold);
        blueprint
    }

    /// As [`new`](Self::new), in the memory that this one has.
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

    /// The probability of an expert; 0 of what it says nothing about.
    pub fn probability(&self, piece: PieceId) -> f32 {
        let PieceKind::Expert(expert) = piece.kind() else { return 0.0 };
        let layer = self.layers.iter().find(|l| piece.layer() == Some(l.layer_idx as u32));
        layer.and_then(|l| l.expert_probs.get(expert as usize).copied()).unwrap_or(0.0)
    }
}

/// Forecasts which experts will be needed. Whatever it says, the result of a pass is the same: a
/// forecast is only ever a reason to read earlier.
///
/// A pass [begins](Self::begin) with its tokens. Each layer gives the state [`entering`](Self::entering) it;
/// once the router has selected, its selection ([`adapt`](Self::adapt)); and last the state that the router
/// has seen ([`attended`](Self::attended)). A pass may end anywhere; the next begins with its tokens.
///
/// A forecast stands until there is another for the same layer, or the layer's router has chosen.
pub trait Draft: fmt::Debug + Send {
    /// A pass begins.
    fn begin(&mut self, pass: &Pass) {
        let _ = pass;
    }

    /// `hidden` [tokens, hidden] is about to enter a layer: what this one and those after it will
    /// need, in their order. None: nothing to add to what was said before.
    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let _ = (layer, hidden, gates);
        None
    }

    /// The layer's attention and its shared expert have left `state` [tokens, hidden]; its other
    /// experts are yet to be added: what later layers will need.
    fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let _ = (layer, state, gates);
        None
    }

    /// Memory that it takes, or will take.
    fn bytes(&self) -> usize {
        0
    }

    /// What has been learned of the model, for its next start.
    fn save(&self, to: &mut Saved) {
        let _ = to;
    }

    /// Goes on from what [`save`](Self::save) added, if it did. After an error this is as it was.
    fn recall(&mut self, saved: &Saved) -> Result<(), SavedError> {
        let _ = saved;
        Ok(())
    }

    /// The router of a layer has chosen these experts, `top_k` for each token in turn, the most
    /// probable first.
    fn adapt(&mut self, layer: usize, choices: &[u32], top_k: usize) {
        let _ = (layer, choices, top_k);
    }
}

/// The routers of a model, lent to a draft by whoever has them in memory.
pub trait Gates {
    /// Writes to `logits` [tokens, experts] what the router of a layer would say if `state` [tokens,
    /// hidden] were what its attention has left. False if it is not in memory, or there is none.
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool;
}

/// No router is in memory.
impl Gates for () {
    fn logits(&mut self, _: usize, _: &[f32], _: &mut [f32]) -> bool {
        false
    }
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDraft;

impl Draft for NoDraft {}

/// Knows a run that was recorded, and tells of each pass all it will need, or all it will not: the
/// best and the worst a draft can be, against which streaming is tested.
///
/// It follows one sequence from its beginning. Past the end of the record it says nothing.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The numbers of the layers with experts.
    layers: Vec<usize>,
    experts: usize,
    top_k: usize,
    /// [tokens, layers, top-k]
    ids: Vec<u16>,
    lies: bool,
    /// Tokens of passes that have begun.
    begun: usize,
    /// What it said last.
    said: Vec<LayerBlueprint>,
}

impl Recorded {
    /// Tells the truth: the experts `ids` [tokens, layers, top-k] of the layers numbered `layers`,
    /// each of which has `experts`.
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

    /// As sure of itself, and always wrong: it names as many experts as will be used, none of which
    /// is.
    pub fn adversarial(self) -> Recorded {
        Recorded { lies: true, ..self }
    }

    /// Which experts of a layer, by its place among those with experts, the tokens from `first` on
    /// use.
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
    fn a_record_names_what_each_pass_uses_or_what_it_does_not() {
        // Three tokens, two layers, two of four experts each.
        let ids = vec![0, 1, 2, 3, 1, 2, 2, 3, 3, 0, 0, 1];
        let truth = Recorded::oracle(vec![0, 2], 4, 2, ids);
        /// Tokens of a pass, and what is named for the layers 0 and 2.
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
