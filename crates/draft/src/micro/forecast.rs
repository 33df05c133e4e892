//! Making forecasts, and learning from their outcomes.

use super::learned::{AHEAD, DEPTH, HISTORY, TOKEN};
use super::{Adapting, DraftShape, EVEN, Known, MAX_TOKENS, MicroDraftModel};
use crate::blueprint::{Gates, LayerBlueprint};
use sws_cache::history::{dot, log_odds, logistic};
use sws_format::Pass;

/// The lowest probability at which an expert is selected.
const NAMED: f32 = 0.05;

impl MicroDraftModel {
    /// Forecasts all layers of a pass from its tokens and from the use of experts so far.
    pub(super) fn forecast_pass(&mut self, running: &Pass) {
        let MicroDraftModel { shape, known, pass, scratch, learned, said, adapting, .. } = self;
        let tokens = &mut known.tokens;
        pass.rows.clear();
        pass.rows.extend(running.tokens.iter().map(|&token| match adapting {
            Adapting::All => tokens.meet(token),
            Adapting::History => tokens.find(token),
        }));
        pass.sequences.clear();
        for span in &running.spans {
            pass.sequences.extend(std::iter::repeat_n(span.sequence, span.tokens));
        }
        known.history.begin(running);
        pass.last = None;
        for pending in &mut pass.pending {
            pending.live = false;
        }
        pass.fresh = true;
        if pass.rows.len() > MAX_TOKENS {
            return;
        }
        for (place, said) in said.iter_mut().enumerate() {
            known.prior(shape, place, &mut scratch.prior);
            let w = learned.weights(place, AHEAD, false);
            said.expert_probs.fill(0.0);
            for number in 0..pass.rows.len() {
                let row = pass.rows[number];
                let sequence = pass.sequences[number];
                let (history, by_token) = pass.odds.of_mut(place, number);
                let absent = known.history.absence_of(place, sequence).within_1;
                for (odds, absent) in history.iter_mut().zip(absent) {
                    *odds = log_odds(1.0 - absent);
                }
                match row {
                    Some(row) => known.tokens.chances(row, place, &scratch.prior, by_token),
                    None => by_token.copy_from_slice(&scratch.prior),
                }
                for ((odds, said), history) in
                    by_token.iter_mut().zip(&mut said.expert_probs).zip(&*history)
                {
                    *odds = log_odds(*odds);
                    let p = logistic(w[0] + w[HISTORY] * history + w[TOKEN] * *odds);
                    *said += p - *said * p;
                }
            }
            name(said);
        }
    }

    /// Forecasts the layers at `distances` after the layer at `place` from a state.
    pub(super) fn look(
        &mut self,
        place: usize,
        distances: std::ops::RangeInclusive<usize>,
        state: &[f32],
        gates: &mut dyn Gates,
    ) {
        let attended = *distances.start() > 0;
        let MicroDraftModel { shape, size, learned, known, pass, said, scratch, .. } = self;
        let DraftShape { hidden, experts, top_k, ref layers, .. } = *shape;
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
            pending.live = single;
            pending.gate = gate;
            let w = learned.weights(target, distance, gate);
            let alone = gate && learned.follows_router(target, distance);
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
                let odds = pass.odds.of(target, token);
                history.copy_from_slice(odds.0);
                by_token.copy_from_slice(odds.1);

                // The latest choice is that of this layer, or of the previous one.
                let last = if attended { Some(place) } else { place.checked_sub(1) };
                let last = last.filter(|last| pass.last == Some(*last));
                let route = match last {
                    Some(last) => pass.routes[last % (DEPTH + 1)].chunks_exact(top_k).nth(token),
                    None => None,
                };
                let route = route.unwrap_or_default();
                let since = if attended { distance } else { 1 };
                match last {
                    Some(last) if since <= size.distances && !route.is_empty() => {
                        let pairs = &known.pairs[last * size.distances + since - 1];
                        pairs.chances(route, &scratch.prior, by_pairs);
                    }
                    _ => by_pairs.copy_from_slice(&scratch.prior),
                }
                for chance in by_pairs.iter_mut() {
                    *chance = log_odds(*chance);
                }

                // One projection serves all distances.
                if first || !single {
                    let row = &state[token * hidden..][..hidden];
                    scratch.state.resize(hidden, 0.0);
                    norm(row, &mut scratch.state);
                    let at = (place, attended);
                    learned.project(shape, at, &scratch.state, route, &mut scratch.u);
                }
                let p = &mut pending.probabilities;
                if alone {
                    // Features that are 0 do not affect the forecast, and learn nothing from it.
                    pending.features[HISTORY * experts..].fill(0.0);
                    p.fill(0.0);
                } else if gate {
                    learned.correct(shape, target, distance, &scratch.u, p);
                } else {
                    p.fill(0.0);
                }
                for (feature, weight) in pending.features.chunks_exact(experts).zip(w) {
                    for (p, x) in p.iter_mut().zip(feature) {
                        *p += weight * x;
                    }
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

    /// Learns from the errors of the forecasts for the layer at `place`.
    pub(super) fn judge(&mut self, place: usize, choices: &[u32]) {
        let MicroDraftModel { shape, learned, pass, scratch, .. } = self;
        let experts = shape.experts;
        let errors = &mut scratch.logits;
        for distance in 0..=DEPTH {
            let pending = &mut pass.pending[(place % (DEPTH + 1)) * (DEPTH + 1) + distance];
            if std::mem::take(&mut pending.live) && pending.gate {
                judge(&pending.probabilities, choices, errors);
                learned.learn(place, distance, &pending.features, errors);
                if !learned.follows_router(place, distance) {
                    learned.learn_correction(shape, place, distance, &pending.u, errors);
                }
            }
        }
        if pass.rows.len() == 1 {
            let (history, by_token) = pass.odds.of(place, 0);
            let w = learned.weights(place, AHEAD, false);
            let probabilities = &mut scratch.probabilities;
            probabilities.clear();
            let both = history.iter().zip(by_token);
            probabilities.extend(both.map(|(h, t)| logistic(w[0] + w[HISTORY] * h + w[TOKEN] * t)));
            judge(probabilities, choices, errors);
            // All pending forecasts of this layer have been judged, so their memory is free.
            let pending = &mut pass.pending[(place % (DEPTH + 1)) * (DEPTH + 1)];
            let features = &mut pending.features;
            features.fill(0.0);
            features[..experts].fill(1.0);
            features[HISTORY * experts..][..experts].copy_from_slice(history);
            features[TOKEN * experts..][..experts].copy_from_slice(by_token);
            learned.learn(place, AHEAD, features, errors);
        }
    }
}

/// Writes to `errors` the errors of these probabilities, given the experts that were chosen.
fn judge(probabilities: &[f32], choices: &[u32], errors: &mut Vec<f32>) {
    errors.clear();
    errors.extend(probabilities.iter().map(|p| -p));
    for &expert in choices {
        // An expert chosen twice counts once.
        if let Some(error) = errors.get_mut(expert as usize)
            && *error <= 0.0
        {
            *error += 1.0;
        }
    }
}

impl Known {
    /// Writes to `prior` the share of steps that used each expert of a layer.
    pub(super) fn prior(&self, shape: &DraftShape, place: usize, prior: &mut Vec<f32>) {
        let experts = shape.experts;
        let even = EVEN * shape.top_k as f32 / experts as f32;
        let scale = 1.0 / (self.steps[place] + EVEN);
        prior.clear();
        let counts = &self.counts[place * experts..][..experts];
        prior.extend(counts.iter().map(|count| (count + even) * scale));
    }
}

/// Scales a state to a mean square of 1, the input of corrections.
pub fn norm(state: &[f32], normed: &mut [f32]) {
    let mean = dot(state, state) / state.len().max(1) as f32;
    let scale = 1.0 / (mean + 1e-6).sqrt();
    for (y, x) in normed.iter_mut().zip(state) {
        *y = x * scale;
    }
}

/// Writes to `margins` the distance of each logit from the threshold of the top-k selection, in
/// standard deviations of all logits. Positive if the expert would be chosen.
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

/// Selects the experts that are probable enough, the most probable first.
fn name(layer: &mut LayerBlueprint) {
    let LayerBlueprint { expert_probs: probs, selected_experts: named, .. } = layer;
    named.clear();
    named.extend((0..probs.len() as u32).filter(|&e| probs[e as usize] >= NAMED));
    named
        .sort_unstable_by(|&a, &b| probs[b as usize].total_cmp(&probs[a as usize]).then(a.cmp(&b)));
}
