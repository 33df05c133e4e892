//! Gated delta nets: a short convolution over queries, keys and values, then a matrix for each head
//! that is corrected with every token.
//!
//! Tokens go through both one after another, whatever the length of a chunk, so the state after a
//! token has the same bits in any division of a text. Heads and columns are divided among threads.

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::{
    ConvInput, NormWeight, Rates, Recurrence, RecurrenceInputs, ShortConv, decays, gate, l2_norm,
    recur, rms_norm, short_conv, sigmoid,
};
use sws_kernels::{Strided, threads_for};

use super::attention::{AttentionContext, rows_of};
use super::linear::{Product, multiply};
use super::work::{AttentionWork, DeltaWork, Workspace, by_rows, grown};
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::{DeltaInputs, DeltaSpec};

/// Added to the sum of squares of a query or key.
const EPS: f32 = 1e-6;

/// Applies a gated delta net to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn delta(
    context: &AttentionContext<'_>,
    spec: &DeltaSpec,
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
    let &DeltaSpec { heads, key_heads, key_dim, value_dim, taps, .. } = spec;
    let keys = spec.key_width();
    let values = spec.value_width();
    let channels = spec.channels();
    let raw = grown(q, tokens * channels);
    let gates = grown(v, tokens * values);
    let decay = grown(decay, tokens * spec.decays());
    let beta = grown(beta, tokens * heads);
    match spec.inputs {
        DeltaInputs::Separate | DeltaInputs::Tiled => {
            let mut products = [
                Some(Product::new(id, Role::Mixed, input, &mut *raw, channels)),
                Some(Product::new(id, Role::OutputGate, input, &mut *gates, values)),
                Some(Product::new(id, Role::Beta, input, &mut *beta, heads)),
                Some(Product::new(id, Role::Decay, input, &mut *decay, heads)),
            ];
            multiply(tier, weights, &mut products, scratch)?;
        }
        DeltaInputs::ByKeyHead => {
            let all = grown(mixed, tokens * (channels + values));
            let pairs = grown(outputs, tokens * 2 * heads);
            let mut products = [
                Some(Product::new(id, Role::MixedGate, input, &mut *all, channels + values)),
                Some(Product::new(id, Role::BetaDecay, input, &mut *pairs, 2 * heads)),
            ];
            multiply(tier, weights, &mut products, scratch)?;
            let each = values / key_heads;
            let parts = [key_dim, key_dim, each, each];
            for part in 0..3 {
                let from = [0, keys, 2 * keys][part];
                gather((all, key_heads), parts, part, (&mut *raw, channels, from));
            }
            gather((all, key_heads), parts, 3, (&mut *gates, values, 0));
            take_apart(pairs, (key_heads, heads), [&mut *beta, &mut *decay]);
        }
        DeltaInputs::Pairs => {
            let pairs = grown(outputs, tokens * 2 * heads);
            let mut products = [
                Some(Product::new(id, Role::Mixed, input, &mut *raw, channels)),
                Some(Product::new(id, Role::OutputGate, input, &mut *gates, values)),
                Some(Product::new(id, Role::BetaDecay, input, &mut *pairs, 2 * heads)),
            ];
            multiply(tier, weights, &mut products, scratch)?;
            take_apart(pairs, (key_heads, heads), [&mut *beta, &mut *decay]);
        }
        DeltaInputs::Apart => {
            let (queries, others) = raw.split_at_mut(tokens * keys);
            let (own_keys, own_values) = others.split_at_mut(tokens * keys);
            let mut products = [
                Some(Product::new(id, Role::Query, input, queries, keys)),
                Some(Product::new(id, Role::Key, input, own_keys, keys)),
                Some(Product::new(id, Role::Value, input, own_values, values)),
                Some(Product::new(id, Role::OutputGate, input, &mut *gates, values)),
                Some(Product::new(id, Role::Beta, input, &mut *beta, heads)),
                Some(Product::new(id, Role::Decay, input, &mut *decay, spec.decays())),
            ];
            multiply(tier, weights, &mut products, scratch)?;
        }
        DeltaInputs::PerElement { rank, gate_latent } => {
            let (queries, others) = raw.split_at_mut(tokens * keys);
            let (own_keys, own_values) = others.split_at_mut(tokens * keys);
            let (of_decays, of_gates) = grown(mixed, 2 * tokens * rank).split_at_mut(tokens * rank);
            let gate = match gate_latent {
                true => Product::new(id, Role::OutputGateDown, input, &mut *of_gates, rank),
                false => Product::new(id, Role::OutputGate, input, &mut *gates, values),
            };
            // In the order in which they are stored.
            let (first, last) = if gate_latent { (None, Some(gate)) } else { (Some(gate), None) };
            let mut products = [
                Some(Product::new(id, Role::Query, input, queries, keys)),
                Some(Product::new(id, Role::Key, input, own_keys, keys)),
                Some(Product::new(id, Role::Value, input, own_values, values)),
                first,
                Some(Product::new(id, Role::Beta, input, &mut *beta, heads)),
                Some(Product::new(id, Role::DecayDown, input, &mut *of_decays, rank)),
                last,
            ];
            multiply(tier, weights, &mut products, scratch)?;
            let of_gates = (of_gates, Role::OutputGateUp, &mut *gates, values);
            let ups = [
                Some((of_decays, Role::DecayUp, &mut *decay, spec.decays())),
                gate_latent.then_some(of_gates),
            ];
            for (latent, role, y, rows) in ups.into_iter().flatten() {
                packed.pack(tier, latent, tokens, rank);
                let product = Product::new(id, role, packed, y, rows);
                multiply(tier, weights, &mut [Some(product)], scratch)?;
            }
        }
    }
    sigmoid(tier, beta);
    let filtered = grown(k, tokens * channels);
    let mut before = 0;
    for (role, width) in spec.convs() {
        let weight = weights.vector(id, role);
        let conv = ShortConv { taps, dilation: 1, weight, bias: None, silu: true };
        let raw = &raw[tokens * before..][..tokens * width];
        let filtered = &mut filtered[tokens * before..][..tokens * width];
        for span in spans {
            let [past, _] = sequences[span.sequence].layers[l].recurrent().numbers();
            let past = &mut past[(taps - 1) * before..][..(taps - 1) * width];
            let x = rows_of(span, raw, width);
            let y = &mut filtered[span.first_row * width..][..x.len()];
            let given = ConvInput { past: &*past, x };
            by_rows(y, width, |first, y| short_conv(tier, &conv, given, first, y));
            advance(past, x);
        }
        before += width;
    }
    let rate = weights.vector(id, Role::DecayRate);
    let bias = weights.vector(id, Role::DecayBias);
    let rate = &rate[..heads];
    let rates = match (spec.inputs, spec.bound) {
        (DeltaInputs::Tiled | DeltaInputs::Pairs, _) => Rates::Negative(rate),
        (_, Some(bound)) => Rates::Bounded(rate, bound),
        (_, None) => Rates::Logarithms(rate),
    };
    by_rows(decay, spec.decays(), |_, rows| decays(tier, rows, rates, bias));
    // Queries, keys and values lie side by side in rows, or one after another.
    let apart = spec.decay_per_key();
    let scale = (1.0 / (key_dim as f64).sqrt()) as f32;
    for (from, scale) in [(0, scale), (keys, 1.0)] {
        let (rows, stride, at) = match apart {
            true => (&mut filtered[tokens * from..][..tokens * keys], keys, 0),
            false => (&mut *filtered, channels, from),
        };
        by_rows(rows, stride, |_, rows| {
            for row in rows.chunks_exact_mut(stride) {
                l2_norm(tier, &mut row[at..at + keys], key_dim, EPS, scale);
            }
        });
    }

    let rule = spec.recurrence();
    let outputs = grown(outputs, rule.output_len(tokens));
    let mixed = grown(mixed, tokens * values);
    for span in spans {
        let [_, sums] = sequences[span.sequence].layers[l].recurrent().numbers();
        let part = |from: usize, width: usize| {
            let (start, stride) = if apart { (tokens * from, width) } else { (from, channels) };
            Strided { numbers: &filtered[start + span.first_row * stride..], stride }
        };
        let inputs = RecurrenceInputs {
            tokens: span.tokens,
            q: part(0, keys),
            k: part(keys, keys),
            v: part(2 * keys, values),
            decay: rows_of(span, decay, spec.decays()),
            beta: rows_of(span, beta, heads),
        };
        let y = &mut outputs[..rule.output_len(span.tokens)];
        let threads = threads_for(2 * span.tokens * heads * key_dim * value_dim);
        recur(tier, threads, &rule, &inputs, sums, y);
        let to = &mut mixed[span.first_row * values..][..span.tokens * values];
        collect(&rule, span.tokens, y, to);
    }
    let weight = NormWeight::Plain(weights.vector(id, Role::MixedNorm));
    by_rows(mixed, value_dim, |_, x| rms_norm(tier, x, value_dim, weight, spec.eps));
    by_rows(gates, values, |first, gates| {
        gate(tier, spec.gate, gates, &mixed[first * values..][..gates.len()]);
    });
    packed.pack(tier, gates, tokens, values);
    let branch = grown(branch, tokens * hidden);
    let output = Product::new(id, Role::Output, packed, &mut *branch, hidden);
    multiply(tier, weights, &mut [Some(output)], scratch)
}

/// Brings corrections and decays out of rows that have those of each key head together.
fn take_apart(pairs: &[f32], (key_heads, heads): (usize, usize), to: [&mut [f32]; 2]) {
    let each = heads / key_heads;
    for (part, to) in to.into_iter().enumerate() {
        gather((pairs, key_heads), [each, each, 0, 0], part, (to, heads, 0));
    }
}

/// Copies one of the parts that rows have for each of `heads` heads, to elements from `first` on of
/// the rows of `to`, which are `width` long.
pub(super) fn gather(
    (rows, heads): (&[f32], usize),
    parts: [usize; 4],
    part: usize,
    (to, width, first): (&mut [f32], usize, usize),
) {
    let each = parts.iter().sum::<usize>();
    let before = parts[..part].iter().sum::<usize>();
    let len = parts[part];
    by_rows(to, width, |row, to| {
        let from = rows[row * heads * each..].chunks_exact(heads * each);
        for (to, from) in to.chunks_exact_mut(width).zip(from) {
            let to = to[first..][..heads * len].chunks_exact_mut(len);
            for (to, from) in to.zip(from.chunks_exact(each)) {
                to.copy_from_slice(&from[before..][..len]);
            }
        }
    });
}

/// Makes the last rows of `past` and `x` the past.
pub(super) fn advance(past: &mut [f32], x: &[f32]) {
    match past.len().checked_sub(x.len()) {
        None => past.copy_from_slice(&x[x.len() - past.len()..]),
        Some(kept) => {
            past.copy_within(x.len().., 0);
            past[kept..].copy_from_slice(x);
        }
    }
}

/// Brings the outputs of a recurrence into rows [tokens, heads, value elements].
pub(super) fn collect(rule: &Recurrence, tokens: usize, outputs: &[f32], rows: &mut [f32]) {
    let width = rule.value_dim;
    let lanes = rule.output_len(1) / rule.heads / rule.blocks();
    by_rows(rows, rule.heads * width, |first, rows| {
        for (token, row) in (first..).zip(rows.chunks_exact_mut(rule.heads * width)) {
            for (head, row) in row.chunks_exact_mut(width).enumerate() {
                for (block, to) in row.chunks_mut(lanes).enumerate() {
                    let unit = head * rule.blocks() + block;
                    let from = &outputs[(unit * tokens + token) * lanes..];
                    to.copy_from_slice(&from[..to.len()]);
                }
            }
        }
    });
}
