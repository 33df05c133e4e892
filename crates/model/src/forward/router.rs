//! The router of a layer: its logits, and the selection of experts.
//!
//! The pass and the forecasts that query a router early ([`RouterProbe`]) call the same functions.

use rayon::prelude::*;
use sws_kernels::functional::{softmax, top_k};
use sws_kernels::{Input, ThreadScratch, Tier};
use sws_store::{PieceId, PieceKind};

use super::attention::add_bias;
use super::linear::{Product, Threads, multiply};
use super::norm;
use crate::role::Role;
use crate::source::{Routed, SourceError, Weights};
use crate::spec::{ModelSpec, MoeSpec, Router};

/// Number of tokens for which a thread selects experts at a time.
const SELECT_ROWS: usize = 32;

/// Computes the router's logits [tokens, experts] of layer `l` from the normed state in `input`.
pub(super) fn logits(
    (tier, threads): (Tier, Threads),
    (l, spec): (usize, &MoeSpec),
    weights: &mut dyn Weights,
    input: &Input,
    logits: &mut [f32],
    scratch: &mut Vec<ThreadScratch>,
) -> Result<(), SourceError> {
    let piece = PieceId::new(l as u32, PieceKind::Router);
    let product = Product::new(piece, Role::Router, input, &mut *logits, spec.experts);
    multiply(tier, threads, weights, &mut [Some(product)], scratch)?;
    if spec.router_bias {
        add_bias(tier, weights.vector(piece, Role::RouterBias), logits);
    }
    Ok(())
}

/// Selects the experts of each token from the router's logits [tokens, experts], which are
/// overwritten.
pub(super) fn select(tier: Tier, spec: &MoeSpec, logits: &mut [f32], routed: &mut Routed) {
    let (experts, k) = (spec.experts, spec.top_k);
    let choices = logits.len() / experts * k;
    routed.top_k = k;
    routed.choices.resize(choices, 0);
    routed.weights.resize(choices, 0.0);
    let logits = logits.par_chunks_mut(SELECT_ROWS * experts);
    let choices = routed.choices.par_chunks_mut(SELECT_ROWS * k);
    let weights = routed.weights.par_chunks_mut(SELECT_ROWS * k);
    logits.zip(choices).zip(weights).for_each(|((logits, choices), weights)| match spec.router {
        Router::Softmax { renormalise } => {
            softmax(tier, logits, experts);
            let selected = choices.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
            for (probabilities, (choices, weights)) in logits.chunks_exact(experts).zip(selected) {
                top_k(probabilities, choices);
                for (weight, &expert) in weights.iter_mut().zip(&*choices) {
                    *weight = probabilities[expert as usize];
                }
                if renormalise {
                    let sum: f32 = weights.iter().sum();
                    weights.iter_mut().for_each(|weight| *weight /= sum);
                }
            }
        }
        Router::SoftmaxOfChosen => {
            let selected = choices.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
            for (logits, (choices, weights)) in logits.chunks_exact(experts).zip(selected) {
                top_k(logits, choices);
                for (weight, &expert) in weights.iter_mut().zip(&*choices) {
                    *weight = logits[expert as usize];
                }
                softmax(tier, weights, k);
            }
        }
    });
    routed.distinct.clear();
    routed.distinct.extend_from_slice(&routed.choices);
    routed.distinct.sort_unstable();
    routed.distinct.dedup();
}

/// Queries routers about states other than those of their own layer, for a forecast.
#[derive(Debug)]
pub struct RouterProbe {
    tier: Tier,
    normed: Vec<f32>,
    input: Input,
    scratch: Vec<ThreadScratch>,
}

impl RouterProbe {
    /// A probe that computes like a pass with these kernels.
    pub fn new(tier: Tier) -> RouterProbe {
        let (normed, input, scratch) = Default::default();
        RouterProbe { tier, normed, input, scratch }
    }

    /// Writes to `scores` [tokens, experts] the values by which a layer's router would rank the
    /// experts if its attention had produced `state` [tokens, hidden]. Returns false, leaving
    /// `scores` unchanged, if the layer has no experts or another number of them, or if the router
    /// is not in memory.
    ///
    /// Runs on the calling thread: for one token, waking another takes longer.
    pub fn scores(
        &mut self,
        spec: &ModelSpec,
        layer: usize,
        weights: &mut dyn Weights,
        state: &[f32],
        scores: &mut [f32],
    ) -> bool {
        let Some(found) = spec.layers.get(layer) else { return false };
        let Some(moe) = found.moe() else { return false };
        let (width, tokens) = (spec.hidden, state.len() / spec.hidden);
        let router = PieceId::new(layer as u32, PieceKind::Router);
        if scores.len() != tokens * moe.experts || weights.matrix(router, Role::Router).is_none() {
            return false;
        }
        let RouterProbe { tier, normed, input, scratch } = self;
        normed.clear();
        normed.extend_from_slice(state);
        let weight = weights.vector(PieceId::new(layer as u32, PieceKind::Norms), Role::FfnNorm);
        norm(*tier, found.norm, normed, width, weight);
        input.pack(*tier, normed, tokens, width);
        let how = (*tier, Threads::One);
        match moe.router {
            // Choices follow the order of the logits, which the softmax keeps.
            Router::Softmax { .. } | Router::SoftmaxOfChosen => {
                logits(how, (layer, moe), weights, input, scores, scratch).is_ok()
            }
        }
    }
}
