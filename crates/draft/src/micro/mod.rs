//! The micro draft model: corrected router outputs, combined with the use of experts so far.

mod file;
mod forecast;
mod learned;
mod shape;
mod size;
#[cfg(test)]
mod tests;
mod tokens;

use crate::blueprint::{Draft, Gates, LayerBlueprint, ReassemblyBlueprint};
pub use file::{DraftError, MAX_RANK};
pub use forecast::{margin, norm};
use learned::FEATURES;
pub use learned::{DEPTH, Learned};
pub use shape::DraftShape;
pub use size::DraftSize;
use sws_cache::history::{ExpertPairs, History};
use sws_cache::{SavedError, SavedTensors};
use sws_format::{Dtype, Pass, PieceId, PieceKind};
use tokens::FrequentTokens;

/// Maximum number of tokens of a pass for which forecasts are made, each token separately. Longer
/// passes need so many of each layer's experts that there is little to forecast.
const MAX_TOKENS: usize = 8;

/// Weight of uniform use of all experts, in steps, in the average over all time.
const EVEN: f32 = 20.0;

/// Placeholder for the fingerprint in a saved draft: the enclosing file names the model.
const SAVED: &str = "saved";

/// The parts of a draft that keep learning while it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapting {
    /// All parts.
    All,
    /// Only the history, the recent use of experts. Learned parameters and counts are frozen.
    History,
}

/// Forecasts the experts of upcoming layers from everything known about them:
///
/// - the outputs of their routers for states of earlier layers, with a learned correction,
/// - the use of their experts so far,
/// - the experts that the token used before,
/// - the experts used together with those that the last layer chose.
///
/// A logistic model weighs these, gives probabilities, and learns from the outcomes.
///
/// Its memory is bounded by its [`DraftSize`]. A pass allocates nothing after the first one.
///
/// ```
/// use sws_draft::{Draft, DraftShape, DraftSize, MicroDraftModel};
/// use sws_format::Pass;
///
/// let shape = DraftShape { hidden: 4, layers: vec![0, 1], experts: 8, top_k: 2, sequences: 1 };
/// let size = DraftSize { rank: 0, tokens: 64, distances: 1 };
/// let mut draft = MicroDraftModel::new(shape, size);
/// for token in [7, 9].repeat(50) {
///     draft.begin(&Pass::single(0, &[token]));
///     for layer in 0..2 {
///         draft.entering(layer, &[0.0; 4], &mut ());
///         draft.adapt(layer, if token == 7 { &[1, 2] } else { &[5, 6] }, 2);
///     }
/// }
/// draft.begin(&Pass::single(0, &[7]));
/// let layers = draft.entering(0, &[0.0; 4], &mut ()).unwrap();
/// assert_eq!(layers.len(), 2, "the token is known, and with it all layers");
/// assert!(layers[1].expert_probs[1] > 0.5 && layers[1].expert_probs[5] < 0.5);
/// ```
#[derive(Clone, Debug)]
pub struct MicroDraftModel {
    shape: DraftShape,
    size: DraftSize,
    confidence: f32,
    adapting: Adapting,
    learned: Learned,
    known: Known,
    pass: Ongoing,
    /// The forecast for each layer with experts.
    said: Vec<LayerBlueprint>,
    scratch: DraftScratch,
}

/// Statistics of the use of experts so far.
#[derive(Clone, Debug)]
struct Known {
    history: History,
    /// Uses of each expert, [layers, experts], and number of steps, [layers].
    counts: Vec<f32>,
    steps: Vec<f32>,
    /// [layers, distances]: pairs of experts and those used that many layers later.
    pairs: Vec<ExpertPairs>,
    tokens: FrequentTokens,
}

/// State of the pass under way.
#[derive(Clone, Debug, Default)]
struct Ongoing {
    /// True until the first forecast of the pass is made.
    fresh: bool,
    /// For each row of the pass, the row of its token in the table of tokens.
    rows: Vec<Option<usize>>,
    /// For each row of the pass, the number of its sequence.
    sequences: Vec<usize>,
    /// Choices of the last [`DEPTH`] + 1 layers, by place modulo [`DEPTH`] + 1.
    routes: Vec<Vec<u32>>,
    /// The place of the layer that chose last.
    last: Option<usize>,
    odds: Odds,
    /// Pending forecasts, indexed by place modulo [`DEPTH`] + 1, then by distance.
    pending: Vec<Pending>,
}

/// Log-odds of each row of a pass for each layer, by history and by token: [layers, MAX_TOKENS, 2,
/// experts].
#[derive(Clone, Debug, Default)]
struct Odds {
    all: Vec<f32>,
    experts: usize,
}

impl Odds {
    fn new(places: usize, experts: usize) -> Odds {
        Odds { all: vec![0.0; places * 2 * MAX_TOKENS * experts], experts }
    }

    /// Log-odds of a row, by history and by token.
    fn of(&self, place: usize, row: usize) -> (&[f32], &[f32]) {
        let at = (place * MAX_TOKENS + row) * 2 * self.experts;
        self.all[at..][..2 * self.experts].split_at(self.experts)
    }

    fn of_mut(&mut self, place: usize, row: usize) -> (&mut [f32], &mut [f32]) {
        let at = (place * MAX_TOKENS + row) * 2 * self.experts;
        self.all[at..][..2 * self.experts].split_at_mut(self.experts)
    }
}

/// A forecast with an unknown outcome.
#[derive(Clone, Debug, Default)]
struct Pending {
    live: bool,
    gate: bool,
    /// [features, experts]
    features: Vec<f32>,
    probabilities: Vec<f32>,
    u: Vec<f32>,
}

#[derive(Clone, Debug, Default)]
struct DraftScratch {
    state: Vec<f32>,
    u: Vec<f32>,
    logits: Vec<f32>,
    order: Vec<f32>,
    prior: Vec<f32>,
    probabilities: Vec<f32>,
    chosen: Vec<u32>,
}

impl MicroDraftModel {
    /// A draft that has learned nothing about this model yet.
    pub fn new(shape: DraftShape, size: DraftSize) -> MicroDraftModel {
        let learned = Learned::new(&shape, size.rank);
        MicroDraftModel::with(shape, size, learned)
    }

    /// A draft with learned parameters, which must be for the same shape.
    ///
    /// # Panics
    ///
    /// If `learned` is of another rank.
    pub fn with(shape: DraftShape, size: DraftSize, learned: Learned) -> MicroDraftModel {
        assert_eq!(learned.rank, size.rank, "what was learned has another rank");
        let places = shape.layers.len();
        let experts = shape.experts;
        let known = Known {
            history: History::new(shape.history(), shape.sequences),
            counts: vec![0.0; places * experts],
            steps: vec![0.0; places],
            pairs: vec![ExpertPairs::new(experts); places * size.distances],
            tokens: FrequentTokens::new(places, shape.top_k, size.tokens),
        };
        let pending = Pending {
            features: vec![0.0; FEATURES * experts],
            probabilities: vec![0.0; experts],
            u: vec![0.0; size.rank + 1],
            ..Pending::default()
        };
        let pass = Ongoing {
            routes: vec![Vec::new(); DEPTH + 1],
            odds: Odds::new(places, experts),
            pending: vec![pending; (DEPTH + 1) * (DEPTH + 1)],
            ..Ongoing::default()
        };
        let said = shape.layers.iter().map(|&layer_idx| LayerBlueprint {
            layer_idx,
            expert_probs: vec![0.0; experts],
            selected_experts: Vec::with_capacity(experts),
        });
        let said = said.collect();
        let scratch = DraftScratch { u: vec![0.0; size.rank + 1], ..DraftScratch::default() };
        let confidence = 0.5;
        let adapting = Adapting::All;
        MicroDraftModel { shape, size, confidence, adapting, learned, known, pass, said, scratch }
    }

    /// The learned parameters, for use in another draft ([`with`](Self::with)).
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// Sets the parts that keep learning.
    pub fn set_adapting(&mut self, adapting: Adapting) {
        self.adapting = adapting;
    }

    /// The shape of the draft's model.
    pub fn shape(&self) -> &DraftShape {
        &self.shape
    }

    /// The sizes of the draft's tables.
    pub fn size(&self) -> DraftSize {
        self.size
    }

    /// Writes to `shares` the share of steps so far that used each expert of the layer at `place`.
    pub fn shares(&self, place: usize, shares: &mut Vec<f32>) {
        self.known.prior(&self.shape, place, shares);
    }

    /// Writes to `chances` the probability of each expert `distance` layers after the layer at
    /// `place`, which chose `route`, from the experts used together so far. Writes nothing if that
    /// distance is not counted.
    pub fn together(&self, place: usize, distance: usize, route: &[u32], chances: &mut Vec<f32>) {
        let target = place + distance;
        if distance == 0 || distance > self.size.distances || route.is_empty() {
            return;
        }
        self.known.prior(&self.shape, target, chances);
        let prior = chances.clone();
        let pairs = &self.known.pairs[place * self.size.distances + distance - 1];
        pairs.chances(route, &prior, chances);
    }

    /// Returns the pieces needed when `hidden` [tokens, hidden] enters `layer`. The tokens of
    /// `hidden` are the last of `token_history`.
    ///
    /// The pieces are the experts of the upcoming layers, split at a
    /// probability of one half, and the pieces that every token needs of this layer and
    /// of the [`DEPTH`] layers after it.
    pub fn select_and_plan(
        &mut self,
        layer: usize,
        hidden: &[f32],
        token_history: &[u32],
        gates: &mut dyn Gates,
    ) -> ReassemblyBlueprint {
        let tokens = hidden.len() / self.shape.hidden.max(1);
        if self.shape.layers.first().is_none_or(|&first| layer <= first) {
            let first = token_history.len().saturating_sub(tokens);
            self.forecast_pass(&Pass::single(first, &token_history[first..]));
        }
        let confidence = self.confidence;
        let layers = self.entering(layer, hidden, gates).unwrap_or_default();
        let mut blueprint = ReassemblyBlueprint::new(layers, confidence);
        let mut every = Vec::new();
        for layer in layer..=layer + DEPTH {
            if self.shape.place(layer).is_some() {
                for kind in [PieceKind::Norms, PieceKind::Attention, PieceKind::Router] {
                    every.push(PieceId::new(layer as u32, kind));
                }
            }
        }
        blueprint.high_priority_pieces.splice(0..0, every);
        blueprint
    }
}

impl Draft for MicroDraftModel {
    fn bytes(&self) -> usize {
        self.size.bytes(&self.shape)
    }

    /// A trained draft knows more than a run can learn. It is neither saved nor replaced by a saved
    /// draft.
    fn save(&self, to: &mut SavedTensors) {
        if self.size.rank == 0 {
            let bytes = self.write(SAVED);
            to.push("draft", Dtype::U8, &[bytes.len()], bytes);
        }
    }

    fn recall(&mut self, saved: &SavedTensors) -> Result<(), SavedError> {
        if self.size.rank != 0 {
            return Ok(());
        }
        let Ok(bytes) = saved.get("draft", Dtype::U8, |_| true) else { return Ok(()) };
        let read = MicroDraftModel::of_size(bytes, &self.shape, SAVED, |_, _| Some(self.size));
        let Ok(Some(found)) = read else { return Err(SavedError::Tensor("draft".to_owned())) };
        self.learned = found.learned;
        self.known = found.known;
        Ok(())
    }

    fn begin(&mut self, pass: &Pass) {
        self.forecast_pass(pass);
    }

    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let fresh = std::mem::take(&mut self.pass.fresh);
        let tokens = hidden.len() / self.shape.hidden;
        if tokens != self.pass.rows.len() || tokens > MAX_TOKENS {
            return None;
        }
        let from = self.shape.layers.partition_point(|&l| l < layer);
        if let Some(place) = self.shape.place(layer) {
            self.look(place, 0..=0, hidden, gates);
        } else if !fresh {
            return None;
        }
        Some(&self.said[from..])
    }

    fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let place = self.shape.place(layer)?;
        let tokens = state.len() / self.shape.hidden;
        if tokens != self.pass.rows.len() || tokens > MAX_TOKENS {
            return None;
        }
        self.look(place, 1..=DEPTH, state, gates);
        Some(&self.said[place + 1..])
    }

    fn adapt(&mut self, layer: usize, choices: &[u32], top_k: usize) {
        let Some(place) = self.shape.place(layer) else { return };
        let known = choices.iter().all(|&expert| (expert as usize) < self.shape.experts);
        if top_k != self.shape.top_k || !known {
            return;
        }
        let all = self.adapting == Adapting::All;
        if all {
            self.judge(place, choices);
        }
        let MicroDraftModel { shape, size, known, pass, scratch, .. } = self;
        let before = pass.last.filter(|&last| last + 1 == place);
        for (token, chosen) in choices.chunks_exact(top_k).enumerate() {
            let sequence = pass.sequences.get(token).copied().unwrap_or(0);
            known.history.step(place, sequence, chosen, None);
            if !all {
                continue;
            }
            // A layer that chooses fewer experts repeats the first one.
            let distinct = &mut scratch.chosen;
            distinct.clear();
            for expert in chosen {
                if !distinct.contains(expert) {
                    distinct.push(*expert);
                }
            }
            known.steps[place] += 1.0;
            let counts = &mut known.counts[place * shape.experts..][..shape.experts];
            for &expert in &*distinct {
                counts[expert as usize] += 1.0;
            }
            for distance in 1..=size.distances.min(place) {
                let from = place - distance;
                let route = &pass.routes[from % (DEPTH + 1)];
                if before.is_some()
                    && let Some(earlier) = route.chunks_exact(top_k).nth(token)
                {
                    let pairs = &mut known.pairs[from * size.distances + distance - 1];
                    for &expert in earlier {
                        pairs.note(expert as usize, distinct);
                    }
                }
            }
            if let Some(Some(row)) = pass.rows.get(token) {
                known.tokens.note(*row, place, distinct);
            }
        }
        let route = &mut pass.routes[place % (DEPTH + 1)];
        route.clear();
        route.extend_from_slice(choices);
        pass.last = Some(place);
    }
}
