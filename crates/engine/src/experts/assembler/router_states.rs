//! Hidden states from which routers choose, recorded for the policy.

use sws_cache::policy::Policy;
use sws_format::Pass;

/// Records the last hidden state of each sequence before a router chooses, and reports it to the
/// policy afterwards.
#[derive(Debug, Default)]
pub(super) struct LastStates {
    /// The layer whose router is choosing.
    layer: usize,
    /// The sequences of the pass, each with its last state. Entries after `live` are spare.
    states: Vec<(usize, Vec<f32>)>,
    live: usize,
}

impl LastStates {
    /// Records the states [tokens, hidden] of a pass, if the policy uses states.
    pub(super) fn record(&mut self, policy: &dyn Policy, pass: &Pass, layer: usize, state: &[f32]) {
        (self.layer, self.live) = (layer, 0);
        let hidden = policy.hidden();
        if hidden == 0 {
            return;
        }
        for span in &pass.spans {
            let Some(row) = span.rows().next_back() else { continue };
            let Some(state) = state.get(row * hidden..(row + 1) * hidden) else { continue };
            if self.states.len() == self.live {
                self.states.push(Default::default());
            }
            let (sequence, kept) = &mut self.states[self.live];
            *sequence = span.sequence;
            kept.clear();
            kept.extend_from_slice(state);
            self.live += 1;
        }
    }

    /// Reports to the policy the states from which the router of the layer chose.
    pub(super) fn report(&mut self, layer: usize, policy: &mut dyn Policy) {
        let live = std::mem::take(&mut self.live);
        for (sequence, state) in &self.states[..if self.layer == layer { live } else { 0 }] {
            policy.on_router_state(layer as u32, *sequence, state);
        }
    }
}
