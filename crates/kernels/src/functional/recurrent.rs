//! Layers whose memory of earlier tokens has a fixed size: gated delta nets and their like, and
//! short convolutions.
//!
//! Tokens are always taken one after another, so a prompt has the same bits however it is divided.
//! What can be divided are heads and columns, which do not depend on each other.

use rayon::prelude::*;

use super::elementary::{bounded_decay, decay, exp, silu, softplus};
use super::lanes::{LANES, Lanes, dot, padded};
use super::vector::Wide;
use super::{reference, tiered};
use crate::{Strided, Tier};

/// The largest number of taps of a convolution.
pub const MAX_TAPS: usize = 8;

/// The shape of a layer whose heads each keep a matrix S [`key_dim`, `value_dim`].
///
/// For each token, S is multiplied by the decay; then S += k ⊗ u, where u is the value to write;
/// then the output is Sᵀ q. With `delta`, only what S does not already return for k is written:
/// u = β (v − Sᵀ k); without, u = β v. Sums go over k in ascending order, fused.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence {
    /// Heads.
    pub heads: usize,
    /// Heads of queries and keys; `heads` is a multiple of this.
    pub key_heads: usize,
    /// Elements of a query and a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// True if each element of a key has its own decay; otherwise one is for the whole head.
    pub decay_per_key: bool,
    /// True for the delta rule.
    pub delta: bool,
    /// True if a head has the queries and keys of the head with its number modulo `key_heads`;
    /// otherwise neighbours share them.
    pub tiled: bool,
}

/// The inputs of a [`Recurrence`] for some tokens.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceInputs<'a> {
    /// Number of tokens.
    pub tokens: usize,
    /// Queries: [tokens, key heads, key elements].
    pub q: Strided<&'a [f32]>,
    /// Keys, the same.
    pub k: Strided<&'a [f32]>,
    /// Values: [tokens, heads, value elements].
    pub v: Strided<&'a [f32]>,
    /// Factors of the state: [tokens, heads], or [tokens, heads, key elements].
    pub decay: &'a [f32],
    /// β: [tokens, heads].
    pub beta: &'a [f32],
}

impl Recurrence {
    /// Runs of 32 columns of a head; the last is padded with zeros.
    pub fn blocks(&self) -> usize {
        self.value_dim.div_ceil(LANES)
    }

    /// Numbers of the state: [heads, blocks, key elements, 32].
    pub fn state_len(&self) -> usize {
        self.heads * self.blocks() * self.key_dim * LANES
    }

    /// Numbers of the outputs of some tokens: [heads, blocks, tokens, 32].
    pub fn output_len(&self, tokens: usize) -> usize {
        self.heads * self.blocks() * tokens * LANES
    }

    /// The head of queries and keys that a head has.
    #[inline(always)]
    pub(super) fn key_head(&self, head: usize) -> usize {
        if self.tiled { head % self.key_heads } else { head / (self.heads / self.key_heads) }
    }

    /// The decays of a token and a head: one, or one for each element of a key.
    pub(super) fn decays<'a>(&self, all: &'a [f32], token: usize, head: usize) -> &'a [f32] {
        let each = if self.decay_per_key { self.key_dim } else { 1 };
        &all[(token * self.heads + head) * each..][..each]
    }
}

impl<'a> RecurrenceInputs<'a> {
    /// The query and the key of a token for a head.
    #[inline(always)]
    pub(super) fn query_and_key(
        &self,
        spec: &Recurrence,
        token: usize,
        head: usize,
    ) -> [&'a [f32]; 2] {
        let from = spec.key_head(head) * spec.key_dim;
        [self.q, self.k].map(
            #[inline(always)]
            |x| &x.numbers[token * x.stride + from..][..spec.key_dim],
        )
    }
}

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

/// A convolution over the last few tokens, for each channel by itself.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a> {
    /// Number of tokens, the current one included; up to [`MAX_TAPS`].
    pub taps: usize,
    /// Distance between tokens that are seen; 1 if none is left out.
    pub dilation: usize,
    /// [channels, taps], that of the current token last.
    pub weight: &'a [f32],
    /// Added to the sum, one for each channel.
    pub bias: Option<&'a [f32]>,
    /// True if SiLU is applied to the sum.
    pub silu: bool,
}

/// Some tokens of a sequence, as a [`ShortConv`] reads them.
#[derive(Clone, Copy, Debug)]
pub struct ConvInput<'a> {
    /// The inputs of the (taps − 1) · dilation tokens before, oldest first: [tokens, channels].
    pub past: &'a [f32],
    /// [tokens, channels]
    pub x: &'a [f32],
}

impl<'a> ConvInput<'a> {
    /// The row of the token `back` tokens before token `token`.
    #[inline(always)]
    pub(super) fn row(&self, channels: usize, token: usize, back: usize) -> &'a [f32] {
        let past = self.past.len() / channels;
        match token.checked_sub(back) {
            Some(token) => &self.x[token * channels..][..channels],
            None => &self.past[(past + token - back) * channels..][..channels],
        }
    }
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

/// Rates of decays, as checkpoints have them, and what is made of them.
#[derive(Clone, Copy, Debug)]
pub enum Rates<'a> {
    /// The logarithm of each: e^(−e^rate · softplus(x)).
    Logarithms(&'a [f32]),
    /// Each times −1: e^(rate · softplus(x)).
    Negative(&'a [f32]),
    /// The logarithm of each, and a bound below zero: e^(bound · sigmoid(e^rate · x)).
    Bounded(&'a [f32], f32),
}

impl Rates<'_> {
    fn len(&self) -> usize {
        let (Rates::Logarithms(all) | Rates::Negative(all) | Rates::Bounded(all, _)) = self;
        all.len()
    }

    /// The factor of a rate: of softplus(x), or of x within a bound.
    #[inline(always)]
    pub(super) fn factor(&self, i: usize) -> f32 {
        match self {
            Rates::Logarithms(all) => -exp(all[i]),
            Rates::Negative(all) => all[i],
            Rates::Bounded(all, _) => exp(all[i]),
        }
    }
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
        sum[i] = w[i].mul_add(x[i], sum[i]);
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
