//! Gated delta nets: a short convolution over queries, keys and values, then a matrix for each head
//! that is corrected with every token.

mod project;

use sws_format::Span;
use sws_kernels::functional::elementary::ln64;
use sws_kernels::functional::{
    NormWeight, Rates, RecurrenceInputs, ShortConv, decays, gate, l2_norm, sigmoid,
};
use sws_kernels::{Strided, Tier};

use super::by_rows::{by_rows, rows_of};
use super::mixer::{MixerContext, OutputRoom, project_out};
use super::norms::rms_norm_rows;
use super::past::filter;
use super::recurrence;
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::DeltaSpec;
use crate::workspace::{AttentionWork, DeltaWork, Workspace, grown};
use project::{Projected, Rooms, project};

/// Number added to the sum of squares of a query or key.
const EPS: f32 = 1e-6;

/// Applies a gated delta net to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn delta(
    context: &MixerContext<'_>,
    spec: &DeltaSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &MixerContext { tier, .. } = context;
    let id = context.id();
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, mixed, packed, delta, .. } = own;
    let DeltaWork { decay, beta, outputs } = delta;
    let tokens = input.tokens();
    let values = spec.value_width();
    let to = Projected {
        raw: grown(q, tokens * spec.channels()),
        gates: grown(v, tokens * values),
        decay: grown(decay, tokens * spec.decays()),
        beta: grown(beta, tokens * spec.heads),
    };
    let rooms = Rooms { mixed, pairs: outputs, packed, scratch };
    let Projected { raw, gates, decay, beta } = project(context, spec, weights, input, to, rooms)?;
    sigmoid(tier, beta);

    let filtered = grown(k, tokens * spec.channels());
    convolve(context, spec, weights, sequences, (raw, filtered));
    // The buffer is free, as the recurrence has not run yet.
    let logarithms = grown(outputs, spec.heads);
    let rates = rates(spec, weights.vector(id, Role::DecayRate), logarithms);
    let bias = weights.vector(id, Role::DecayBias);
    by_rows(decay, spec.decays(), |_, rows| decays(tier, rows, rates, bias));
    norm_lengths(tier, spec, tokens, filtered);

    let rule = spec.recurrence();
    let filtered = &*filtered;
    let decay = &*decay;
    let beta = &*beta;
    let outputs = grown(outputs, rule.output_len(tokens));
    let mixed = grown(mixed, tokens * values);
    let inputs = |span: &Span| {
        let part = |place| part_of(spec, tokens, filtered, (span, place));
        RecurrenceInputs {
            tokens: span.tokens,
            q: part(0),
            k: part(spec.key_width()),
            v: part(2 * spec.key_width()),
            decay: rows_of(span, decay, spec.decays()),
            beta: rows_of(span, beta, spec.heads),
        }
    };
    recurrence::run(context, &rule, sequences, inputs, (outputs, &mut *mixed));

    let weight = NormWeight::Plain(weights.vector(id, Role::MixedNorm));
    rms_norm_rows(tier, mixed, spec.value_dim, weight, spec.eps);
    by_rows(gates, values, |first, gates| {
        gate(tier, spec.gate, gates, &mixed[first * values..][..gates.len()]);
    });
    let room = OutputRoom { packed, branch, scratch };
    project_out(context, weights, (gates, values), false, room)
}

/// Applies the convolutions to queries, keys and values: one each, or one for all of them.
fn convolve(
    context: &MixerContext<'_>,
    spec: &DeltaSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    (raw, filtered): (&[f32], &mut [f32]),
) {
    let &MixerContext { tier, layer: l, spans, .. } = context;
    let tokens = context.tokens();
    let taps = spec.taps;
    let mut before = 0;
    for (role, width) in spec.convs() {
        let weight = weights.vector(context.id(), role);
        let rule = ShortConv { taps, dilation: 1, weight, bias: None, silu: true };
        let raw = &raw[tokens * before..][..tokens * width];
        let filtered = &mut filtered[tokens * before..][..tokens * width];
        let first = (taps - 1) * before;
        let batch = (spans, &mut *sequences);
        filter(tier, &rule, batch, |of| &mut of.past(l)[first..], (raw, filtered, width));
        before += width;
    }
}

/// The rates of decay, in the form in which they are stored. Within a bound they are logarithms.
fn rates<'a>(spec: &DeltaSpec, stored: &'a [f32], logarithms: &'a mut [f32]) -> Rates<'a> {
    let rate = &stored[..spec.heads];
    match (spec.powers, spec.bound) {
        (true, None) => Rates::Negative(rate),
        (true, Some(bound)) => {
            for (to, rate) in logarithms.iter_mut().zip(rate) {
                *to = ln64(f64::from(rate.abs())) as f32;
            }
            Rates::Bounded(logarithms, bound)
        }
        (false, Some(bound)) => Rates::Bounded(rate, bound),
        (false, None) => Rates::Logarithms(rate),
    }
}

/// Normalises the lengths of queries and keys. They lie side by side in rows, or one after another.
fn norm_lengths(tier: Tier, spec: &DeltaSpec, tokens: usize, filtered: &mut [f32]) {
    let keys = spec.key_width();
    let scale = (1.0 / (spec.key_dim as f64).sqrt()) as f32;
    for (from, scale) in [(0, scale), (keys, 1.0)] {
        let (rows, stride, at) = match spec.decay_per_key() {
            true => (&mut filtered[tokens * from..][..tokens * keys], keys, 0),
            false => (&mut *filtered, spec.channels(), from),
        };
        by_rows(rows, stride, |_, rows| {
            for row in rows.chunks_exact_mut(stride) {
                l2_norm(tier, &mut row[at..at + keys], spec.key_dim, EPS, scale);
            }
        });
    }
}

/// The queries, keys or values of a sequence, whose elements begin at `from`. All lie side by side in
/// rows, or one after another.
fn part_of<'a>(
    spec: &DeltaSpec,
    tokens: usize,
    filtered: &'a [f32],
    (span, from): (&Span, usize),
) -> Strided<&'a [f32]> {
    let width = if from < 2 * spec.key_width() { spec.key_width() } else { spec.value_width() };
    let (start, stride) = match spec.decay_per_key() {
        true => (tokens * from, width),
        false => (from, spec.channels()),
    };
    Strided { numbers: &filtered[start + span.first_row * stride..], stride }
}
