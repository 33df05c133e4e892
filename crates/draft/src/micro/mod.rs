//! The micro draft model: what routers would say, corrected, and what is known without them.

mod file;
mod learned;
#[cfg(test)]
mod tests;
mod tokens;

use crate::blueprint::{Draft, Gates, LayerBlueprint, ReassemblyBlueprint};
use crate::history::math::logistic;
use crate::history::{History, Pairs, Shape, log_odds};
pub use file::{DraftError, MAX_RANK};
use learned::{AHEAD, FEATURES, HISTORY, TOKEN, dot};
pub use learned::{DEPTH, Learned};
use sws_store::{PieceId, PieceKind};
use tokens::Tokens;

/// The most tokens of a pass that are looked at each for itself. Of more, each layer needs so many
/// experts that there is little to forecast.
const MAX_TOKENS: usize = 8;

/// From this probability on an expert is named.
const NAMED: f32 = 0.05;

/// Steps that an even use of all experts counts for in the average over all time.
const EVEN: f32 = 20.0;

/// What a draft has to know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftShape {
    /// Elements of the hidden state.
    pub hidden: usize,
    /// The numbers of the layers that have experts, ascending.
    pub layers: Vec<usize>,
    /// Experts of each.
    pub experts: usize,
    /// Experts that a token uses.
    pub top_k: usize,
}

/// How much a draft keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftSize {
    /// The rank of corrections.
    pub rank: usize,
    /// Tokens whose experts are remembered.
    pub tokens: usize,
    /// Over how many layers it is counted which experts are used together.
    pub distances: usize,
}

/// What of a draft goes on learning while it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapting {
    /// All of it.
    All,
    /// Only the history: how experts were used lately. What was learned stays as it is.
    History,
}

/// Forecasts the experts of the layers to come from all that can be known of them: what their routers
/// say about states of earlier layers, with a learned correction; how their experts were used so far;
/// what the token used when it came before; what is used together with what the last layer has
/// chosen. A logistic model weighs these and gives a probability, and learns from what comes.
///
/// Its memory is bounded by its [`DraftSize`]; a pass allocates nothing once there has been one.
///
/// ```
/// use sws_draft::{Draft, DraftShape, DraftSize, MicroDraftModel};
///
/// let shape = DraftShape { hidden: 4, layers: vec![0, 1], experts: 8, top_k: 2 };
/// let size = DraftSize { rank: 0, tokens: 64, distances: 1 };
/// let mut draft = MicroDraftModel::new(shape, size);
/// for token in [7, 9].repeat(50) {
///     draft.tokens(&[token]);
///     for layer in 0..2 {
///         draft.entering(layer, &[0.0; 4], &mut ());
///         draft.adapt(layer, if token == 7 { &[1, 2] } else { &[5, 6] }, 2);
///     }
/// }
/// draft.tokens(&[7]);
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
    pass: Pass,
    /// The forecast for each layer with experts.
    said: Vec<LayerBlueprint>,
    scratch: Scratch,
}

/// What was used before.
#[derive(Clone, Debug)]
struct Known {
    history: History,
    /// How often each expert was used: [layers, experts], and in how many steps: [layers].
    counts: Vec<f32>,
    steps: Vec<f32>,
    /// [layers, distances]: what was used so many layers after.
    pairs: Vec<Pairs>,
    tokens: Tokens,
}

/// What is known of the pass under way.
#[derive(Clone, Debug, Default)]
struct Pass {
    /// Tokens told since the last began.
    told: Vec<u32>,
    /// Their rows in the table of tokens.
    rows: Vec<Option<usize>>,
    /// What the layers before have chosen: the last [`DEPTH`] + 1, by place modulo that.
    routes: Vec<Vec<u32>>,
    /// The place of the layer that chose last.
    last: Option<usize>,
    /// Log-odds by history and by token: [layers, 1 + MAX_TOKENS, experts].
    odds: Vec<f32>,
    /// By place modulo [`DEPTH`] + 1, then by distance.
    pending: Vec<Pending>,
}

/// A forecast that is yet to be judged.
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
struct Scratch {
    state: Vec<f32>,
    u: Vec<f32>,
    logits: Vec<f32>,
    order: Vec<f32>,
    prior: Vec<f32>,
    absent: Vec<f32>,
    chosen: Vec<u32>,
}

impl DraftShape {
    fn history(&self) -> Shape {
        Shape { layers: self.layers.len(), experts: self.experts, top_k: self.top_k }
    }

    fn place(&self, layer: usize) -> Option<usize> {
        self.layers.binary_search(&layer).ok()
    }
}

impl DraftSize {
    /// The most worthwhile of what fits into so many bytes: first what is used together, then a
    /// correction of rank `rank`, then tokens, up to `vocab` of them. None if there is not even room for
    /// a history.
    pub fn within(
        bytes: usize,
        shape: &DraftShape,
        rank: usize,
        vocab: usize,
    ) -> Option<DraftSize> {
        let fits = |size: DraftSize| size.bytes(shape) <= bytes;
        let mut size = DraftSize { rank: 0, tokens: 0, distances: 0 };
        if !fits(size) {
            return None;
        }
        let distances = (1..=DEPTH).rev().map(|distances| DraftSize { distances, ..size });
        size = distances.into_iter().find(|&size| fits(size)).unwrap_or(size);
        let corrected = DraftSize { rank, ..size };
        if fits(corrected) {
            size = corrected;
        }
        let row = Tokens::row_bytes(shape.layers.len(), shape.top_k);
        size.tokens = ((bytes - size.bytes(shape)) / row).min(vocab.next_multiple_of(4));
        Some(size)
    }

    /// Memory that a draft of this size takes.
    pub fn bytes(&self, shape: &DraftShape) -> usize {
        let (places, experts) = (shape.layers.len(), shape.experts);
        let known = History::bytes_for(shape.history())
            + places * (experts + 1) * 4
            + places * self.distances * Pairs::bytes_for(experts)
            + self.tokens * Tokens::row_bytes(places, shape.top_k);
        let pending = size_of::<Pending>() + 4 * (experts * (FEATURES + 1) + self.rank + 1);
        let pass = 4 * places * (1 + MAX_TOKENS) * experts + (DEPTH + 1) * (DEPTH + 1) * pending;
        let said = places * (size_of::<LayerBlueprint>() + 8 * experts);
        let scratch = 4 * (MAX_TOKENS + 4) * experts + 4 * (shape.hidden + self.rank + 1);
        known + Learned::bytes_for(shape, self.rank) + pass + said + scratch
    }
}

impl MicroDraftModel {
    /// One that has learned nothing about this model.
    pub fn new(shape: DraftShape, size: DraftSize) -> MicroDraftModel {
        let learned = Learned::new(&shape, size.rank);
        MicroDraftModel::with(shape, size, learned)
    }

    /// One with what was learned.
    ///
    /// # Panics
    ///
    /// If that is for another shape or rank.
    pub fn with(shape: DraftShape, size: DraftSize, learned: Learned) -> MicroDraftModel {
        assert_eq!(learned.rank, size.rank, "what was learned has another rank");
        let (places, experts) = (shape.layers.len(), shape.experts);
        let known = Known {
            history: History::new(shape.history()),
            counts: vec![0.0; places * experts],
            steps: vec![0.0; places],
            pairs: vec![Pairs::new(experts); places * size.distances],
            tokens: Tokens::new(places, shape.top_k, size.tokens),
        };
        let pending = Pending {
            features: vec![0.0; FEATURES * experts],
            probabilities: vec![0.0; experts],
            u: vec![0.0; size.rank + 1],
            ..Pending::default()
        };
        let pass = Pass {
            routes: vec![Vec::new(); DEPTH + 1],
            odds: vec![0.0; places * (1 + MAX_TOKENS) * experts],
            pending: vec![pending; (DEPTH + 1) * (DEPTH + 1)],
            ..Pass::default()
        };
        let said = shape.layers.iter().map(|&layer_idx| LayerBlueprint {
            layer_idx,
            expert_probs: vec![0.0; experts],
            selected_experts: Vec::with_capacity(experts),
        });
        let said = said.collect();
        let scratch = Scratch { u: vec![0.0; size.rank + 1], ..Scratch::default() };
        let (confidence, adapting) = (0.5, Adapting::All);
        MicroDraftModel { shape, size, confidence, adapting, learned, known, pass, said, scratch }
    }

    /// What was learned; to be taken over by another ([`with`](Self::with)).
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// From which probability on [`select_and_plan`](Self::select_and_plan) has a piece read exactly.
    pub fn set_confidence(&mut self, confidence: f32) {
        self.confidence = confidence;
    }

    /// What goes on learning.
    pub fn set_adapting(&mut self, adapting: Adapting) {
        self.adapting = adapting;
    }

    /// The model it is for.
    pub fn shape(&self) -> &DraftShape {
        &self.shape
    }

    /// How much it keeps.
    pub fn size(&self) -> DraftSize {
        self.size
    }

    /// Writes the share of steps so far that used each expert of the layer at a place.
    pub fn shares(&self, place: usize, shares: &mut Vec<f32>) {
        self.known.prior(&self.shape, place, shares);
    }

    /// Writes how probable each expert is `distance` layers after the one at a place, of which `route`
    /// was chosen, by what was used together so far; nothing if that is not counted.
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

    /// What is needed when `hidden` [tokens, hidden] enters `layer`, after the tokens of
    /// `token_history`, the last of which are those of `hidden`: the experts of the layers to come,
    /// split at the [confidence](Self::set_confidence), and what every token needs of the layer itself
    /// and those up to [`DEPTH`] after it.
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
            self.pass.told.clear();
            self.tokens(&token_history[first..]);
        }
        let confidence = self.confidence;
        let layers = self.entering(layer, hidden, gates).unwrap_or_default();
        let mut blueprint = ReassemblyBlueprint::new(layers, confidence);
        let every = [PieceKind::Norms, PieceKind::Attention, PieceKind::Router];
        let near = (layer..=layer + DEPTH).filter(|&l| self.shape.place(l).is_some());
        let every = near.flat_map(|l| every.map(|kind| PieceId::new(l as u32, kind)));
        blueprint.high_priority_pieces.splice(0..0, every);
        blueprint
    }

    /// Takes note of the tokens of a pass, if it has just begun.
    fn begin(&mut self) -> bool {
        let MicroDraftModel { shape, known, pass, scratch, learned, said, adapting, .. } = self;
        if pass.told.is_empty() {
            return false;
        }
        let tokens = &mut known.tokens;
        pass.rows.clear();
        pass.rows.extend(pass.told.drain(..).map(|token| match adapting {
            Adapting::All => tokens.meet(token),
            Adapting::History => tokens.find(token),
        }));
        pass.last = None;
        pass.pending.iter_mut().for_each(|pending| pending.live = false);
        if pass.rows.len() > MAX_TOKENS {
            return true;
        }
        let experts = shape.experts;
        for (place, said) in said.iter_mut().enumerate() {
            let absent = known.history.absence(place).within_1;
            scratch.absent.clear();
            scratch.absent.extend_from_slice(absent);
            known.prior(shape, place, &mut scratch.prior);
            let odds = &mut pass.odds[place * (1 + MAX_TOKENS) * experts..];
            let (history, by_token) = odds.split_at_mut(experts);
            for (odds, absent) in history.iter_mut().zip(&scratch.absent) {
                *odds = log_odds(1.0 - absent);
            }
            let w = learned.weights(place, AHEAD, false);
            said.expert_probs.fill(0.0);
            for (row, odds) in pass.rows.iter().zip(by_token.chunks_exact_mut(experts)) {
                match row {
                    Some(row) => known.tokens.chances(*row, place, &scratch.prior, odds),
                    None => odds.copy_from_slice(&scratch.prior),
                }
                for ((odds, said), history) in
                    odds.iter_mut().zip(&mut said.expert_probs).zip(&*history)
                {
                    *odds = log_odds(*odds);
                    let p = logistic(w[0] + w[HISTORY] * history + w[TOKEN] * *odds);
                    *said += p - *said * p;
                }
            }
            name(said);
        }
        true
    }

    /// Forecasts the layers at `distances` after the one at `place` from a state.
    fn look(
        &mut self,
        place: usize,
        distances: std::ops::RangeInclusive<usize>,
        state: &[f32],
        gates: &mut dyn Gates,
    ) {
        let attended = *distances.start() > 0;
        let MicroDraftModel { shape, size, learned, known, pass, said, scratch, .. } = self;
        let DraftShape { hidden, experts, top_k, ref layers } = *shape;
        let tokens = state.len() / hidden;
        let single = tokens == 1;
        let nearest = *distances.start();
        for distance in distances {
            let first = distance == nearest;
            let target = place + distance;
            let Some(said) = said.get_mut(target) else { break };
            scratch.logits.resize(tokens * experts, 0.0);
            let gate = gates.logits(layers[target], state, &mut scratch.logits);
            known.prior(shape, target, &mut scratch.prior);
            said.expert_probs.fill(0.0);
            let slot = (target % (DEPTH + 1)) * (DEPTH + 1) + distance;
            let pending = &mut pass.pending[slot];
            (pending.live, pending.gate) = (single, gate);
            let w = learned.weights(target, distance, gate);
            for token in 0..tokens {
                let features = &mut pending.features;
                let (one, rest) = features.split_at_mut(experts);
                one.fill(1.0);
                let (margins, rest) = rest.split_at_mut(experts);
                if gate {
                    let logits = &scratch.logits[token * experts..][..experts];
                    margin(logits, top_k, &mut scratch.order, margins);
                } else {
                    margins.fill(0.0);
                }
                let (history, rest) = rest.split_at_mut(experts);
                let (by_token, by_pairs) = rest.split_at_mut(experts);
                let odds = &pass.odds[target * (1 + MAX_TOKENS) * experts..];
                history.copy_from_slice(&odds[..experts]);
                by_token.copy_from_slice(&odds[(1 + token) * experts..][..experts]);

                // What was chosen last: in this layer, or in the one before it.
                let last = if attended { Some(place) } else { place.checked_sub(1) };
                let last = last.filter(|last| pass.last == Some(*last));
                let route = last.and_then(|last| {
                    pass.routes[last % (DEPTH + 1)].chunks_exact(top_k).nth(token)
                });
                let route = route.unwrap_or_default();
                let since = if attended { distance } else { 1 };
                match last {
                    Some(last) if since <= size.distances && !route.is_empty() => {
                        let pairs = &known.pairs[last * size.distances + since - 1];
                        pairs.chances(route, &scratch.prior, by_pairs);
                    }
                    _ => by_pairs.copy_from_slice(&scratch.prior),
                }
                by_pairs.iter_mut().for_each(|chance| *chance = log_odds(*chance));

                // One projection does for all distances.
                if first || !single {
                    let row = &state[token * hidden..][..hidden];
                    scratch.state.resize(hidden, 0.0);
                    norm(row, &mut scratch.state);
                    learned.project(shape, place, attended, &scratch.state, route, &mut scratch.u);
                }
                let p = &mut pending.probabilities;
                if gate {
                    learned.correct(shape, target, distance, &scratch.u, p);
                } else {
                    p.fill(0.0);
                }
                for (feature, weight) in pending.features.chunks_exact(experts).zip(w) {
                    p.iter_mut().zip(feature).for_each(|(p, x)| *p += weight * x);
                }
                for (p, said) in p.iter_mut().zip(&mut said.expert_probs) {
                    *p = logistic(*p);
                    *said = (*said + *p - *said * *p).min(1.0);
                }
                pending.u.copy_from_slice(&scratch.u);
            }
            name(said);
        }
    }

    /// Learns from how the forecasts for the layer at `place` have turned out.
    fn judge(&mut self, place: usize, choices: &[u32]) {
        let MicroDraftModel { shape, learned, pass, scratch, .. } = self;
        let experts = shape.experts;
        let judge = |probabilities: &[f32], errors: &mut Vec<f32>| {
            errors.clear();
            errors.extend(probabilities.iter().map(|p| -p));
            for error in choices.iter().map(|&e| e as usize) {
                // Chosen twice is chosen once.
                if let Some(error) = errors.get_mut(error).filter(|error| **error <= 0.0) {
                    *error += 1.0;
                }
            }
        };
        let errors = &mut scratch.logits;
        for distance in 0..=DEPTH {
            let pending = &mut pass.pending[(place % (DEPTH + 1)) * (DEPTH + 1) + distance];
            if std::mem::take(&mut pending.live) && pending.gate {
                judge(&pending.probabilities, errors);
                learned.learn(place, distance, &pending.features, errors);
                learned.learn_correction(shape, place, distance, &pending.u, errors);
            }
        }
        if pass.rows.len() == 1 {
            let odds = &pass.odds[place * (1 + MAX_TOKENS) * experts..][..2 * experts];
            let (history, by_token) = odds.split_at(experts);
            let w = learned.weights(place, AHEAD, false);
            let probabilities = &mut scratch.absent;
            probabilities.clear();
            let both = history.iter().zip(by_token);
            probabilities.extend(both.map(|(h, t)| logistic(w[0] + w[HISTORY] * h + w[TOKEN] * t)));
            judge(probabilities, errors);
            // Any pending forecast of this layer has been judged: its memory is free.
            let pending = &mut pass.pending[(place % (DEPTH + 1)) * (DEPTH + 1)];
            let features = &mut pending.features;
            features.fill(0.0);
            features[..experts].fill(1.0);
            features[HISTORY * experts..][..2 * experts].copy_from_slice(odds);
            learned.learn(place, AHEAD, features, errors);
        }
    }
}

impl Known {
    /// Writes the share of steps that used each expert of a layer.
    fn prior(&self, shape: &DraftShape, place: usize, prior: &mut Vec<f32>) {
        let experts = shape.experts;
        let even = EVEN * shape.top_k as f32 / experts as f32;
        let scale = 1.0 / (self.steps[place] + EVEN);
        prior.clear();
        let counts = &self.counts[place * experts..][..experts];
        prior.extend(counts.iter().map(|count| (count + even) * scale));
    }
}

impl Draft for MicroDraftModel {
    fn bytes(&self) -> usize {
        self.size.bytes(&self.shape)
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.pass.told.extend_from_slice(tokens);
    }

    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let began = self.begin();
        let tokens = hidden.len() / self.shape.hidden;
        if tokens != self.pass.rows.len() || tokens > MAX_TOKENS {
            return None;
        }
        let from = self.shape.layers.partition_point(|&l| l < layer);
        if let Some(place) = self.shape.place(layer) {
            self.look(place, 0..=0, hidden, gates);
        } else if !began {
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
            known.history.step(place, chosen);
            if !all {
                continue;
            }
            // A layer in which fewer are chosen says the first again.
            let distinct = &mut scratch.chosen;
            distinct.clear();
            for expert in chosen {
                if !distinct.contains(expert) {
                    distinct.push(*expert);
                }
            }
            known.steps[place] += 1.0;
            let counts = &mut known.counts[place * shape.experts..][..shape.experts];
            distinct.iter().for_each(|&expert| counts[expert as usize] += 1.0);
            for distance in 1..=size.distances.min(place) {
                let from = place - distance;
                let route = &pass.routes[from % (DEPTH + 1)];
                if before.is_some()
                    && let Some(earlier) = route.chunks_exact(top_k).nth(token)
                {
                    let pairs = &mut known.pairs[from * size.distances + distance - 1];
                    earlier.iter().for_each(|&expert| pairs.note(expert as usize, distinct));
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

/// A state as corrections see it: its mean square is 1.
pub fn norm(state: &[f32], normed: &mut [f32]) {
    let mean = dot(state, state) / state.len().max(1) as f32;
    let scale = 1.0 / (mean + 1e-6).sqrt();
    normed.iter_mut().zip(state).for_each(|(y, x)| *y = x * scale);
}

/// How far each logit is above the edge between being chosen and not, in standard deviations of all.
pub fn margin(logits: &[f32], top_k: usize, order: &mut Vec<f32>, margins: &mut [f32]) {
    let count = logits.len() as f32;
    let mean = logits.iter().sum::<f32>() / count;
    let variance = logits.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count;
    let scale = 1.0 / (variance + 1e-12).sqrt();
    order.clear();
    order.extend_from_slice(logits);
    let edge = match top_k {
        1.. if top_k < order.len() => {
            let (above, first_below, _) =
                order.select_nth_unstable_by(top_k, |a, b| b.total_cmp(a));
            let last_above = above.iter().copied().fold(f32::INFINITY, f32::min);
            (last_above + *first_below) / 2.0
        }
        _ => mean,
    };
    for (margin, logit) in margins.iter_mut().zip(logits) {
        let m = (logit - edge) * scale;
        *margin = if m.is_finite() { m.clamp(-8.0, 8.0) } else { 0.0 };
    }
}

/// Lists the experts that are worth naming, the most probable first.
fn name(layer: &mut LayerBlueprint) {
    let LayerBlueprint { expert_probs: probs, selected_experts: named, .. } = layer;
    named.clear();
    named.extend((0..probs.len() as u32).filter(|&e| probs[e as usize] >= NAMED));
    named
        .sort_unstable_by(|&a, &b| probs[b as usize].total_cmp(&probs[a as usize]).then(a.cmp(&b)));
}
