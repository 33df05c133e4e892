//! Layers whose memory of earlier tokens has a fixed size: gated delta nets and their like, and
//! short convolutions.
//!
//! Tokens are always taken one after another, so a prompt has the same bits however it is divided.
//! What can be divided are heads and columns, which do not depend on each other.

use rayon::prelude::*;

use super::elementary::{bounded_decay, decay, silu, softplus};
use super::lanes::{LANES, Lanes, dot, padded};
use super::shapes::{ConvInput, MAX_TAPS, Rates, Recurrence, RecurrenceInputs, ShortConv};
use super::vector::Wide;
use super::{reference, tiered};
use crate::Tier;
use crate::scalar::fma;

/// Takes tokens through a recurrence: changes `state` and writes `y`, in the layouts of
/// [`Recurrence::state_len`] and [`Recurrence::output_len`].
pub fn recur(
    tier: Tier,
    threads: usize,
    spec: &Recurrence,
    inputs: &RecurrenceInputs,
    state: &mut [f32],
    y: &mut [f32],
) {
    let tokens = inputs.tokens;
    assert!(
        spec.key_heads > 0 && spec.heads.is_multiple_of(spec.key_heads) && spec.key_dim > 0,
        "recur: shapes"
    );
    assert!(state.len() == spec.state_len() && y.len() == spec.output_len(tokens), "recur: state");
    if y.is_empty() {
        return;
    }
    let units = spec.heads * spec.blocks();
    let states = state.par_chunks_exact_mut(spec.key_dim * LANES);
    let outputs = y.par_chunks_exact_mut(tokens * LANES);
    let each = units.div_ceil(threads.max(1));
    states.zip(outputs).enumerate().with_min_len(each).for_each(|(unit, (state, y))| {
        recur_tiered(tier, spec, inputs, unit, state, y);
    });
}

/// The convolution at the tokens from `first` on: one for each row of `y` [rows, channels]. Each
/// sum begins with the bias, or zero, and adds the oldest token first, fused.
pub fn short_conv(tier: Tier, conv: &ShortConv, input: ConvInput, first: usize, y: &mut [f32]) {
    let ShortConv { taps, dilation, weight, bias, .. } = *conv;
    let channels = weight.len() / taps.max(1);
    assert!((1..=MAX_TAPS).contains(&taps) && dilation > 0 && channels > 0, "short_conv: taps");
    assert!(
        weight.len() == channels * taps
            && bias.is_none_or(|bias| bias.len() == channels)
            && input.past.len() == (taps - 1) * dilation * channels
            && y.len().is_multiple_of(channels)
            && input.x.len() >= first * channels + y.len(),
        "short_conv: shapes"
    );
    short_conv_tiered(tier, conv, input, first, y);
}

/// x = x / √(Σ x² + eps) · scale for each row of `x` [rows, width], in place.
pub fn l2_norm(tier: Tier, x: &mut [f32], width: usize, eps: f32, scale: f32) {
    assert!(width > 0 && x.len().is_multiple_of(width), "l2_norm: shapes");
    l2_norm_tiered(tier, x, width, eps, scale);
}

/// x = the decay of x + `bias` for each row of `x` [rows, `bias`], in place. A rate serves as many
/// consecutive elements as there are for each.
pub fn decays(tier: Tier, x: &mut [f32], rates: Rates, bias: &[f32]) {
    let count = rates.len();
    assert!(
        count > 0 && bias.len().is_multiple_of(count) && x.len().is_multiple_of(bias.len().max(1)),
        "decays: shapes"
    );
    decays_tiered(tier, x, bias, bias.len() / count, rates);
}

/// x = softplus(x + `bias`) for each row of `x` [rows, `bias`], in place.
pub fn steps(tier: Tier, x: &mut [f32], bias: &[f32]) {
    assert!(x.len().is_multiple_of(bias.len().max(1)), "steps: shapes");
    steps_tiered(tier, x, bias);
}

tiered! {
    recur_tiered(
        spec: &Recurrence, inputs: &RecurrenceInputs, unit: usize, state: &mut [f32], y: &mut [f32],
    )
    simd: recur_lanes, reference: reference::recur
}

tiered! {
    short_conv_tiered(conv: &ShortConv, input: ConvInput, first: usize, y: &mut [f32])
    lanes: short_conv_lanes, reference: reference::short_conv
}

tiered! {
    l2_norm_tiered(x: &mut [f32], width: usize, eps: f32, scale: f32)
    lanes: l2_norm_lanes, reference: reference::l2_norm
}

tiered! {
    decays_tiered(x: &mut [f32], bias: &[f32], each: usize, rates: Rates)
    lanes: decays_lanes, reference: reference::decays
}

tiered! {
    steps_tiered(x: &mut [f32], bias: &[f32])
    lanes: steps_lanes, reference: reference::steps
}

/// Some columns of a head: all tokens while the columns' part of the state is in the nearest cache.
#[inline(always)]
fn recur_lanes<S: Wide>(
    simd: S,
    spec: &Recurrence,
    inputs: &RecurrenceInputs,
    unit: usize,
    state: &mut [f32],
    y: &mut [f32],
) {
    let head = unit / spec.blocks();
    let column = unit % spec.blocks() * LANES;
    let columns = LANES.min(spec.value_dim - column);
    let (state, _) = state.as_chunks_mut::<LANES>();
    let (y, _) = y.as_chunks_mut::<LANES>();
    // A sum that is -0 leaves every product as it is, even -0.
    let none = simd.splat(-0.0);
    for (token, y) in y.iter_mut().enumerate() {
        let [q, k] = inputs.query_and_key(spec, token, head);
        let from = token * inputs.v.stride + head * spec.value_dim + column;
        let v = simd.load(&padded(&inputs.v.numbers[from..from + columns], 0.0));
        let beta = simd.splat(inputs.beta[token * spec.heads + head]);
        let decays = spec.decays(inputs.decay, token, head);
        let decay = |i: usize| simd.splat(decays[if decays.len() == 1 { 0 } else { i }]);
        let mut write = v;
        if spec.delta {
            let mut known = simd.zero();
            for (i, (row, k)) in state.iter().zip(k).enumerate() {
                let row = simd.fma(simd.load(row), decay(i), none);
                known = simd.fma(simd.splat(*k), row, known);
            }
            write = simd.fma(known, simd.splat(-1.0), v);
        }
        let write = simd.fma(beta, write, none);
        let mut sum = simd.zero();
        for (i, ((row, k), q)) in state.iter_mut().zip(k).zip(q).enumerate() {
            let kept = simd.fma(simd.load(row), decay(i), none);
            let new = simd.fma(simd.splat(*k), write, kept);
            simd.store(new, row);
            sum = simd.fma(simd.splat(*q), new, sum);
        }
        simd.store(sum, y);
    }
}

#[inline(always)]
fn short_conv_lanes(conv: &ShortConv, input: ConvInput, first: usize, y: &mut [f32]) {
    let ShortConv { taps, dilation, weight, bias, silu: activated } = *conv;
    let channels = weight.len() / taps;
    for from in (0..channels).step_by(LANES) {
        let count = LANES.min(channels - from);
        let part = from..from + count;
        let mut weights = [[0.0; LANES]; MAX_TAPS];
        for (lane, of) in weight[from * taps..][..count * taps].chunks_exact(taps).enumerate() {
            for (weights, w) in weights.iter_mut().zip(of) {
                weights[lane] = *w;
            }
        }
        let start = bias.map_or([0.0; LANES], |bias| padded(&bias[part.clone()], 0.0));
        for (row, y) in y.chunks_exact_mut(channels).enumerate() {
            let mut sum = start;
            for (tap, w) in weights[..taps].iter().enumerate() {
                let back = (taps - 1 - tap) * dilation;
                let x = &input.row(channels, first + row, back)[part.clone()];
                match x.as_array::<LANES>() {
                    Some(x) => add_products(&mut sum, w, x),
                    None => add_products(&mut sum, w, &padded(x, 0.0)),
                }
            }
            if activated {
                for sum in &mut sum {
                    *sum = silu(*sum);
                }
            }
            y[part.clone()].copy_from_slice(&sum[..count]);
        }
    }
}

#[inline(always)]
fn add_products(sum: &mut Lanes, w: &Lanes, x: &Lanes) {
    for i in 0..LANES {
        sum[i] = fma(w[i], x[i], sum[i]);
    }
}

#[inline(always)]
fn l2_norm_lanes(x: &mut [f32], width: usize, eps: f32, scale: f32) {
    for row in x.chunks_exact_mut(width) {
        let by = 1.0 / (dot(row, row) + eps).sqrt();
        for x in row {
            *x = *x * by * scale;
        }
    }
}

#[inline(always)]
fn decays_lanes(x: &mut [f32], bias: &[f32], each: usize, rates: Rates) {
    // A loop that matches per element would not be vectorised.
    match rates {
        Rates::Bounded(_, bound) => {
            each_decay(x, bias, each, rates, |x, factor| bounded_decay(x, factor, bound));
        }
        _ => each_decay(x, bias, each, rates, decay),
    }
}

#[inline(always)]
fn each_decay(
    x: &mut [f32],
    bias: &[f32],
    each: usize,
    rates: Rates,
    decay: impl Fn(f32, f32) -> f32,
) {
    for row in x.chunks_exact_mut(bias.len()) {
        let parts = row.chunks_exact_mut(each).zip(bias.chunks_exact(each));
        for (i, (row, bias)) in parts.enumerate() {
            let factor = rates.factor(i);
            for (x, bias) in row.iter_mut().zip(bias) {
                *x = decay(*x + bias, factor);
            }
        }
    }
}

#[inline(always)]
fn steps_lanes(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len().max(1)) {
        for (x, bias) in row.iter_mut().zip(bias) {
            *x = softplus(*x + bias);
        }
    }
}
