//! A recorded run, and a draft whose probabilities are calibrated: the run, corrupted.

use std::time::Duration;

use sws_draft::{Draft, Gates, LayerBlueprint};
use sws_format::{Clock, Pass};
use sws_model::{Observer, Routed, SourceError};

/// Tokens, routes and logits of a run.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The chosen experts: [tokens, layers, top-k].
    pub routes: Vec<u16>,
    /// A hash of the logits after each token.
    pub logits: Vec<u64>,
}

impl Observer for Answer {
    fn routed(&mut self, _: &Pass, _: usize, routed: &Routed) -> Result<(), SourceError> {
        self.routes.extend(routed.choices.iter().map(|&expert| expert as u16));
        Ok(())
    }
}

/// A hash that depends on every bit of the logits.
pub fn hash(logits: &[f32]) -> u64 {
    logits.iter().fold(0, |hash: u64, logit| {
        hash.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(logit.to_bits())
    })
}

/// Forecasts a layer and those after it like a draft that has learned the model. Recall falls by
/// four points with every layer of distance.
#[derive(Clone, Debug)]
pub struct Noisy {
    layers: usize,
    experts: usize,
    top_k: usize,
    /// [tokens, layers, top-k]
    ids: Vec<u16>,
    recall: f32,
    /// Lookahead in layers.
    depth: usize,
    begun: usize,
    said: Vec<LayerBlueprint>,
}

/// Loss of recall with each layer of distance.
const FADING: f32 = 0.04;

impl Noisy {
    /// A draft that knows the experts `ids` [tokens, layers, top-k], with one pass per token, and
    /// names each with probability `recall`.
    pub fn new(shape: [usize; 3], ids: Vec<u16>, recall: f32, depth: usize) -> Noisy {
        let [layers, experts, top_k] = shape;
        Noisy { layers, experts, top_k, ids, recall, depth, begun: 0, said: Vec::new() }
    }

    /// The forecast for a layer at this distance.
    fn layer(&self, layer: usize, distance: usize) -> LayerBlueprint {
        let recall = self.recall - FADING * distance as f32;
        let at = ((self.begun - 1) * self.layers + layer) * self.top_k;
        let truth = self.ids.get(at..at + self.top_k).unwrap_or_default();
        let count = truth.len() as f32;
        let wrong = (1.0 - recall) * count / (self.experts as f32 - count);
        let mut expert_probs = vec![wrong; self.experts];
        let mut selected: Vec<u32> = Vec::new();
        // Half of the named experts have a higher probability, and are right more often.
        let swing = recall.min(1.0 - recall) / 2.0;
        for (rank, &expert) in truth.iter().enumerate() {
            let probability = if rank % 2 == 0 { recall + swing } else { recall - swing };
            let mut named = u32::from(expert);
            let mut draw = mix(at as u64 + rank as u64);
            // The same draw at every distance: a forecast that is right from afar stays right.
            if (draw >> 40) as f32 / (1u64 << 24) as f32 >= probability {
                named = loop {
                    draw = mix(draw);
                    let other = (draw % self.experts as u64) as u32;
                    if !truth.contains(&(other as u16)) && !selected.contains(&other) {
                        break other;
                    }
                };
            }
            expert_probs[named as usize] = probability;
            selected.push(named);
        }
        selected.sort_by(|a, b| {
            expert_probs[*b as usize].total_cmp(&expert_probs[*a as usize]).then(a.cmp(b))
        });
        LayerBlueprint { layer_idx: layer, expert_probs, selected_experts: selected }
    }
}

impl Draft for Noisy {
    fn begin(&mut self, pass: &Pass) {
        self.begun += pass.len();
    }

    fn entering(
        &mut self,
        layer: usize,
        _: &[f32],
        _: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let last = (layer + self.depth).min(self.layers - 1);
        self.said = (layer..=last).map(|other| self.layer(other, other - layer)).collect();
        Some(&self.said)
    }
}

/// A [`Noisy`] draft that takes time.
#[derive(Debug)]
pub struct Slow {
    draft: Noisy,
    clock: Clock,
    time: Duration,
}

impl Slow {
    /// A draft that takes `time` of this clock in each layer.
    pub fn new(draft: Noisy, clock: Clock, time: Duration) -> Slow {
        Slow { draft, clock, time }
    }
}

impl Draft for Slow {
    fn begin(&mut self, pass: &Pass) {
        self.draft.begin(pass);
    }

    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        self.clock.sleep(self.time);
        self.draft.entering(layer, hidden, gates)
    }

    fn bytes(&self) -> usize {
        1
    }
}

/// Mixes the bits of a number.
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
