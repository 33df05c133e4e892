//! The router of a layer: its logits, and the selection of experts.
//!
//! The pass and the forecasts that query a router early ([`RouterProbe`]) call the same functions.

use rayon::prelude::*;
use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::elementary::exp;
use sws_kernels::functional::{add, root_softplus, sigmoid, softmax, top_k};
use sws_kernels::{PackedInput, ScratchPool, Tier};

use super::kept::Mixes;
use super::linear::{Product, multiply};
use super::mixer::add_bias;
use super::norms::{NormVectors, norm, scale, scale_row};
use super::streams::{Gated, gate_normed, gated, mix, weigh};
use crate::order::{Branch, Site};
use crate::role::Role;
use crate::source::{Routed, SourceError, Weights};
use crate::spec::{
    ExpertGroups, GroupMeasure, MAX_GROUPS, ModelSpec, MoeSpec, RankedRouter, Renormalise,
    Residual, Router, RouterScores,
};
use crate::workspace::GateWork;

/// Number of tokens for which a thread selects experts at a time.
const SELECT_ROWS: usize = 32;

/// Computes the router's logits [tokens, experts] of layer `l` from the normed state in `input`.
pub(super) fn logits(
    tier: Tier,
    (l, spec): (usize, &MoeSpec),
    weights: &mut dyn Weights,
    input: &PackedInput,
    logits: &mut [f32],
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let piece = PieceId::new(l as u32, PieceKind::Router);
    let product = Product::new(piece, Role::Router, input, &mut *logits, spec.scored());
    multiply(tier, weights, &mut [Some(product)], scratch)?;
    if spec.router_bias {
        add_bias(tier, weights.vector(piece, Role::RouterBias), logits);
    }
    Ok(())
}

/// Turns the router's logits [tokens, experts] of layer `l` into scores, and writes the ranks of
/// the experts to `ranks` [tokens, experts].
pub(super) fn rank(
    tier: Tier,
    (l, router, experts): (usize, RankedRouter, usize),
    weights: &mut dyn Weights,
    scores: &mut [f32],
    ranks: &mut [f32],
) {
    match router.scores {
        RouterScores::Softmax => softmax(tier, scores, experts),
        RouterScores::Sigmoid => sigmoid(tier, scores),
        RouterScores::SigmoidOfScaled(factor) => {
            scale(factor, scores);
            sigmoid(tier, scores);
        }
        RouterScores::RootSoftplus => root_softplus(tier, scores),
        RouterScores::SigmoidOfRanks => {}
    }
    ranks.copy_from_slice(scores);
    if router.scores == RouterScores::SigmoidOfRanks {
        sigmoid(tier, scores);
    }
    if router.correction {
        let piece = PieceId::new(l as u32, PieceKind::Router);
        let correction = weights.vector(piece, Role::RouterCorrection);
        for row in ranks.chunks_exact_mut(experts) {
            let (ranked, shared) = row.split_at_mut(correction.len());
            add(tier, correction, ranked);
            shared.fill(f32::NEG_INFINITY);
        }
    }
    if let Some(groups) = router.groups {
        ranks.chunks_exact_mut(experts).for_each(|row| drop_groups(groups, row));
    }
}

/// Divides the weights of the chosen and of the shared experts by the sum of the scores of both.
/// `scores` [tokens, experts] end with those of the shared experts.
pub(super) fn weigh_shared(spec: &MoeSpec, scores: &[f32], factor: f32, routed: &mut Routed) {
    let k = spec.top_k;
    let shared = spec.shared_scored;
    let Routed { choices, weights, shared: own, .. } = routed;
    own.clear();
    own.reserve_exact(choices.len() / k * shared);
    own.resize(choices.len() / k * shared, 0.0);
    let scale = match spec.router {
        Router::Ranked(router) => router.scale,
        _ => 1.0,
    };
    let tokens = scores.chunks_exact(spec.scored()).zip(choices.chunks_exact(k));
    let to = weights.chunks_exact_mut(k).zip(own.chunks_exact_mut(shared));
    for ((scores, choices), (weights, own)) in tokens.zip(to) {
        own.copy_from_slice(&scores[spec.ranked()..]);
        for (weight, expert) in weights.iter_mut().zip(choices) {
            *weight = scores[*expert as usize];
        }
        let sum = weights.iter().sum::<f32>() + own.iter().sum::<f32>();
        weights.iter_mut().chain(own).for_each(|weight| *weight = *weight / sum * scale * factor);
    }
}

/// Sets the ranks of experts outside the best groups of a token to -inf.
fn drop_groups(groups: ExpertGroups, ranks: &mut [f32]) {
    let ExpertGroups { count, kept, by } = groups;
    let size = ranks.len() / count;
    let mut measures = [0.0; MAX_GROUPS];
    for (measure, group) in measures.iter_mut().zip(ranks.chunks_exact(size)) {
        let mut best = [0; 2];
        *measure = match by {
            GroupMeasure::Best => {
                top_k(group, &mut best[..1]);
                group[best[0] as usize]
            }
            GroupMeasure::BestTwo => {
                top_k(group, &mut best);
                group[best[0] as usize] + group[best[1] as usize]
            }
        };
    }
    let mut best = [0; MAX_GROUPS];
    top_k(&measures[..count], &mut best[..kept]);
    for (group, ranks) in (0..).zip(ranks.chunks_exact_mut(size)) {
        if !best[..kept].contains(&group) {
            ranks.fill(f32::NEG_INFINITY);
        }
    }
}

/// Replaces the -inf ranks of dropped experts by one just below the smallest other rank.
fn restore_dropped(ranks: &mut [f32]) {
    let kept = ranks.iter().copied().filter(|rank| *rank > f32::NEG_INFINITY);
    let least = kept.fold(f32::INFINITY, f32::min);
    ranks.iter_mut().for_each(|rank| *rank = rank.max(least.next_down()));
}

/// Selects the experts of each token from the router's logits [tokens, experts], which are
/// overwritten. If the router [ranks](rank), `logits` has scores, and `ranks` the ranks. If weights
/// have factors, `ranks` has these. If a table selects the experts, `routed` has them already.
pub(super) fn select(
    tier: Tier,
    spec: &MoeSpec,
    logits: &mut [f32],
    ranks: &[f32],
    routed: &mut Routed,
) {
    let experts = spec.scored();
    let k = spec.top_k;
    let choices = logits.len() / experts * k;
    routed.top_k = k;
    routed.choices.resize(choices, 0);
    routed.weights.resize(choices, 0.0);
    let rows = SELECT_ROWS * experts;
    let logits = logits.par_chunks_mut(rows);
    let choices = routed.choices.par_chunks_mut(SELECT_ROWS * k);
    let weights = routed.weights.par_chunks_mut(SELECT_ROWS * k);
    let chunks = logits.zip(choices).zip(weights).enumerate();
    chunks.for_each(|(chunk, ((logits, choices), weights))| {
        if matches!(spec.router, Router::Softmax { .. } | Router::SoftmaxScaled) {
            softmax(tier, logits, experts);
        }
        let selected = choices.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
        let tokens = logits.chunks_exact_mut(experts).zip(selected);
        for (token, (scores, (choices, weights))) in (chunk * SELECT_ROWS..).zip(tokens) {
            match spec.router {
                Router::Softmax { renormalise } => {
                    top_k(scores, choices);
                    take(scores, choices, weights);
                    if renormalise {
                        divide(weights, weights.iter().sum());
                    }
                }
                Router::SoftmaxScaled => {
                    top_k(scores, choices);
                    take(scores, choices, weights);
                    let sum: f32 = weights.iter().sum();
                    for (weight, &expert) in weights.iter_mut().zip(&*choices) {
                        *weight = *weight / sum * ranks[expert as usize];
                    }
                }
                Router::SoftmaxOfChosen => {
                    top_k(scores, choices);
                    take(scores, choices, weights);
                    softmax(tier, weights, k);
                }
                Router::Near { reach } => select_near(reach, scores, choices, weights),
                Router::Ranked(router) | Router::Table(router) => {
                    if !spec.has_table() {
                        top_k(&ranks[token * experts..][..experts], choices);
                    }
                    take(scores, choices, weights);
                    weigh_ranked(router, weights);
                }
            }
        }
    });
    take_identities(spec, routed);
    routed.distinct.clear();
    routed.distinct.extend_from_slice(&routed.choices);
    routed.distinct.sort_unstable();
    routed.distinct.dedup();
}

/// Sets the weights of the chosen experts to their scores.
fn take(scores: &[f32], choices: &[u32], weights: &mut [f32]) {
    for (weight, &expert) in weights.iter_mut().zip(choices) {
        *weight = scores[expert as usize];
    }
}

fn divide(weights: &mut [f32], by: f32) {
    weights.iter_mut().for_each(|weight| *weight /= by);
}

/// Divides the weights of a ranking router by their sum, if it renormalises, and scales them.
fn weigh_ranked(router: RankedRouter, weights: &mut [f32]) {
    let sum = weights.iter().sum::<f32>();
    match router.renormalise {
        Renormalise::None => {}
        Renormalise::Sum { plus } => divide(weights, sum + plus),
        Renormalise::AtLeast(least) => divide(weights, sum.max(least)),
    }
    scale_row(router.scale, weights);
}

/// Selects the experts of a token one after another, each by its share of the logits near it.
fn select_near(reach: f32, logits: &mut [f32], choices: &mut [u32], weights: &mut [f32]) {
    for (choice, weight) in choices.iter_mut().zip(weights) {
        top_k(logits, std::slice::from_mut(choice));
        let chosen = &mut logits[*choice as usize];
        let best = std::mem::replace(chosen, f32::NEG_INFINITY);
        *weight = 1.0 / (1.0 + mass_near(best, reach, logits));
    }
}

/// Adds up the weights of a token's identity choices. Their places get the first expert of the
/// token, so that every choice refers to existing weights.
fn take_identities(spec: &MoeSpec, routed: &mut Routed) {
    routed.identity.clear();
    if spec.identities == 0 {
        return;
    }
    let Routed { choices, weights, identity, .. } = routed;
    let tokens = choices.chunks_exact_mut(spec.top_k).zip(weights.chunks_exact_mut(spec.top_k));
    identity.reserve_exact(tokens.len());
    for (choices, weights) in tokens {
        let is_expert = |choice: &u32| (*choice as usize) < spec.experts;
        let place = choices.iter().position(is_expert);
        let first = place.map_or(0, |place| choices[place]);
        let mut own = 0.0;
        for (choice, weight) in choices.iter_mut().zip(&mut *weights) {
            if !is_expert(choice) {
                own += std::mem::take(weight);
                *choice = first;
            }
        }
        // The weight of an expert belongs to the first of its places.
        weights.swap(0, place.unwrap_or(0));
        identity.push(own);
    }
}

/// Σ exp(y - best) over the logits y that are near the best.
fn mass_near(best: f32, reach: f32, logits: &[f32]) -> f32 {
    let near = |y: &&f32| (best - **y) / y.abs().max(best) <= reach;
    logits.iter().filter(near).map(|y| exp(y - best)).sum()
}

/// Queries routers about states other than those of their own layer, for a forecast.
#[derive(Debug)]
pub struct RouterProbe {
    tier: Tier,
    normed: Vec<f32>,
    input: PackedInput,
    /// The scores and ranks of ranking routers.
    ranked: [Vec<f32>; 2],
    /// The weights of residual streams, and the streams themselves, normed.
    streams: [Vec<f32>; 2],
    gates: GateWork,
    scratch: ScratchPool,
}

impl RouterProbe {
    /// A probe that computes like a pass with these kernels.
    pub fn new(tier: Tier) -> RouterProbe {
        let (normed, input, ranked, streams, gates, scratch) = Default::default();
        RouterProbe { tier, normed, input, ranked, streams, gates, scratch }
    }

    /// Writes to `scores` [tokens, experts] the values by which a layer's router would rank the
    /// experts if its attention had produced `state` [tokens, width of the state]. Experts of
    /// dropped groups come just below the last of the others, so that all are finite. Identity
    /// choices have no score, so a layer may choose fewer experts. Returns false, leaving `scores`
    /// unchanged, if the layer has no experts or another number of them, if a table gives them, if a
    /// pass visits the layer several times, or if the router is not in memory.
    pub fn scores(
        &mut self,
        spec: &ModelSpec,
        layer: usize,
        weights: &mut dyn Weights,
        state: &[f32],
        scores: &mut [f32],
    ) -> bool {
        let Some(found) = spec.layers.get(layer) else { return false };
        let Some(moe) = found.moe().filter(|_| spec.times(layer) == 1) else { return false };
        let width = spec.hidden;
        let tokens = state.len() / spec.state_width();
        let router = PieceId::new(layer as u32, PieceKind::Router);
        if moe.has_table()
            || scores.len() != tokens * moe.experts
            || weights.matrix(router, Role::Router).is_none()
        {
            return false;
        }
        let RouterProbe { tier, normed, input, ranked, streams: [own, all], gates, scratch } = self;
        normed.clear();
        let branch = Branch { spec, layer, site: Site::Ffn };
        match spec.streams {
            None if spec.kept.is_some() => {
                normed.resize(tokens * width, 0.0);
                Mixes::of(branch, weights).write(*tier, 0, state, normed);
            }
            None => normed.extend_from_slice(state),
            Some(streams) => {
                all.clear();
                all.extend_from_slice(state);
                own.resize(tokens * streams.weights(), 0.0);
                normed.resize(tokens * width, 0.0);
                if spec.stream_gates().is_some() {
                    let of = Gated::of(branch);
                    let given = (&mut all[..], &mut *input, &mut *gates);
                    if gated(&of, *tier, weights, given, Some(own), normed, scratch).is_err() {
                        return false;
                    }
                } else if weigh(branch, *tier, weights, (all, input), own, scratch).is_err() {
                    return false;
                } else {
                    mix(*tier, spec, own, state, normed);
                }
            }
        }
        let (kind, role) = match found.residual {
            Residual { split: true, .. } => (PieceKind::Router, Role::RouterNorm),
            Residual { parallel: true, .. } => (PieceKind::Norms, Role::MixerNorm),
            _ => (PieceKind::Norms, Role::FfnNorm),
        };
        let piece = PieceId::new(layer as u32, kind);
        if spec.stream_gates().is_none() {
            let vectors = NormVectors::of(weights, piece, role, found.norm);
            norm(*tier, found.norm, normed, width, vectors);
        }
        if found.residual.split {
            scale(1.0 / (width as f32).sqrt(), normed);
        }
        input.pack(*tier, normed, tokens, width);
        let given = (&mut normed[..], &mut *input, &mut *gates);
        if gate_normed(branch, *tier, weights, given, scratch).is_err() {
            return false;
        }
        match moe.router {
            // Choices follow the order of the logits, which the softmax preserves.
            Router::Softmax { .. }
            | Router::SoftmaxScaled
            | Router::SoftmaxOfChosen
            | Router::Near { .. } => {
                logits(*tier, (layer, moe), weights, input, scores, scratch).is_ok()
            }
            Router::Ranked(router) | Router::Table(router) => {
                let [ranked, ranks] = ranked;
                for own in [&mut *ranked, &mut *ranks] {
                    own.clear();
                    own.resize(tokens * moe.scored(), 0.0);
                }
                let done = logits(*tier, (layer, moe), weights, input, ranked, scratch).is_ok();
                if done {
                    rank(*tier, (layer, router, moe.scored()), weights, ranked, ranks);
                    let rows = scores.chunks_exact_mut(moe.experts);
                    for (scores, ranks) in rows.zip(ranks.chunks_exact(moe.scored())) {
                        scores.copy_from_slice(&ranks[..moe.experts]);
                        restore_dropped(scores);
                    }
                }
                done
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_chosen_from_the_best_groups() {
        use GroupMeasure::{Best, BestTwo};
        let ranks = [0.75, 0.25, 0.0, 0.625, 0.5, 0.0, 0.75, 0.25, 0.25];
        #[rustfmt::skip]
        let cases = [
            // The measure, groups kept, and which they are.
            (Best, 1, &[0][..]),
            (Best, 2, &[0, 2]),
            (Best, 3, &[0, 1, 2]),
            // 1, 1.125 and 1: the first of equals is better.
            (BestTwo, 1, &[1]),
            (BestTwo, 2, &[0, 1]),
            (BestTwo, 3, &[0, 1, 2]),
        ];
        for (by, kept, expected) in cases {
            let mut found = ranks;
            drop_groups(ExpertGroups { count: 3, kept, by }, &mut found);
            for (expert, (found, rank)) in found.into_iter().zip(ranks).enumerate() {
                let is_kept = expected.contains(&(expert / 3));
                let rank = if is_kept { rank } else { f32::NEG_INFINITY };
                assert_eq!(found, rank, "{by:?}, {kept} kept: expert {expert}");
            }
        }
    }
}
