//! State spaces: a short convolution over inputs, keys and queries, then a matrix for each head, to
//! which every token is added and which decays with its step.
//!
//! Tokens go one after another, as in [gated delta nets](super::delta).

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::{
    Activation, ConvInput, NormWeight, Rates, RecurrenceInputs, ShortConv, axpy, decays, gate,
    recur, rms_norm, short_conv, steps,
};
use sws_kernels::{Strided, threads_for};

use super::attention::{AttentionContext, add_bias, rows_of};
use super::delta::{advance, collect, gather};
use super::linear::{Product, multiply};
use super::work::{AttentionWork, DeltaWork, Workspace, by_rows, grown};
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::StateSpaceSpec;

/// Applies a state space to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn state_space(
    context: &AttentionContext<'_>,
    spec: &StateSpaceSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &AttentionContext { tier, layer: l, hidden, spans, .. } = context;
    let id = PieceId::new(l as u32, PieceKind::Attention);
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, mixed, packed, delta, .. } = own;
    let DeltaWork { decay, beta, outputs } = delta;
    let tokens = input.tokens();
    let &StateSpaceSpec { heads, groups, key_dim, head_dim, taps, .. } = spec;
    let width = spec.width();
    let keys = spec.key_width();
    let channels = spec.channels();
    let all = grown(q, tokens * spec.rows());
    let product = Product::new(id, Role::MixedGate, input, &mut *all, spec.rows());
    multiply(tier, weights, &mut [Some(product)], scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(id, Role::MixedBias), all);
    }
    let parts = [width, channels, heads, 0];
    let decay = grown(decay, tokens * heads);
    let beta = grown(beta, tokens * heads);
    let raw = grown(v, tokens * channels);
    gather((all, 1), parts, 1, (&mut *raw, channels, 0));
    gather((all, 1), parts, 2, (&mut *decay, heads, 0));
    beta.copy_from_slice(decay);

    let weight = weights.vector(id, Role::Conv);
    let bias = spec.conv_bias.then(|| weights.vector(id, Role::ConvBias));
    let conv = ShortConv { taps, dilation: 1, weight, bias, silu: true };
    let filtered = grown(k, tokens * channels);
    for span in spans {
        let [past, _] = sequences[span.sequence].layers[l].recurrent().numbers();
        let x = rows_of(span, raw, channels);
        let y = &mut filtered[span.first_row * channels..][..x.len()];
        let given = ConvInput { past: &*past, x };
        by_rows(y, channels, |first, y| short_conv(tier, &conv, given, first, y));
        advance(past, x);
    }
    let rate = weights.vector(id, Role::DecayRate);
    let bias = weights.vector(id, Role::DecayBias);
    let rates = Rates::Logarithms(rate);
    by_rows(decay, heads, |_, rows| decays(tier, rows, rates, bias));
    by_rows(beta, heads, |_, rows| steps(tier, rows, bias));

    let rule = spec.recurrence();
    let outputs = grown(outputs, rule.output_len(tokens));
    let mixed = grown(mixed, tokens * width);
    for span in spans {
        let [_, sums] = sequences[span.sequence].layers[l].recurrent().numbers();
        let rows = rows_of(span, filtered, channels);
        let part = |from: usize| Strided { numbers: &rows[from..], stride: channels };
        let inputs = RecurrenceInputs {
            tokens: span.tokens,
            q: part(width + keys),
            k: part(width),
            v: part(0),
            decay: rows_of(span, decay, heads),
            beta: rows_of(span, beta, heads),
        };
        let y = &mut outputs[..rule.output_len(span.tokens)];
        let threads = threads_for(2 * span.tokens * heads * key_dim * head_dim);
        recur(tier, threads, &rule, &inputs, sums, y);
        let to = &mut mixed[span.first_row * width..][..span.tokens * width];
        collect(&rule, span.tokens, y, to);
    }
    let skip = weights.vector(id, Role::Skip);
    by_rows(mixed, width, |first, rows| {
        let inputs = filtered[first * channels..].chunks_exact(channels);
        for (row, inputs) in rows.chunks_exact_mut(width).zip(inputs) {
            let heads = row.chunks_exact_mut(head_dim).zip(inputs.chunks_exact(head_dim));
            for ((y, x), skip) in heads.zip(skip) {
                axpy(tier, *skip, x, y);
            }
        }
    });
    let gates = &mut raw[..tokens * width];
    gather((all, 1), parts, 0, (&mut *gates, width, 0));
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
    packed.pack(tier, gates, tokens, width);
    let branch = grown(branch, tokens * hidden);
    let output = Product::new(id, Role::Output, packed, &mut *branch, hidden);
    multiply(tier, weights, &mut [Some(output)], scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(id, Role::OutputBias), branch);
    }
    Ok(())
}
