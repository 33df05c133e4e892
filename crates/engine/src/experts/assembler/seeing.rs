//! The states that routers choose from, on their way to the policy.

use std::sync::Arc;

use sws_cache::correction::Correction;
use sws_cache::policy::Policy;
use sws_store::Pass;

/// Projects the last state of each sequence before a router chooses, and shows it to the policy after.
#[derive(Debug)]
pub(super) struct Seeing {
    correction: Option<Arc<Correction>>,
    /// The layers of the model with experts, as the correction counts them.
    places: Vec<usize>,
    /// The layer whose router chooses.
    layer: usize,
    /// For each sequence of the pass, its projected state. Those beyond `live` are spare.
    states: Vec<(usize, Vec<f32>)>,
    live: usize,
}

impl Seeing {
    /// `with_experts` are the layers with experts, ascending.
    pub(super) fn new(correction: Option<Arc<Correction>>, with_experts: Vec<usize>) -> Seeing {
        let places = with_experts;
        Seeing { correction, places, layer: 0, states: Vec::new(), live: 0 }
    }

    /// Projects the states [tokens, hidden] of a pass.
    pub(super) fn look(&mut self, pass: &Pass, layer: usize, state: &[f32]) {
        self.live = 0;
        let Some(correction) = self.correction.as_ref().filter(|c| c.hidden() > 0) else { return };
        let Ok(place) = self.places.binary_search(&layer) else { return };
        self.layer = layer;
        let hidden = correction.hidden();
        for span in &pass.spans {
            let last = span.rows().next_back();
            let Some(state) = last.and_then(|row| state.get(row * hidden..(row + 1) * hidden))
            else {
                continue;
            };
            if self.states.len() == self.live {
                self.states.push(Default::default());
            }
            let (sequence, projected) = &mut self.states[self.live];
            *sequence = span.sequence;
            correction.project(place, state, projected);
            self.live += 1;
        }
    }

    /// Shows the policy what the router of the layer has seen.
    pub(super) fn tell(&mut self, layer: usize, policy: &mut dyn Policy) {
        let live = std::mem::take(&mut self.live);
        for (sequence, projected) in &self.states[..if self.layer == layer { live } else { 0 }] {
            policy.saw(layer as u32, *sequence, projected);
        }
    }
}
