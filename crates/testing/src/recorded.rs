//! A draft that replays a recorded run, or its opposite.

use sws_draft::{Draft, Gates, LayerBlueprint};
use sws_format::Pass;

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
    /// If `top_k` is 0 while there are ids, or an id is not an expert.
    pub fn oracle(layers: Vec<usize>, experts: usize, top_k: usize, ids: Vec<u16>) -> Recorded {
        assert!(top_k > 0 || ids.is_empty(), "tokens that choose no experts");
        assert!(ids.iter().all(|&id| usize::from(id) < experts), "an id that is not an expert");
        Recorded { layers, experts, top_k, ids, lies: false, begun: 0, said: Vec::new() }
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
        for &expert in &selected {
            probs[expert as usize] = 1.0;
        }
        let layer_idx = self.layers[place];
        LayerBlueprint { layer_idx, expert_probs: probs, selected_experts: selected }
    }
}

impl Draft for Recorded {
    fn begin(&mut self, pass: &Pass) {
        let first = self.begun;
        let all = 0..self.layers.len();
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
