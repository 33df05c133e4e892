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

mod heads;

use sws_format::{PieceId, PieceKind};
use sws_kernels::Matrix;
use sws_kernels::functional::{NormWeight, RopeShape, rms_norm, rope, sigmoid};

use super::attention::{AttentionContext, rows_of, temper};
use super::indexer;
use super::linear::{MAX, Product, multiply};
use super::work::{AttentionWork, LatentWork, Workspace, by_rows, grown};
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::rope::Rope;
use crate::source::{SourceError, Weights};
use crate::spec::{LatentGates, LatentSpec};
use heads::Heads;

/// Heads are computed together up to this many queries in all: enough for attention to read each
/// latent once for several, while they stay in the cache.
const ROWS_TOGETHER: usize = 64;

/// Number of heads computed together with this many tokens.
pub(super) fn heads_together(tokens: usize, heads: usize) -> usize {
    (ROWS_TOGETHER / tokens.max(1)).clamp(1, MAX).min(heads)
}

/// The largest number of queries of heads computed together, with up to this many tokens.
pub(super) fn rows_together(tokens: usize, heads: usize) -> usize {
    tokens.max(ROWS_TOGETHER.min(tokens * MAX.min(heads)))
}

/// The largest number of tokens for which more than `head` heads are computed together, up to
/// `tokens`.
pub(super) fn tokens_together(head: usize, tokens: usize) -> usize {
    if head == 0 { tokens } else { tokens.min(ROWS_TOGETHER / (head + 1)) }
}

/// Applies latent attention to the normed hidden state in `work.input`; the result is left in
/// `work.branch`.
pub(super) fn latent(
    context: &AttentionContext<'_>,
    spec: &LatentSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &AttentionContext { tier, layer: l, hidden, ropes, spans, .. } = context;
    let id = PieceId::new(l as u32, PieceKind::Attention);
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, mixed, gated, packed, tables, latent, index, .. } = own;
    let tokens = input.tokens();
    let q_width = spec.query_width();
    let width = spec.width();
    let q = grown(q, tokens * q_width);
    let latents = grown(k, tokens * width);
    let down = Product::new(id, Role::KvDown, input, &mut *latents, width);
    match spec.query_rank {
        None => {
            let query = Product::new(id, Role::Query, input, &mut *q, q_width);
            multiply(tier, weights, &mut [Some(query), Some(down)], scratch)?;
        }
        Some(rank) => {
            let low = grown(v, tokens * rank);
            let query = Product::new(id, Role::QueryDown, input, &mut *low, rank);
            let [gates, key, by] = index.of_hidden(spec, id, input);
            let mut products = [Some(query), Some(down), gates, key, by];
            multiply(tier, weights, &mut products, scratch)?;
            let weight = NormWeight::Plain(weights.vector(id, Role::QueryDownNorm));
            by_rows(low, rank, |_, x| rms_norm(tier, x, rank, weight, spec.eps));
            packed.pack(tier, low, tokens, rank);
            let query = Product::new(id, Role::QueryUp, packed, &mut *q, q_width);
            let mut products = [Some(query), index.of_query(spec, id, packed)];
            multiply(tier, weights, &mut products, scratch)?;
        }
    }
    let weight = NormWeight::Plain(weights.vector(id, Role::KvDownNorm));
    by_rows(latents, width, |_, rows| {
        for row in rows.chunks_exact_mut(width) {
            let latent = &mut row[..spec.rank];
            rms_norm(tier, latent, spec.rank, weight, spec.eps);
            if spec.latent_scale != 1.0 {
                latent.iter_mut().for_each(|x| *x *= spec.latent_scale);
            }
        }
    });
    if let Some(index) = spec.rope {
        let Rope { inv_freq, pairs, .. } = &ropes[index];
        let ([cos, sin], turned) = (&tables[index], inv_freq.len());
        let head_dim = spec.plain + spec.rotated;
        for (x, heads, head_dim, offset) in
            [(&mut *q, spec.heads, head_dim, spec.plain), (&mut *latents, 1, width, spec.rank)]
        {
            let shape = RopeShape { heads, head_dim, offset, pairs: *pairs };
            by_rows(x, heads * head_dim, |first, x| {
                let rows = first * turned..(first + x.len() / (heads * head_dim)) * turned;
                rope(tier, x, shape, &cos[rows.clone()], &sin[rows]);
            });
        }
    }
    temper(spec.temperature, spans, q, q_width);
    for span in spans {
        let rows = rows_of(span, latents, width);
        sequences[span.sequence].layers[l].latent().append(span.first_position, rows);
    }
    if let Some(indexer) = spec.indexer() {
        let roles = [Role::IndexPoolBias, Role::IndexKeyNorm, Role::IndexKeyNormBias];
        let vectors = roles.map(|role| match role {
            Role::IndexPoolBias if !indexer.is_pooled() => &[][..],
            role => weights.vector(id, role),
        });
        indexer::select(context, (spec, indexer), vectors, sequences, index, tables);
    }

    let mixed = grown(mixed, tokens * spec.value_width());
    let LatentWork { absorbed, attended, inputs, sinks } = latent;
    if spec.sinks {
        // They outlast the loan of what `KvUp` comes from.
        grown(sinks, spec.heads).copy_from_slice(weights.vector(id, Role::LatentSinks));
    }
    let rows = tokens * heads_together(tokens, spec.heads);
    let absorbed = grown(absorbed, if spec.split { tokens * spec.heads } else { rows } * width);
    let attended = grown(attended, rows * spec.rank);
    let mut heads = Heads {
        tier,
        layer: l,
        spec,
        tokens,
        spans,
        sequences,
        q: &*q,
        mixed: &mut *mixed,
        absorbed,
        attended,
        inputs,
        selected: &index.selection,
        sinks: spec.sinks.then_some(&sinks[..]),
        packed: 0,
        attention: (&mut own.scratch, &mut own.scratch_fits),
        scratch: &mut *scratch,
    };
    if spec.split {
        heads.begin_all();
        with_blocks(weights, id, Role::KeyUp, &mut |first, rows| heads.split_keys(first, rows))?;
        let values = &mut |first, rows: &Matrix<'_>| heads.split_values(first, rows);
        with_blocks(weights, id, Role::ValueUp, values)?;
    } else {
        match weights.matrix(id, Role::KvUp) {
            Some(matrix) => heads.all(&matrix),
            None => weights.blocks(id, Role::KvUp, &mut |first, rows| heads.block(first, rows))?,
        }
    }

    if spec.gates != LatentGates::None {
        let rows = spec.gate_rows();
        let gates = grown(gated, tokens * rows);
        let product = Product::new(id, Role::OutputGate, input, &mut *gates, rows);
        multiply(tier, weights, &mut [Some(product)], scratch)?;
        sigmoid(tier, gates);
        // Elements of a value that share a gate.
        let each = spec.value_width() / rows;
        by_rows(mixed, each, |first, x| {
            for (x, gate) in x.chunks_exact_mut(each).zip(&gates[first..]) {
                x.iter_mut().for_each(|x| *x *= gate);
            }
        });
    }
    packed.pack(tier, mixed, tokens, spec.value_width());
    let branch = grown(branch, tokens * hidden);
    let output = Product::new(id, Role::Output, packed, &mut *branch, hidden);
    multiply(tier, weights, &mut [Some(output)], scratch)
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
