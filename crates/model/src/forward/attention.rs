//! Attention with grouped heads, in four stages. Queries, keys and values are [projected](project)
//! and [rotated](rotate) by their positions. Queries then [attend](attend_rows), sequence by
//! sequence, and the outputs of heads are projected back. Steps that only a few families have are
//! in [`extras`].

mod extras;
mod gates;

use sws_format::Span;
use sws_kernels::functional::{Attention, RopeShape, attention as attend};
use sws_kernels::{PackedInput, ScratchPool, Tier, threads_for};

use super::by_rows::{rows_of, rows_of_mut};
use super::linear::{Product, multiply};
use super::mixer::{MixerContext, OutputRoom, Turned, add_bias, project_out, turn};
use super::norms::norm_rows;
use crate::layer_state::{KvState, SequenceState};
use crate::role::Role;
use crate::rope::Rope;
use crate::source::{SourceError, Weights};
use crate::spec::{AttentionSpec, QkNorm};
use crate::workspace::{AttendScratch, AttentionWork, Workspace, grown};
pub(super) use extras::DISTANCES;
use extras::Extras;

/// Rows of a batch on their way through the attention of a layer.
struct Qkv<'w> {
    /// [tokens, heads · elements of a key]
    q: &'w mut [f32],
    /// [tokens, key heads · elements of a key]; empty if the layer uses the keys of another layer
    k: &'w mut [f32],
    /// [tokens, key heads · elements of a value]; empty if the layer uses the values of another
    /// layer
    v: &'w mut [f32],
    /// Outputs of the heads. Before that, a buffer for a copy of queries, keys or values.
    mixed: &'w mut [f32],
    /// Gates of the outputs, or queries with their gates.
    gated: &'w mut [f32],
}

impl<'w> Qkv<'w> {
    fn grown(spec: &AttentionSpec, tokens: usize, rooms: [&'w mut Vec<f32>; 5]) -> Qkv<'w> {
        let [q, k, v, mixed, gated] = rooms;
        let [k_width, v_width] = spec.cached_widths();
        let widest = spec.q_width().max(spec.output_width()).max(spec.fused_rows());
        Qkv {
            q: grown(q, tokens * spec.q_width()),
            k: grown(k, tokens * k_width),
            v: grown(v, tokens * v_width),
            mixed: grown(mixed, tokens * widest),
            gated: grown(gated, tokens * spec.gate_room()),
        }
    }
}

/// Applies attention to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn attention(
    context: &MixerContext<'_>,
    spec: &AttentionSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let tokens = work.input.tokens();
    let Workspace { input, branch, attention: own, scratch, messages, .. } = work;
    let AttentionWork { q, k, v, mixed, gated, packed, tables, attending, .. } = own;
    let mut qkv = Qkv::grown(spec, tokens, [q, k, v, mixed, gated]);
    let rooms = (&mut own.blocks, &mut own.distances, &mut own.of_tokens);
    let mut extras = Extras::of(spec, tokens, rooms, &mut own.noted);

    let [of_keys, of_values] = match spec.extras.inputs_apart || messages.round.is_some() {
        true => own.inputs.each_ref(),
        false => [&*input; 2],
    };
    let inputs = [&*input, of_keys, of_values];
    project(context, spec, weights, inputs, (&mut qkv, &mut extras), scratch)?;
    rotate(context, spec, weights, sequences, (&mut qkv, &mut extras), &tables.each);
    attend_rows(context, spec, weights, sequences, (&mut qkv, &mut extras), attending);
    extras::norm_outputs(context, spec, &mut qkv);
    let outputs = gates::apply(context.tier, spec, tokens, &mut qkv);
    let room = OutputRoom { packed, branch, scratch };
    project_out(context, weights, (outputs, spec.output_width()), spec.output_bias, room)
}

/// Computes queries, keys, values and gates from the normed state, with one wake-up of the threads.
/// The last two inputs are those of keys and of values.
fn project(
    context: &MixerContext<'_>,
    spec: &AttentionSpec,
    weights: &mut dyn Weights,
    inputs: [&PackedInput; 3],
    (qkv, extras): (&mut Qkv<'_>, &mut Extras<'_>),
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let tier = context.tier;
    let [input, of_keys, of_values] = inputs;
    let id = context.id();
    let [k_width, v_width] = spec.cached_widths();
    let fused = spec.fused_rows();
    let mixed = &mut qkv.mixed[..input.tokens() * fused];
    let (queries, gates) = gates::rooms(spec, input.tokens(), (&mut *qkv.q, &mut *qkv.gated));
    let gates = spec.gate_rows().map(|rows| Product::new(id, Role::OutputGate, input, gates, rows));
    let product = |role, y, rows| Product::new(id, role, input, y, rows);
    let of = |x, role, y, rows| Product::new(id, role, x, y, rows);
    // The products are in the order in which their matrices are stored.
    let ([first, second], [sinks, key_taps, value_taps]) = extras.products(spec, id, inputs);
    let mut products = if spec.extras.fused {
        let mixed = Some(product(Role::Mixed, &mut *mixed, fused));
        [mixed, first, second, None, None, gates, sinks, key_taps, value_taps]
    } else {
        let query = product(Role::Query, &mut *queries, spec.query_rows());
        let key = spec.has_keys().then(|| of(of_keys, Role::Key, &mut *qkv.k, k_width));
        let value = spec.has_values().then(|| of(of_values, Role::Value, &mut *qkv.v, v_width));
        [Some(query), first, second, key, value, gates, sinks, key_taps, value_taps]
    };
    multiply(tier, weights, &mut products, scratch)?;
    if spec.extras.fused {
        extras::take_apart(context, spec, weights, mixed, [queries, &mut *qkv.k, &mut *qkv.v]);
    } else if spec.qkv_bias {
        add_bias(tier, weights.vector(id, Role::QueryBias), queries);
        if spec.has_keys() {
            add_bias(tier, weights.vector(id, Role::KeyBias), qkv.k);
        }
        if spec.has_values() {
            add_bias(tier, weights.vector(id, Role::ValueBias), qkv.v);
        }
    }
    gates::take_queries(spec, qkv);
    Ok(())
}

/// Norms queries and keys, and rotates them by their positions.
fn rotate(
    context: &MixerContext<'_>,
    spec: &AttentionSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    (qkv, extras): (&mut Qkv<'_>, &mut Extras<'_>),
    tables: &[[Vec<f32>; 2]],
) {
    let tier = context.tier;
    extras::before_norms(context, spec, weights, sequences, (&mut *qkv, &*extras));
    if matches!(spec.qk_norm, QkNorm::PerHead | QkNorm::FullWidth) {
        norm_heads(context, weights, qkv);
    }
    extras.limit(context, spec, weights, qkv);
    extras::clip(spec, qkv);
    if let Some(index) = spec.rope {
        let Rope { inv_freq, offset, pairs, .. } = &context.ropes[index];
        let [cos, sin] = &tables[index];
        let head = RopeShape { heads: 1, head_dim: spec.head_dim, offset: *offset, pairs: *pairs };
        for (x, heads) in [(&mut *qkv.q, spec.heads), (&mut *qkv.k, spec.kv_heads)] {
            if !x.is_empty() {
                let shape = RopeShape { heads, ..head };
                turn(tier, Turned { shape, angles: inv_freq.len() }, (cos, sin), x);
            }
        }
    }
    extras.after_rotation(context, spec, weights, qkv, tables);
}

/// Norms queries and keys. Weights are as wide as the normed vector: one head, or all of them.
fn norm_heads(context: &MixerContext<'_>, weights: &dyn Weights, qkv: &mut Qkv<'_>) {
    for (x, role) in [(&mut *qkv.q, Role::QueryNorm), (&mut *qkv.k, Role::KeyNorm)] {
        // A layer that uses the keys of another layer has none of its own.
        if !x.is_empty() {
            let weight = weights.vector(context.id(), role);
            let width = weight.len();
            norm_rows(context.tier, context.norm, x, width, weight);
        }
    }
}

/// Appends keys and values to the caches, and attends to them, chunk by chunk of each sequence.
fn attend_rows(
    context: &MixerContext<'_>,
    spec: &AttentionSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    (qkv, extras): (&mut Qkv<'_>, &mut Extras<'_>),
    scratch: &mut AttendScratch,
) {
    let [k_width, v_width] = spec.cached_widths();
    let columns = extras::columns(context, spec, weights);
    let rule = Attention {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        key_dim: spec.head_dim,
        value_dim: spec.value_dim,
        scale: spec.scale,
        window: spec.window,
        aligned: spec.extras.aligned,
        soft_cap: spec.extras.soft_cap,
        sinks: spec.sinks.then(|| weights.vector(context.id(), Role::Sinks)),
    };
    for span in context.spans {
        let cache = sequences[span.sequence].layer(spec.keys_of(context.layer)).kv();
        for start in (0..span.tokens).step_by(cache.chunk) {
            let tokens = cache.chunk.min(span.tokens - start);
            let chunk = part(span, start, tokens);
            if spec.has_keys() {
                let keys = rows_of(&chunk, qkv.k, k_width);
                let values = rows_of(&chunk, qkv.v, v_width);
                cache.append(chunk.first_position, tokens, keys, values);
            }
            extras.append(context, spec, cache, &chunk);
            let rules = (spec, &rule, columns);
            attend_chunk(context.tier, rules, cache, &chunk, (qkv, extras), scratch);
        }
    }
}

/// Attends with the queries of a chunk.
fn attend_chunk(
    tier: Tier,
    (spec, rule, columns): (&AttentionSpec, &Attention<'_>, &[f32]),
    cache: &KvState,
    chunk: &Span,
    (qkv, extras): (&mut Qkv<'_>, &mut Extras<'_>),
    scratch: &mut AttendScratch,
) {
    let seen = cache.capacity().min(chunk.first_position + chunk.tokens);
    let needed = (spec.value_dim, seen.next_power_of_two().min(cache.capacity()));
    let mut done = 0;
    while done < chunk.tokens {
        // All queries attend together, unless the layer has extras.
        let rest = part(chunk, done, chunk.tokens - done);
        let (tokens, queries, sinks) =
            extras.next_queries(tier, (spec, columns), cache, &rest, qkv.q);
        let rule = Attention { sinks: sinks.or(rule.sinks), ..*rule };
        let sees = queries.selected.map_or(seen, |selected| selected.most);
        let threads = threads_for(tokens * spec.heads * sees * spec.head_dim);
        let y = rows_of_mut(&part(&rest, 0, tokens), qkv.mixed, spec.output_width());
        attend(tier, &rule, &cache.view(), queries, y, scratch.of(threads, needed));
        done += tokens;
    }
}

/// Some tokens of a span, from the one with the number `start` on.
fn part(span: &Span, start: usize, tokens: usize) -> Span {
    let first_position = span.first_position + start;
    Span { first_position, first_row: span.first_row + start, tokens, ..*span }
}
