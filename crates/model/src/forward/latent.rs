//! Latent attention: queries are multiplied into the space of latents, attend there, and the sums
//! of latents are multiplied into values.
//!
//! With K the rows of the matrix `KvUp` that make the plain part of a head's key, and V those that
//! make its value, the score of a position with latent c is
//!
//! q · (K c) = (Kᵀ q) · c, and the output of the head is Σ p V c = V (Σ p c).
//!
//! So a cached position costs a head two products as long as its latent, and K and V are used once
//! for each token, however long the context is. The sums are those on the right, always: Kᵀ q adds
//! up rows of K in ascending order ([`matmul_transposed`](sws_kernels::matmul_transposed)), attention
//! follows absolute positions, and V is a product like any other.
//!
//! GGUF files have K with rows and columns exchanged, and V, in a matrix each. There Kᵀ q is a product
//! like any other too, in other bits than a sum of rows, and the queries of all heads are kept until
//! V is there.
//!
//! Heads are independent of each other. A matrix in memory serves several at a time, one that
//! arrives in blocks serves each head as soon as its rows are there; it is read once.
//!
//! The stages are those of attention with grouped heads.

mod heads;

use sws_format::PieceId;
use sws_kernels::Matrix;
use sws_kernels::functional::{NormWeight, RopeShape, layer_norm, rms_norm, sigmoid};

use super::by_rows::{HeadPart, by_rows, gather, rows_of};
use super::indexer;
use super::linear::{MAX, Product, multiply};
use super::mixer::{MixerContext, OutputRoom, Turned, grow_heads, project_out, temper, turn};
use super::norms::{rms_norm_rows, scale_row};
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::rope::Rope;
use crate::source::{SourceError, Weights};
use crate::spec::{LatentGates, LatentSpec};
use crate::workspace::{AttentionWork, LatentWork, Workspace, grown};
use heads::Heads;

/// Heads are computed together up to this many queries in all: enough for attention to read each
/// latent once for several, while they stay in the cache.
const ROWS_TOGETHER: usize = 64;

/// Number of heads computed together for this many tokens.
pub(super) fn heads_together(tokens: usize, heads: usize) -> usize {
    (ROWS_TOGETHER / tokens.max(1)).clamp(1, MAX).min(heads)
}

/// Maximum number of queries of heads that are computed together, for up to this many tokens.
pub(super) fn rows_together(tokens: usize, heads: usize) -> usize {
    tokens.max(ROWS_TOGETHER.min(tokens * MAX.min(heads)))
}

/// Maximum number of tokens, up to `tokens`, for which more than `head` heads are computed
/// together.
pub(super) fn tokens_together(head: usize, tokens: usize) -> usize {
    if head == 0 { tokens } else { tokens.min(ROWS_TOGETHER / (head + 1)) }
}

/// Applies latent attention to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn latent(
    context: &MixerContext<'_>,
    spec: &LatentSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    project(context, spec, weights, work)?;
    rotate(context, spec, weights, work);
    remember(context, spec, weights, sequences, work);
    attend(context, spec, weights, sequences, work)?;
    gate(context, spec, weights, work)?;
    let Workspace { branch, attention: own, scratch, .. } = work;
    let width = spec.value_width();
    let outputs = grown(&mut own.mixed, context.tokens() * width);
    let room = OutputRoom { packed: &mut own.packed, branch, scratch };
    project_out(context, weights, (outputs, width), false, room)
}

/// Computes queries, latents with the rotated part of keys, and the products of an indexer.
fn project(
    context: &MixerContext<'_>,
    spec: &LatentSpec,
    weights: &mut dyn Weights,
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let tier = context.tier;
    let id = context.id();
    let Workspace { x: normed, input, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, packed, index, latent, gated, .. } = own;
    let tokens = input.tokens();
    let q_width = spec.query_width();
    let q = grown(q, tokens * q_width);
    let latents = grown(k, tokens * spec.width());
    let down =
        spec.has_latents().then(|| Product::new(id, Role::KvDown, input, latents, spec.width()));
    let Some(rank) = spec.query_rank else {
        let query = Product::new(id, Role::Query, input, q, q_width);
        let [gates, key, by] = index.of_hidden(spec, id, input);
        multiply(tier, weights, &mut [Some(query), down, gates, key, by], scratch)?;
        let Some(indexer) = spec.indexer() else { return Ok(()) };
        let width = context.hidden;
        let x = grown(v, tokens * width);
        x.copy_from_slice(&normed[..tokens * width]);
        let norm = weights.vector(id, Role::IndexQueryNorm);
        let bias = weights.vector(id, Role::IndexQueryNormBias);
        by_rows(x, width, |_, x| layer_norm(tier, x, width, norm, Some(bias), indexer.eps));
        packed.pack(tier, x, tokens, width);
        return multiply(tier, weights, &mut [index.of_query(spec, id, packed)], scratch);
    };
    let with_gates = spec.gates == LatentGates::WithQueries;
    let (rows, cols) = spec.query_up(rank);
    let (low, both) =
        grown(v, tokens * if with_gates { rank + cols } else { rank }).split_at_mut(tokens * rank);
    let query = Product::new(id, Role::QueryDown, input, &mut *low, rank);
    let [gates, key, by] = index.of_hidden(spec, id, input);
    let mut products = [Some(query), down, gates, key, by];
    multiply(tier, weights, &mut products, scratch)?;
    let whole = HeadPart { heads: 1, each: rank, len: rank, before: 0 };
    if with_gates {
        gather(low, whole, (&mut *both, cols, rank));
    }
    let weight = NormWeight::Plain(weights.vector(id, Role::QueryDownNorm));
    rms_norm_rows(tier, low, rank, weight, spec.eps);
    packed.pack(tier, low, tokens, rank);
    if !with_gates {
        let query = Product::new(id, Role::QueryUp, packed, q, q_width);
        let mut products = [Some(query), index.of_query(spec, id, packed)];
        return multiply(tier, weights, &mut products, scratch);
    }
    gather(low, whole, (&mut *both, cols, 0));
    let latents = &mut heads::packs(&mut latent.inputs, 1)[0];
    latents.pack(tier, both, tokens, cols);
    let (products, gates) = grown(gated, tokens * spec.gate_room()).split_at_mut(tokens * rows);
    let query = Product::new(id, Role::QueryUp, latents, &mut *products, rows);
    multiply(tier, weights, &mut [Some(query), index.of_query(spec, id, packed)], scratch)?;
    let &LatentSpec { heads, plain, rotated, value_dim, .. } = spec;
    let len = plain + rotated;
    let queries = HeadPart { heads, each: len + value_dim, len, before: 0 };
    gather(products, queries, (q, q_width, 0));
    let of_gates = HeadPart { len: value_dim, before: len, ..queries };
    gather(products, of_gates, (gates, heads * value_dim, 0));
    Ok(())
}

/// Norms latents, and rotates queries and keys by their positions.
fn rotate(
    context: &MixerContext<'_>,
    spec: &LatentSpec,
    weights: &dyn Weights,
    work: &mut Workspace,
) {
    let &MixerContext { tier, ropes, spans, .. } = context;
    let AttentionWork { q, k, tables, .. } = &mut work.attention;
    let tokens = context.tokens();
    let width = spec.width();
    let q_width = spec.query_width();
    let q = grown(q, tokens * q_width);
    let latents = grown(k, if spec.has_latents() { tokens * width } else { 0 });
    let vector = |role| NormWeight::Plain(weights.vector(context.id(), role));
    let weight = if spec.has_latents() { vector(Role::KvDownNorm) } else { NormWeight::None };
    let of_key = spec.key_norm.then(|| vector(Role::LatentKeyNorm));
    by_rows(latents, width, |_, rows| {
        for row in rows.chunks_exact_mut(width) {
            let latent = &mut row[..spec.rank];
            rms_norm(tier, latent, spec.rank, weight, spec.eps);
            if spec.latent_scale != 1.0 {
                scale_row(spec.latent_scale, latent);
            }
            if let Some(weight) = of_key {
                rms_norm(tier, &mut row[spec.rank..], spec.rotated, weight, spec.eps);
            }
        }
    });
    if let Some(index) = spec.rope {
        let Rope { inv_freq, pairs, .. } = &ropes[index];
        let [cos, sin] = &tables.each[index];
        let angles = inv_freq.len();
        let head_dim = spec.plain + spec.rotated;
        for (x, heads, head_dim, offset) in
            [(&mut *q, spec.heads, head_dim, spec.plain), (&mut *latents, 1, width, spec.rank)]
        {
            if !x.is_empty() {
                let shape = RopeShape { heads, head_dim, offset, pairs: *pairs };
                turn(tier, Turned { shape, angles }, (cos, sin), x);
            }
        }
    }
    temper(spec.temperature, spans, q, q_width);
    if spec.head_growth {
        let factors = weights.vector(context.id(), Role::QueryGrowth);
        let bias = weights.vector(context.id(), Role::QueryGrowthBias);
        grow_heads([factors, bias], spans, q, spec.plain + spec.rotated);
    }
}

/// Appends latents to the caches, and selects the positions that queries see.
fn remember(
    context: &MixerContext<'_>,
    spec: &LatentSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) {
    let AttentionWork { k: latents, index, tables, .. } = &mut work.attention;
    let id = context.id();
    if spec.has_latents() {
        for span in context.spans {
            let rows = rows_of(span, latents, spec.width());
            let state = sequences[span.sequence].layer(context.layer).latent();
            state.append(span.first_position, rows);
        }
    }
    if let Some(indexer) = spec.indexer() {
        let pool_bias = match indexer.is_pooled() {
            true => weights.vector(id, Role::IndexPoolBias),
            false => &[],
        };
        let norm = weights.vector(id, Role::IndexKeyNorm);
        let bias = weights.vector(id, Role::IndexKeyNormBias);
        let grown = match spec.head_growth {
            true => Some([
                weights.vector(id, Role::IndexGrowth),
                weights.vector(id, Role::IndexGrowthBias),
            ]),
            false => None,
        };
        let vectors = ([pool_bias, norm, bias], grown);
        indexer::select(context, (spec, indexer), vectors, sequences, index, &tables.each);
    }
}

/// Attends with all heads, as the rows of their matrices arrive.
fn attend(
    context: &MixerContext<'_>,
    spec: &LatentSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &MixerContext { tier, layer, spans, .. } = context;
    let id = context.id();
    let Workspace { attention: own, scratch, .. } = work;
    let AttentionWork { q, mixed, latent, index, attending, .. } = own;
    let LatentWork { absorbed, attended, inputs, sinks } = latent;
    let tokens = context.tokens();
    if spec.sinks {
        // The sinks are copied, because they are needed after the loan of the `KvUp` weights.
        grown(sinks, spec.heads).copy_from_slice(weights.vector(id, Role::LatentSinks));
    }
    let rows = tokens * heads_together(tokens, spec.heads);
    let queries = if spec.split { tokens * spec.heads } else { rows };
    let mut heads = Heads {
        tier,
        layer,
        spec,
        tokens,
        spans,
        sequences,
        q: grown(q, tokens * spec.query_width()),
        mixed: grown(mixed, tokens * spec.value_width()),
        absorbed: grown(absorbed, queries * spec.width()),
        attended: grown(attended, rows * spec.rank),
        inputs,
        selected: &index.selection,
        sinks: spec.sinks.then_some(&sinks[..]),
        packed: 0,
        attending,
        scratch,
    };
    if spec.split {
        heads.begin_all();
        with_blocks(weights, id, Role::KeyUp, &mut |first, rows| heads.split_keys(first, rows))?;
        let values = &mut |first, rows: &Matrix<'_>| heads.split_values(first, rows);
        return with_blocks(weights, id, Role::ValueUp, values);
    }
    match weights.matrix(id, Role::KvUp) {
        Some(matrix) => {
            heads.all(&matrix);
            Ok(())
        }
        None => weights.blocks(id, Role::KvUp, &mut |first, rows| heads.block(first, rows)),
    }
}

/// Multiplies the outputs of heads by the sigmoids of gates, if the layer has gates.
fn gate(
    context: &MixerContext<'_>,
    spec: &LatentSpec,
    weights: &mut dyn Weights,
    work: &mut Workspace,
) -> Result<(), SourceError> {
    if spec.gates == LatentGates::None {
        return Ok(());
    }
    let tier = context.tier;
    let Workspace { input, attention: own, scratch, .. } = work;
    let tokens = input.tokens();
    let rows = spec.gate_rows();
    let room = grown(&mut own.gated, tokens * spec.gate_room());
    let gates = &mut room[tokens * (spec.gate_room() - rows)..];
    if spec.has_gate_matrix() {
        let product = Product::new(context.id(), Role::OutputGate, input, &mut *gates, rows);
        multiply(tier, weights, &mut [Some(product)], scratch)?;
    }
    sigmoid(tier, gates);
    // Number of elements of a value that share a gate.
    let each = spec.value_width() / rows;
    by_rows(grown(&mut own.mixed, tokens * spec.value_width()), each, |first, x| {
        for (x, gate) in x.chunks_exact_mut(each).zip(&gates[first..]) {
            scale_row(*gate, x);
        }
    });
    Ok(())
}

/// Calls `compute` with a matrix, whole or in blocks of its rows.
fn with_blocks(
    weights: &mut dyn Weights,
    id: PieceId,
    role: Role,
    compute: &mut dyn FnMut(usize, &Matrix<'_>),
) -> Result<(), SourceError> {
    match weights.matrix(id, role) {
        Some(matrix) => {
            compute(0, &matrix);
            Ok(())
        }
        None => weights.blocks(id, role, compute),
    }
}
