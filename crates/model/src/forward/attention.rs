//! The attention of a layer: linear layers for the whole batch at once, the rest per sequence.

use sws_format::{PieceId, PieceKind, Span};
use sws_kernels::functional::elementary::ln64;
use sws_kernels::functional::{
    Activation, Attention, AttentionScratch, Distances, NormWeight, Queries, RopeShape, add,
    attention as attend, axpy, gate, rms_norm, rope,
};
use sws_kernels::{PackedInput, ScratchPool, Tier, threads_for};

use super::blocks::BlockWork;
use super::branches::{norm, scale};
use super::linear::{Product, multiply};
use super::past::{Conv, add_conv};
use super::work::{AttentionWork, DistanceWork, Workspace, by_rows, grown};
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::rope::Rope;
use crate::source::{SourceError, Weights};
use crate::spec::{
    AttentionGate, AttentionSpec, DistanceSpec, KeyValues, Norm, QkNorm, Temperature,
};

/// Values of a layer, and of the pass.
pub(super) struct AttentionContext<'a> {
    pub(super) tier: Tier,
    pub(super) layer: usize,
    pub(super) norm: Norm,
    pub(super) hidden: usize,
    pub(super) ropes: &'a [Rope],
    pub(super) spans: &'a [Span],
}

impl AttentionContext<'_> {
    fn id(&self) -> PieceId {
        PieceId::new(self.layer as u32, PieceKind::Attention)
    }
}

/// Rows of a batch on their way through the attention of a layer.
struct Qkv<'w> {
    /// [tokens, heads · elements of a key]
    q: &'w mut [f32],
    /// [tokens, key heads · elements of a key], empty if the layer sees those of another
    k: &'w mut [f32],
    /// [tokens, key heads · elements of a value], as well
    v: &'w mut [f32],
    /// Outputs of the heads; before them room for a copy of queries, keys or values.
    mixed: &'w mut [f32],
    /// Gates of the outputs, or queries with their gates.
    gated: &'w mut [f32],
    /// [tokens, heads, rank]: what a score by distance is made of
    distances: &'w mut [f32],
}

impl<'w> Qkv<'w> {
    fn grown(spec: &AttentionSpec, tokens: usize, rooms: [&'w mut Vec<f32>; 6]) -> Qkv<'w> {
        let [q, k, v, mixed, gated, distances] = rooms;
        let [k_width, v_width] = cached_widths(spec);
        let widest = spec.q_width().max(spec.output_width()).max(spec.fused_rows());
        let rank = spec.distances.map_or(0, |it| spec.heads * it.rank);
        Qkv {
            q: grown(q, tokens * spec.q_width()),
            k: grown(k, tokens * k_width),
            v: grown(v, tokens * v_width),
            mixed: grown(mixed, tokens * widest),
            gated: grown(gated, tokens * spec.gate_room()),
            distances: grown(distances, tokens * rank),
        }
    }

    fn parts(&mut self) -> Qkv<'_> {
        let Qkv { q, k, v, mixed, gated, distances } = self;
        Qkv { q, k, v, mixed, gated, distances }
    }
}

/// Widths of the keys and values that a layer caches: none if it sees those of another.
fn cached_widths(spec: &AttentionSpec) -> [usize; 2] {
    if spec.has_keys() { [spec.key_width(), spec.value_width()] } else { [0; 2] }
}

/// Applies attention to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn attention(
    context: &AttentionContext<'_>,
    spec: &AttentionSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let tier = context.tier;
    let id = context.id();
    let hidden = context.hidden;
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, mixed, gated, packed, tables, blocks, distances, .. } = own;
    let DistanceWork { rows, bias } = distances;
    let tokens = input.tokens();
    let mut qkv = Qkv::grown(spec, tokens, [q, k, v, mixed, gated, rows]);

    project(context, spec, weights, input, (&mut qkv, blocks), scratch)?;
    finish_values(context, spec, weights, sequences, &mut qkv);
    rotate(context, spec, weights, &mut qkv, tables);
    blocks.prepare(context, spec, (&*weights, id), tables);
    let room = AttendRoom {
        bias,
        noted: &mut own.noted,
        scratch: &mut own.scratch,
        fits: &mut own.scratch_fits,
    };
    attend_spans(context, spec, weights, sequences, (&mut qkv, blocks), room);

    let attended = gate_outputs(tier, spec, tokens, &mut qkv);
    packed.pack(tier, attended, tokens, spec.output_width());
    let branch = grown(branch, tokens * hidden);
    let output = Product::new(id, Role::Output, packed, &mut *branch, hidden);
    multiply(tier, weights, &mut [Some(output)], scratch)?;
    if spec.output_bias {
        add_bias(tier, weights.vector(id, Role::OutputBias), branch);
    }
    Ok(())
}

/// Computes queries, keys, values and gates of the normed state, all in one division among threads.
fn project(
    context: &AttentionContext<'_>,
    spec: &AttentionSpec,
    weights: &mut dyn Weights,
    input: &PackedInput,
    (qkv, index): (&mut Qkv<'_>, &mut BlockWork),
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let tier = context.tier;
    let id = context.id();
    let tokens = input.tokens();
    let [k_width, v_width] = cached_widths(spec);
    let fused = spec.fused_rows();
    let Qkv { q, k, v, mixed, gated, distances } = qkv.parts();
    let with_queries = spec.gate == Some(AttentionGate::WithQueries);
    let (queries, gates) = match with_queries {
        true => (&mut *gated, Default::default()),
        false => (&mut *q, &mut *gated),
    };
    let rows = spec.gate_rows();
    // The product of a matrix with a row for each head is in the last part of the buffer.
    let gates = rows.map(|rows| (rows, &mut gates[tokens * (spec.gate_room() - rows)..]));
    let gates = gates.map(|(rows, gates)| Product::new(id, Role::OutputGate, input, gates, rows));
    let product = |role, y, rows| Some(Product::new(id, role, input, y, rows));
    let [index_keys, index_queries] = index.products(spec.blocks, id, input);
    let index_keys = match spec.distances {
        Some(it) => product(Role::Distance, distances, spec.heads * it.rank),
        None => index_keys,
    };
    let mut products = if spec.fused {
        let mixed = product(Role::Mixed, &mut mixed[..tokens * fused], fused);
        [mixed, index_keys, index_queries, None, None, gates]
    } else {
        let queries = product(Role::Query, &mut *queries, spec.query_rows());
        let (keys, values) = match (spec.has_keys(), spec.values_are_keys) {
            (false, _) => (None, None),
            (true, true) => (product(Role::Key, &mut *k, k_width), None),
            (true, false) => {
                (product(Role::Key, &mut *k, k_width), product(Role::Value, &mut *v, v_width))
            }
        };
        [queries, index_keys, index_queries, keys, values, gates]
    };
    multiply(tier, weights, &mut products, scratch)?;
    if spec.fused {
        let all = &mut mixed[..tokens * fused];
        if spec.qkv_bias {
            add_bias(tier, weights.vector(id, Role::MixedBias), all);
        }
        let mut first = 0;
        for (part, rows) in
            [(&mut *queries, spec.query_rows()), (&mut *k, k_width), (&mut *v, v_width)]
        {
            part_of_rows((all, fused), first, part, rows);
            first += rows;
        }
    } else if spec.qkv_bias {
        add_bias(tier, weights.vector(id, Role::QueryBias), queries);
        if spec.has_keys() {
            add_bias(tier, weights.vector(id, Role::KeyBias), k);
        }
        if spec.has_keys() && !spec.values_are_keys {
            add_bias(tier, weights.vector(id, Role::ValueBias), v);
        }
    }
    if with_queries {
        part_of_heads(gated, 0, q, spec.head_dim);
    }
    Ok(())
}

/// Makes of keys and values what some families make of them before they are rotated: copies, convolutions, norms and
/// factors.
fn finish_values(
    context: &AttentionContext<'_>,
    spec: &AttentionSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    qkv: &mut Qkv<'_>,
) {
    let &AttentionContext { tier, layer, norm: by, spans, .. } = context;
    let Qkv { k, v, mixed, .. } = qkv.parts();
    if spec.values_are_keys {
        v.copy_from_slice(k);
    }
    if let Some(taps) = spec.conv {
        let mut before = 0;
        for (x, role) in [(&mut *k, Role::KeyConv), (&mut *v, Role::ValueConv)] {
            let of = Conv { layer, taps, weight: weights.vector(context.id(), role), before };
            before += (taps - 1) * of.weight.len() / taps;
            // `mixed` is not in use yet, and no narrower than either.
            let room = &mut mixed[..x.len()];
            add_conv(tier, of, (spans, &mut *sequences), x, room);
        }
    }
    if spec.value_norm {
        let dim = spec.value_dim;
        by_rows(v, dim, |_, x| rms_norm(tier, x, dim, NormWeight::None, by.eps()));
    }
    scale(spec.value_scale, v);
}

/// Norms queries and keys, clips them, and turns them by their positions.
fn rotate(
    context: &AttentionContext<'_>,
    spec: &AttentionSpec,
    weights: &dyn Weights,
    qkv: &mut Qkv<'_>,
    tables: &[[Vec<f32>; 2]],
) {
    let &AttentionContext { tier, norm: by, ropes, spans, .. } = context;
    let Qkv { q, k, v, mixed, distances, .. } = qkv.parts();
    if spec.paired_rows {
        for x in [&mut *q, &mut *k] {
            // `mixed` is not in use yet, and no narrower than either.
            let paired = &mut mixed[..x.len()];
            paired.copy_from_slice(x);
            let paired = &*paired;
            let dim = spec.head_dim;
            by_rows(x, dim, |first, x| into_halves(&paired[first * dim..][..x.len()], x, dim));
        }
    }
    let norms = |q: &mut [f32], k: &mut [f32]| {
        let keys = spec.has_keys().then_some((k, Role::KeyNorm));
        for (x, role) in [(q, Role::QueryNorm)].into_iter().chain(keys) {
            // The weights are as wide as the normed vector: one head, or all of them.
            let weight = weights.vector(context.id(), role);
            let width = weight.len();
            by_rows(x, width, |_, x| norm(tier, by, x, width, weight));
        }
    };
    if matches!(spec.qk_norm, QkNorm::PerHead | QkNorm::FullWidth) {
        norms(q, k);
    }
    if let Some(limit) = spec.clip {
        for x in [&mut *q, &mut *k, &mut *v] {
            by_rows(x, 1, |_, x| x.iter_mut().for_each(|x| *x = x.clamp(-limit, limit)));
        }
    }
    if let Some(index) = spec.rope {
        let Rope { inv_freq, offset, pairs, .. } = &ropes[index];
        let [cos, sin] = &tables[index];
        let turned = inv_freq.len();
        let keys = spec.has_keys().then_some((&mut *k, spec.kv_heads));
        for (x, heads) in [(&mut *q, spec.heads)].into_iter().chain(keys) {
            let width = heads * spec.head_dim;
            let shape =
                RopeShape { heads, head_dim: spec.head_dim, offset: *offset, pairs: *pairs };
            by_rows(x, width, |first, x| {
                let rows = first * turned..(first + x.len() / width) * turned;
                rope(tier, x, shape, &cos[rows.clone()], &sin[rows]);
            });
        }
    }
    match spec.qk_norm {
        QkNorm::None | QkNorm::PerHead | QkNorm::FullWidth => {}
        QkNorm::PerRotatedHead => norms(q, k),
        QkNorm::Unweighted => {
            let dim = spec.head_dim;
            for x in [&mut *q, &mut *k] {
                by_rows(x, dim, |_, x| rms_norm(tier, x, dim, NormWeight::None, by.eps()));
            }
        }
    }
    temper(spec.temperature, spans, q, spec.q_width());
    if let Some(it) = spec.distances {
        temper(spec.temperature, spans, distances, spec.heads * it.rank);
    }
}

/// Room for attention to a cache.
struct AttendRoom<'w> {
    /// [some tokens, heads, distances]
    bias: &'w mut Vec<f32>,
    noted: &'w mut Option<Vec<u32>>,
    scratch: &'w mut Vec<AttentionScratch>,
    fits: &'w mut (usize, usize),
}

/// Appends keys and values to the caches, and attends to them, chunk by chunk of each sequence.
fn attend_spans(
    context: &AttentionContext<'_>,
    spec: &AttentionSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    (qkv, index): (&mut Qkv<'_>, &mut BlockWork),
    room: AttendRoom<'_>,
) {
    let tier = context.tier;
    let id = context.id();
    let [k_width, v_width] = cached_widths(spec);
    let q_width = spec.q_width();
    let out_width = spec.output_width();
    let Qkv { q, k, v, mixed, distances: distance_rows, .. } = qkv.parts();
    let AttendRoom { bias: of_distances, noted, scratch, fits } = room;
    let of_rows = spec.distances.map(|it| (it, weights.vector(id, Role::DistanceRows)));
    let rule = Attention {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        key_dim: spec.head_dim,
        value_dim: spec.value_dim,
        scale: spec.scale,
        window: spec.window,
        aligned: spec.aligned,
        soft_cap: spec.soft_cap,
        sinks: spec.sinks.then(|| weights.vector(id, Role::Sinks)),
    };
    for span in context.spans {
        let keys = rows_of(span, k, k_width);
        let values = rows_of(span, v, v_width);
        let queries = rows_of(span, q, q_width);
        let out = &mut mixed[span.first_row * out_width..][..span.tokens * out_width];
        let of = if let KeyValues::Of(earlier) = spec.key_values { earlier } else { context.layer };
        let cache = sequences[span.sequence].layers[of].kv();
        let chunk = cache.chunk;
        for start in (0..span.tokens).step_by(chunk) {
            let tokens = chunk.min(span.tokens - start);
            let first = span.first_position + start;
            let cut = |width: usize| start * width..(start + tokens) * width;
            if spec.has_keys() {
                cache.append(first, tokens, &keys[cut(k_width)], &values[cut(v_width)]);
            }
            index.append(context, spec, cache, (span.first_row + start, first), tokens);
            let seen = cache.capacity().min(first + tokens);
            let q = &queries[cut(q_width)];
            let y = &mut out[cut(out_width)];
            let mut done = 0;
            while done < tokens {
                let row = span.first_row + start + done;
                let first = first + done;
                let (count, selected) = match spec.blocks {
                    None if spec.distances.is_some() => (DISTANCES.min(tokens - done), None),
                    None => (tokens, None),
                    Some(it) => index.select(tier, it, cache, (row, first), tokens - done),
                };
                if let (Some(noted), Some(selected)) = (&mut *noted, selected) {
                    noted.extend_from_slice(selected.positions);
                }
                let sees = selected.map_or(seen, |selected| selected.most);
                let threads = threads_for(count * spec.heads * sees * spec.head_dim);
                let needed = (spec.value_dim, seen.next_power_of_two().min(cache.capacity()));
                let scratch = scratch_for(scratch, fits, threads, needed);
                let q = &q[done * q_width..][..count * q_width];
                let y = &mut y[done * out_width..][..count * out_width];
                let distances = of_rows.map(|(it, weight)| {
                    let rows = &distance_rows[row * spec.heads * it.rank..];
                    let bias = grown(of_distances, count * spec.heads * it.extent);
                    add_up(tier, it, (rows, weight), bias);
                    Distances { bias, extent: it.extent }
                });
                let queries = Queries { first, q, selected, distances };
                attend(tier, &rule, &cache.view(), queries, y, scratch);
                done += count;
            }
        }
    }
}

/// The outputs of the heads, gated if the layer has gates.
fn gate_outputs<'q>(
    tier: Tier,
    spec: &AttentionSpec,
    tokens: usize,
    qkv: &'q mut Qkv<'_>,
) -> &'q mut [f32] {
    let out_width = spec.output_width();
    let Qkv { q, mixed, gated, .. } = qkv.parts();
    let attended = &mut mixed[..tokens * out_width];
    let (gates, activation) = match spec.gate {
        None => return attended,
        Some(AttentionGate::WithQueries) => {
            part_of_heads(gated, 1, q, spec.head_dim);
            (q, Activation::Sigmoid)
        }
        Some(AttentionGate::Own { per_head, activation }) => {
            let (gates, of_heads) = gated.split_at_mut(tokens * out_width);
            if per_head {
                let each = gates.chunks_exact_mut(spec.value_dim).zip(&*of_heads);
                each.for_each(|(gates, gate)| gates.fill(*gate));
            }
            (gates, activation)
        }
    };
    by_rows(gates, out_width, |first, gates| {
        let attended = &attended[first * out_width..][..gates.len()];
        gate(tier, activation, gates, attended);
    });
    gates
}

/// Tokens for which the numbers of distances are made at a time.
pub(super) const DISTANCES: usize = 16;

/// Makes the numbers of all distances, of the numbers of each head in `rows`.
fn add_up(tier: Tier, it: DistanceSpec, (rows, weight): (&[f32], &[f32]), bias: &mut [f32]) {
    by_rows(bias, it.extent, |first, bias| {
        let rows = rows[first * it.rank..].chunks_exact(it.rank);
        for (bias, row) in bias.chunks_exact_mut(it.extent).zip(rows) {
            bias.fill(0.0);
            for (number, weight) in row.iter().zip(weight.chunks_exact(it.extent)) {
                axpy(tier, *number, weight, bias);
            }
        }
    });
}

/// Multiplies the rows of queries by the factors of their positions.
pub(super) fn temper(by: Option<Temperature>, spans: &[Span], q: &mut [f32], width: usize) {
    let Some(Temperature { scale: by, length, first, smooth }) = by else { return };
    for span in spans {
        let rows = &mut q[span.first_row * width..][..span.tokens * width];
        for (position, row) in (span.first_position..).zip(rows.chunks_exact_mut(width)) {
            let steps = (first + position) as f64 / length;
            let grown = if smooth { steps.max(1.0) } else { 1.0 + steps.floor() };
            scale((1.0 + by * ln64(grown)) as f32, row);
        }
    }
}

/// Scratch for `threads` threads, reallocated if it is too small.
pub(super) fn scratch_for<'a>(
    scratch: &'a mut Vec<AttentionScratch>,
    fits: &mut (usize, usize),
    threads: usize,
    needed: (usize, usize),
) -> &'a mut [AttentionScratch] {
    if fits.0 < needed.0 || fits.1 < needed.1 {
        *fits = (fits.0.max(needed.0), fits.1.max(needed.1));
        scratch.clear();
    }
    if scratch.len() < threads {
        scratch.resize_with(threads, || AttentionScratch::new(fits.0, fits.1));
    }
    &mut scratch[..threads]
}

/// The rows of a sequence in `x`.
pub(super) fn rows_of<'x>(span: &Span, x: &'x [f32], width: usize) -> &'x [f32] {
    &x[span.first_row * width..][..span.tokens * width]
}

/// Copies the query (part 0) or the gate (part 1) of each head.
fn part_of_heads(both: &[f32], part: usize, to: &mut [f32], head_dim: usize) {
    by_rows(to, head_dim, |first, to| {
        let both = both[2 * first * head_dim..].chunks_exact(2 * head_dim);
        for (to, both) in to.chunks_exact_mut(head_dim).zip(both) {
            to.copy_from_slice(&both[part * head_dim..][..head_dim]);
        }
    });
}

/// Copies `width` elements of each row of `all`, from `first` on.
fn part_of_rows((all, rows): (&[f32], usize), first: usize, to: &mut [f32], width: usize) {
    by_rows(to, width, |row, to| {
        let all = all[row * rows..].chunks_exact(rows);
        for (to, all) in to.chunks_exact_mut(width).zip(all) {
            to.copy_from_slice(&all[first..first + width]);
        }
    });
}

/// Writes heads of neighbours that are turned together as heads of two halves.
fn into_halves(paired: &[f32], heads: &mut [f32], head_dim: usize) {
    for (pairs, head) in paired.chunks_exact(head_dim).zip(heads.chunks_exact_mut(head_dim)) {
        let (left, right) = head.split_at_mut(head_dim / 2);
        for ((pair, left), right) in pairs.as_chunks::<2>().0.iter().zip(left).zip(right) {
            [*left, *right] = *pair;
        }
    }
}

/// Adds `bias` to every row.
pub(super) fn add_bias(tier: Tier, bias: &[f32], rows: &mut [f32]) {
    by_rows(rows, bias.len(), |_, rows| {
        rows.chunks_exact_mut(bias.len()).for_each(|row| add(tier, bias, row));
    });
}
