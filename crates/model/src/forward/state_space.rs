//! State spaces: a short convolution over inputs, keys and queries, then a matrix for each head, to
//! which every token is added and which decays with its step.

use sws_format::Span;
use sws_kernels::Strided;
use sws_kernels::functional::{
    Activation, NormWeight, Rates, RecurrenceInputs, ShortConv, axpy, decays, gate, rms_norm, steps,
};

use super::by_rows::{HeadPart, by_rows, gather, rows_of};
use super::linear::{Product, multiply};
use super::mixer::{MixerContext, OutputRoom, add_bias, project_out};
use super::past::filter;
use super::recurrence;
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::StateSpaceSpec;
use crate::workspace::{AttentionWork, DeltaWork, Workspace, grown};

/// Applies a state space to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn state_space(
    context: &MixerContext<'_>,
    spec: &StateSpaceSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &MixerContext { tier, layer: l, spans, .. } = context;
    let id = context.id();
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, mixed, packed, delta, .. } = own;
    let DeltaWork { decay, beta, outputs } = delta;
    let tokens = input.tokens();
    let &StateSpaceSpec { heads, groups, taps, .. } = spec;
    let width = spec.width();
    let keys = spec.key_width();
    let channels = spec.channels();

    // Projects the normed state.
    let all = grown(q, tokens * spec.rows());
    let product = Product::new(id, Role::MixedGate, input, &mut *all, spec.rows());
    multiply(tier, weights, &mut [Some(product)], scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(id, Role::MixedBias), all);
    }
    let part = |before, len| HeadPart { heads: 1, each: spec.rows(), len, before };
    let decay = grown(decay, tokens * heads);
    let beta = grown(beta, tokens * heads);
    let raw = grown(v, tokens * channels);
    gather(all, part(width, channels), (&mut *raw, channels, 0));
    gather(all, part(width + channels, heads), (&mut *decay, heads, 0));
    beta.copy_from_slice(decay);

    // Applies the convolution, and computes decays and steps.
    let weight = weights.vector(id, Role::Conv);
    let bias = spec.conv_bias.then(|| weights.vector(id, Role::ConvBias));
    let conv = ShortConv { taps, dilation: 1, weight, bias, silu: true };
    let filtered = grown(k, tokens * channels);
    let batch = (spans, &mut *sequences);
    filter(tier, &conv, batch, |of| of.past(l), (raw, &mut *filtered, channels));
    let rates = weights.vector(id, Role::DecayRate);
    let rates = if spec.powers { Rates::Negative(rates) } else { Rates::Logarithms(rates) };
    let bias = weights.vector(id, Role::DecayBias);
    by_rows(decay, heads, |_, rows| decays(tier, rows, rates, bias));
    by_rows(beta, heads, |_, rows| steps(tier, rows, bias));

    // Runs the recurrence.
    let rule = spec.recurrence();
    let outputs = grown(outputs, rule.output_len(tokens));
    let mixed = grown(mixed, tokens * width);
    let filtered = &*filtered;
    let decay = &*decay;
    let beta = &*beta;
    let inputs = |span: &Span| {
        let rows = rows_of(span, filtered, channels);
        let part = |from: usize| Strided { numbers: &rows[from..], stride: channels };
        RecurrenceInputs {
            tokens: span.tokens,
            q: part(width + keys),
            k: part(width),
            v: part(0),
            decay: rows_of(span, decay, heads),
            beta: rows_of(span, beta, heads),
        }
    };
    recurrence::run(context, &rule, sequences, inputs, (outputs, &mut *mixed));
    add_skips(context, spec, weights.vector(id, Role::Skip), filtered, mixed);

    // Gates, norms and projects out.
    let gates = &mut raw[..tokens * width];
    gather(all, part(0, width), (&mut *gates, width, 0));
    let weight = weights.vector(id, Role::MixedNorm);
    let each = width / groups;
    by_rows(gates, width, |first, rows| {
        gate(tier, Activation::Silu, rows, &mixed[first * width..][..rows.len()]);
        for row in rows.chunks_exact_mut(width) {
            for (x, weight) in row.chunks_exact_mut(each).zip(weight.chunks_exact(each)) {
                rms_norm(tier, x, each, NormWeight::Plain(weight), spec.eps);
            }
        }
    });
    let room = OutputRoom { packed, branch, scratch };
    project_out(context, weights, (gates, width), spec.bias, room)
}

/// Adds the skip term to the outputs of each head.
fn add_skips(
    context: &MixerContext<'_>,
    spec: &StateSpaceSpec,
    skip: &[f32],
    filtered: &[f32],
    outputs: &mut [f32],
) {
    let width = spec.width();
    let channels = spec.channels();
    let head_dim = spec.head_dim;
    by_rows(outputs, width, |first, rows| {
        let inputs = filtered[first * channels..].chunks_exact(channels);
        for (row, inputs) in rows.chunks_exact_mut(width).zip(inputs) {
            let heads = row.chunks_exact_mut(head_dim).zip(inputs.chunks_exact(head_dim));
            for ((y, x), skip) in heads.zip(skip) {
                axpy(context.tier, *skip, x, y);
            }
        }
    });
}
