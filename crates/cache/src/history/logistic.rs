//! The logistic model that combines all statistics of an expert.

use super::cursor::Recent;
use super::{HALF_LIVES, HistoryLayer, HistoryScratch, PRIOR};
use crate::math::{ln, logistic};
use crate::shape::{FEATURES, HORIZONS};

/// Weight of uniform use of all experts, in steps, in the average over all time.
const EVEN: f32 = 20.0;

/// Weights for 1, 4, 16 and 64 steps: the mean of two fits to the routes of 12,000 tokens of
/// gpt-oss-20b and 5,630 of tales-moe that are not used for measurements. One of the fits adds
/// synthetic routes in which experts tend to stay in use. Neither has seen routes of DeepSeek or
/// Qwen.
#[rustfmt::skip]
pub(super) const WEIGHTS: [[f32; FEATURES]; HORIZONS] = [
    [-0.143, 0.037, -0.017, 0.383, -0.270, 0.005, -0.789, -0.376, 1.490, 0.209, 0.776],
    [1.470, 0.027, 0.016, 0.328, -0.010, -0.017, -0.242, -0.404, 0.754, 0.322, 0.223],
    [3.471, 0.026, 0.025, 0.285, 0.138, -0.022, 0.054, -0.698, 0.426, 0.294, 0.021],
    [5.772, 0.064, 0.082, 0.302, 0.089, 0.045, 0.205, -0.739, 0.225, 0.312, -0.014],
];

/// Weights of the second fit for use without token ids.
#[rustfmt::skip]
pub(super) const WITHOUT_TOKENS: [[f32; FEATURES]; HORIZONS] = [
    [-0.114, 0.017, -0.059, 0.357, -0.315, -0.028, -0.787, -0.631, 1.657, 0.128, 0.000],
    [1.404, 0.005, -0.034, 0.239, 0.010, 0.071, -0.374, -0.879, 0.875, 0.184, 0.000],
    [3.187, -0.032, -0.044, 0.102, 0.196, -0.014, 0.001, -1.620, 0.491, 0.154, 0.000],
    [5.377, 0.031, 0.009, 0.179, 0.137, -0.043, 0.296, -1.215, 0.263, 0.139, 0.000],
];

/// Turns log-odds of use [horizons, experts] into chances of absence.
pub(super) fn absence(all: &mut [f32]) {
    for odds in all.iter_mut() {
        *odds = logistic(-*odds);
    }
    let experts = all.len() / HORIZONS;
    for horizon in 1..HORIZONS {
        let (nearer, this) = all.split_at_mut(horizon * experts);
        let nearer = &nearer[(horizon - 1) * experts..];
        for (this, nearer) in this.iter_mut().zip(nearer) {
            *this = this.min(*nearer);
        }
    }
}

/// Writes to `scratch.absence` the log-odds of the use of a layer's experts by a sequence, without
/// a correction. `after` has the number of steps after the sequence's last token, and how many of
/// them used each expert. `even` is the share of steps that use an expert if all are used evenly.
pub(super) fn odds(
    layer: &HistoryLayer,
    recent: &Recent,
    after: Option<(u8, &[u8])>,
    even: f32,
    scratch: &mut HistoryScratch,
) {
    let experts = layer.count.len();
    if experts == 0 {
        return;
    }
    let (averages, rest) = scratch.features.split_at_mut(HALF_LIVES.len() * experts);
    let (overall, rest) = rest.split_at_mut(experts);
    let (age, rest) = rest.split_at_mut(experts);
    let (follows, rest) = rest.split_at_mut(experts);
    let (second, rest) = rest.split_at_mut(experts);
    let (token, _) = rest.split_at_mut(experts);

    for (odds, average) in averages.iter_mut().zip(&recent.averages) {
        *odds = log_odds(*average);
    }
    let scale = 1.0 / (layer.steps + EVEN);
    for (share, count) in overall.iter_mut().zip(&layer.count) {
        *share = (count + EVEN * even) * scale;
    }
    follows.copy_from_slice(overall);
    second.copy_from_slice(overall);
    if let Some(pairs) = &layer.pairs {
        let of = [(&recent.last, &mut *follows), (&recent.before, &mut *second)];
        for (pairs, (before, chances)) in pairs.iter().zip(of) {
            if !before.is_empty() {
                pairs.chances(before, overall, chances);
            }
        }
    }
    token.copy_from_slice(follows);
    if let Some((seen, counts)) = after {
        let weight = 1.0 / (f32::from(seen) + PRIOR);
        for ((chance, &count), prior) in token.iter_mut().zip(counts).zip(&*follows) {
            *chance = weight * (f32::from(count) + PRIOR * prior);
        }
    }
    let all = overall.iter_mut().chain(&mut *follows).chain(&mut *second).chain(&mut *token);
    for chance in all {
        *chance = log_odds(*chance);
    }
    for (second, overall) in second.iter_mut().zip(&*overall) {
        *second -= overall;
    }
    for (token, follows) in token.iter_mut().zip(&*follows) {
        *token -= follows;
    }
    for (log, steps) in age.iter_mut().zip(&recent.age) {
        *log = 0.3 * ln(1.0 + steps);
    }

    let weights = if recent.token.is_some() { &WEIGHTS } else { &WITHOUT_TOKENS };
    for (absence, weights) in scratch.absence.chunks_exact_mut(experts).zip(weights) {
        absence.fill(weights[0]);
        for (feature, weight) in scratch.features.chunks_exact(experts).zip(&weights[1..]) {
            for (sum, value) in absence.iter_mut().zip(feature) {
                *sum += weight * value;
            }
        }
    }
}

/// ln(p / (1 - p)), with p kept at least 0.0005 away from 0 and 1.
pub fn log_odds(p: f32) -> f32 {
    let p = p.clamp(0.0005, 0.9995);
    ln(p / (1.0 - p))
}
