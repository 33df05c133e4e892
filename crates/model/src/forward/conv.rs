//! Gated short convolutions: each channel of a layer sees the last few tokens, between two gates.

use sws_kernels::functional::ShortConv;

use super::by_rows::by_rows;
use super::linear::{Product, multiply};
use super::mixer::{MixerContext, OutputRoom, add_bias, project_out};
use super::past::filter;
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::ConvSpec;
use crate::workspace::{AttentionWork, Workspace, grown};

/// Applies a gated convolution to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn conv(
    context: &MixerContext<'_>,
    spec: ConvSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &MixerContext { tier, layer: l, hidden, spans, .. } = context;
    let id = context.id();
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, mixed, packed, .. } = own;
    let tokens = input.tokens();
    // Gates of inputs, gates of outputs, and inputs.
    let all = grown(q, tokens * 3 * hidden);
    let product = Product::new(id, Role::MixedGate, input, &mut *all, 3 * hidden);
    multiply(tier, weights, &mut [Some(product)], scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(id, Role::MixedBias), all);
    }
    let gated = grown(k, tokens * hidden);
    by_rows(gated, hidden, |first, rows| {
        let all = all[first * 3 * hidden..].chunks_exact(3 * hidden);
        for (row, all) in rows.chunks_exact_mut(hidden).zip(all) {
            let gates = &all[..hidden];
            let inputs = &all[2 * hidden..];
            for ((y, gate), x) in row.iter_mut().zip(gates).zip(inputs) {
                *y = gate * x;
            }
        }
    });
    let weight = weights.vector(id, Role::Conv);
    let bias = spec.bias.then(|| weights.vector(id, Role::ConvBias));
    let rule = ShortConv { taps: spec.taps, dilation: 1, weight, bias, silu: false };
    let mixed = grown(mixed, tokens * hidden);
    filter(tier, &rule, (spans, sequences), |of| of.past(l), (gated, &mut *mixed, hidden));
    by_rows(mixed, hidden, |first, rows| {
        let all = all[first * 3 * hidden..].chunks_exact(3 * hidden);
        for (row, all) in rows.chunks_exact_mut(hidden).zip(all) {
            for (y, gate) in row.iter_mut().zip(&all[hidden..]) {
                *y *= gate;
            }
        }
    });
    let room = OutputRoom { packed, branch, scratch };
    project_out(context, weights, (mixed, hidden), spec.bias, room)
}
