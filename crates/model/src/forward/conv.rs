//! Gated short convolutions: each channel of a layer sees the last few tokens, between two gates.

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::{ConvInput, ShortConv, short_conv};

use super::attention::{AttentionContext, add_bias, rows_of};
use super::delta::advance;
use super::linear::{Product, multiply};
use super::work::{AttentionWork, Workspace, by_rows, grown};
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::ConvSpec;

/// Applies a gated convolution to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn conv(
    context: &AttentionContext<'_>,
    spec: ConvSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &AttentionContext { tier, layer: l, hidden, spans, .. } = context;
    let id = PieceId::new(l as u32, PieceKind::Attention);
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, mixed, packed, .. } = own;
    let tokens = input.tokens();
    // The gates of inputs, those of outputs, the inputs.
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
    for span in spans {
        let [past, _] = sequences[span.sequence].layers[l].recurrent().numbers();
        let x = rows_of(span, gated, hidden);
        let y = &mut mixed[span.first_row * hidden..][..x.len()];
        let given = ConvInput { past: &*past, x };
        by_rows(y, hidden, |first, y| short_conv(tier, &rule, given, first, y));
        advance(past, x);
    }
    by_rows(mixed, hidden, |first, rows| {
        let all = all[first * 3 * hidden..].chunks_exact(3 * hidden);
        for (row, all) in rows.chunks_exact_mut(hidden).zip(all) {
            row.iter_mut().zip(&all[hidden..]).for_each(|(y, gate)| *y *= gate);
        }
    });
    packed.pack(tier, mixed, tokens, hidden);
    let branch = grown(branch, tokens * hidden);
    let output = Product::new(id, Role::Output, packed, &mut *branch, hidden);
    multiply(tier, weights, &mut [Some(output)], scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(id, Role::OutputBias), branch);
    }
    Ok(())
}
