//! Queries of the draft, and its last forecast.

use sws_cache::{SavedError, SavedTensors};
use sws_draft::{Draft, Gates, ReassemblyBlueprint};
use sws_format::Pass;

/// A draft with its last forecast.
#[derive(Debug)]
pub(crate) struct Forecaster {
    draft: Box<dyn Draft>,
    /// Least probability of an expert in a blueprint.
    confidence: f32,
    blueprint: ReassemblyBlueprint,
    /// Workspace for hidden states after the shared expert.
    sum: Vec<f32>,
}

impl Forecaster {
    pub(crate) fn new(draft: Box<dyn Draft>, confidence: f32) -> Forecaster {
        let blueprint = ReassemblyBlueprint::default();
        let sum = Vec::new();
        Forecaster { draft, confidence, blueprint, sum }
    }

    /// True if the draft takes time to compute. A draft without memory is absent, or replays a
    /// record.
    pub(crate) fn computes(&self) -> bool {
        self.draft.bytes() > 0
    }

    /// Starts a pass.
    pub(crate) fn pass_begins(&mut self, pass: &Pass) {
        self.draft.begin(pass);
    }

    /// Queries the draft when `hidden` [tokens, hidden] enters a layer. True if there is a new
    /// forecast.
    pub(crate) fn layer_begins(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> bool {
        let Some(layers) = self.draft.entering(layer, hidden, gates) else { return false };
        self.blueprint.plan(layers, self.confidence);
        true
    }

    /// Queries the draft with `state` [tokens, hidden], the hidden state after a layer's attention.
    /// `shared` is the output of its shared expert, which is yet to be added; empty if there is
    /// none. True if there is a new forecast.
    pub(crate) fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        shared: &[f32],
        gates: &mut dyn Gates,
    ) -> bool {
        let state = match shared {
            [] => state,
            shared => {
                self.sum.clear();
                self.sum.extend(state.iter().zip(shared).map(|(a, b)| a + b));
                &self.sum
            }
        };
        let Some(layers) = self.draft.attended(layer, state, gates) else { return false };
        self.blueprint.plan(layers, self.confidence);
        true
    }

    /// The last forecast.
    pub(crate) fn blueprint(&self) -> &ReassemblyBlueprint {
        &self.blueprint
    }

    /// Teaches the draft a router's choice.
    pub(crate) fn learn(&mut self, layer: usize, choices: &[u32], top_k: usize) {
        self.draft.adapt(layer, choices, top_k);
    }

    pub(crate) fn save(&self, to: &mut SavedTensors) {
        self.draft.save(to);
    }

    pub(crate) fn recall(&mut self, saved: &SavedTensors) -> Result<(), SavedError> {
        self.draft.recall(saved)
    }
}
