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
//! up rows of K in ascending order ([`matmul_transposed`]), attention follows absolute positions,
//! and V is a product like any other.
//!
//! Heads are independent of each other. A matrix in memory serves several at a time, one that
//! arrives in blocks serves each head as soon as its rows are there; it is read once.

use std::ops::Range;

use sws_kernels::functional::{
    Attention, AttentionScratch, NormWeight, Queries, RopeShape, attention as attend, rms_norm,
    rope,
};
use sws_kernels::{
    Input, MatmulJob, Matrix, Output, Strided, ThreadScratch, Tier, matmul_transposed, threads_for,
};
use sws_store::{PieceId, PieceKind, Span};

use super::attention::{Context, rows_of, scratch_for};
use super::linear::{MAX, Product, Threads, multiply, run};
use super::work::{
    AttentionWork, LatentWork, WORTH_SPLITTING, Workspace, by_rows, grown, split_rows,
};
use crate::layer_state::Sequence;
use crate::role::Role;
use crate::rope::Rope;
use crate::source::{SourceError, Weights};
use crate::spec::LatentSpec;

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
    context: &Context<'_>,
    spec: &LatentSpec,
    weights: &mut dyn Weights,
    sequences: &mut [Sequence],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let &Context { tier, layer: l, hidden, ropes, spans, .. } = context;
    let id = PieceId::new(l as u32, PieceKind::Attention);
    let Workspace { input, branch, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, mixed, packed, tables, latent, .. } = own;
    let tokens = input.tokens();
    let (q_width, width) = (spec.query_width(), spec.width());
    let q = grown(q, tokens * q_width);
    let latents = grown(k, tokens * width);
    let down = Product::new(id, Role::KvDown, input, &mut *latents, width);
    match spec.query_rank {
        None => {
            let query = Product::new(id, Role::Query, input, &mut *q, q_width);
            multiply(tier, Threads::All, weights, &mut [Some(query), Some(down)], scratch)?;
        }
        Some(rank) => {
            let low = grown(v, tokens * rank);
            let query = Product::new(id, Role::QueryDown, input, &mut *low, rank);
            multiply(tier, Threads::All, weights, &mut [Some(query), Some(down)], scratch)?;
            let weight = NormWeight::Plain(weights.vector(id, Role::QueryDownNorm));
            by_rows(low, rank, |_, x| rms_norm(tier, x, rank, weight, spec.eps));
            packed.pack(tier, low, tokens, rank);
            let query = Product::new(id, Role::QueryUp, packed, &mut *q, q_width);
            multiply(tier, Threads::All, weights, &mut [Some(query)], scratch)?;
        }
    }
    let weight = NormWeight::Plain(weights.vector(id, Role::KvDownNorm));
    by_rows(latents, width, |_, rows| {
        for row in rows.chunks_exact_mut(width) {
            rms_norm(tier, &mut row[..spec.rank], spec.rank, weight, spec.eps);
        }
    });
    let Rope { inv_freq, pairs, .. } = &ropes[spec.rope];
    let ([cos, sin], turned) = (&tables[spec.rope], inv_freq.len());
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
    for span in spans {
        let rows = rows_of(span, latents, width);
        sequences[span.sequence].layers[l].latent().append(span.first_position, rows);
    }

    let mixed = grown(mixed, tokens * spec.value_width());
    let LatentWork { absorbed, attended, inputs } = latent;
    let rows = tokens * heads_together(tokens, spec.heads);
    let absorbed = grown(absorbed, rows * width);
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
        attention: (&mut own.scratch, &mut own.scratch_fits),
        scratch: &mut *scratch,
    };
    match weights.matrix(id, Role::KvUp) {
        Some(matrix) => heads.all(&matrix),
        None => weights.blocks(id, Role::KvUp, &mut |first, rows| heads.block(first, rows))?,
    }

    packed.pack(tier, mixed, tokens, spec.value_width());
    let branch = grown(branch, tokens * hidden);
    let output = Product::new(id, Role::Output, packed, &mut *branch, hidden);
    multiply(tier, Threads::All, weights, &mut [Some(output)], scratch)
}

/// The heads of a layer, and where they are in the batch.
struct Heads<'a> {
    tier: Tier,
    layer: usize,
    spec: &'a LatentSpec,
    tokens: usize,
    spans: &'a [Span],
    sequences: &'a mut [Sequence],
    /// Queries, rotated: [tokens, all heads, plain + rotated].
    q: &'a [f32],
    /// Values of all heads: [tokens, all heads, value].
    mixed: &'a mut [f32],
    /// Of the heads computed together: [tokens, heads, rank + rotated].
    absorbed: &'a mut [f32],
    /// [tokens, heads, rank]
    attended: &'a mut [f32],
    /// One for each head.
    inputs: &'a mut Vec<Input>,
    /// Scratch of each thread of attention, and what it fits.
    attention: (&'a mut Vec<AttentionScratch>, &'a mut (usize, usize)),
    scratch: &'a mut Vec<ThreadScratch>,
}

impl Heads<'_> {
    /// Computes all heads with the whole matrix.
    fn all(&mut self, matrix: &Matrix<'_>) {
        let &LatentSpec { heads, plain, .. } = self.spec;
        let rows = self.spec.head_rows();
        let together = heads_together(self.tokens, heads);
        for first in (0..heads).step_by(together) {
            let group = first..heads.min(first + together);
            let of = |head: usize, part: Range<usize>| {
                matrix.rows(head * rows + part.start..head * rows + part.end)
            };
            self.begin(group.clone());
            self.absorb(group.clone(), 0, |head| of(head, 0..plain));
            self.attend(group.clone());
            self.pack(group.len());
            self.values(group, 0, |head| of(head, plain..rows));
        }
    }

    /// Computes with rows from `first` on. Rows come in ascending order, so a head is computed when
    /// the last row for its keys is there.
    fn block(&mut self, first: usize, block: &Matrix<'_>) {
        let (plain, rows) = (self.spec.plain, self.spec.head_rows());
        let (mut at, end) = (first, first + block.row_count());
        while at < end {
            let (head, row) = (at / rows, at % rows);
            let group = head..head + 1;
            let until = if row < plain { plain } else { rows };
            let next = end.min(head * rows + until);
            let part = block.rows(at - first..next - first);
            if row < plain {
                if row == 0 {
                    self.begin(group.clone());
                }
                self.absorb(group.clone(), row, |_| part);
                if next == head * rows + plain {
                    self.attend(group);
                    self.pack(1);
                }
            } else {
                self.values(group, row - plain, |_| part);
            }
            at = next;
        }
    }

    /// Begins the queries of some heads: zeros, and the rotated parts as they are.
    fn begin(&mut self, heads: Range<usize>) {
        let &LatentSpec { rank, plain, rotated, .. } = self.spec;
        let head_dim = plain + rotated;
        let all = self.spec.heads;
        let absorbed = self.absorbed[..self.tokens * heads.len() * (rank + rotated)]
            .chunks_exact_mut(rank + rotated);
        for (i, row) in absorbed.enumerate() {
            let (token, head) = (i / heads.len(), heads.start + i % heads.len());
            let q = &self.q[(token * all + head) * head_dim..][..head_dim];
            let (latent, turned) = row.split_at_mut(rank);
            latent.fill(0.0);
            turned.copy_from_slice(&q[plain..]);
        }
    }

    /// Adds the products of queries and some rows of each head's keys, from row `first` on.
    fn absorb<'m>(
        &mut self,
        heads: Range<usize>,
        first: usize,
        rows: impl Fn(usize) -> Matrix<'m> + Sync,
    ) {
        let &LatentSpec { heads: all, rank, plain, rotated, .. } = self.spec;
        let (tier, q, count) = (self.tier, self.q, heads.len());
        let (head_dim, width) = (plain + rotated, rank + rotated);
        let absorbed = &mut self.absorbed[..self.tokens * count * width];
        let worth = WORTH_SPLITTING / plain + 1;
        split_rows(absorbed, width, worth, |from, part| {
            let until = from + part.len() / width;
            for (place, head) in heads.clone().enumerate() {
                // The tokens whose query of this head is in this part.
                let token = |row: usize| (row + count - 1 - place) / count;
                let tokens = token(from)..token(until);
                if tokens.is_empty() {
                    continue;
                }
                let x = &q[(tokens.start * all + head) * head_dim + first..];
                let y = &mut part[(tokens.start * count + place - from) * width..];
                let x = Strided { numbers: x, stride: all * head_dim };
                let y = Strided { numbers: y, stride: count * width };
                matmul_transposed(tier, &rows(head), tokens.len(), x, y);
            }
        });
    }

    /// Attends with the queries of some heads, to the latents of each sequence.
    fn attend(&mut self, heads: Range<usize>) {
        let &LatentSpec { rank, scale, .. } = self.spec;
        let (count, width) = (heads.len(), self.spec.width());
        for span in self.spans {
            let cache = self.sequences[span.sequence].layers[self.layer].latent();
            let rule = Attention {
                heads: count,
                kv_heads: 1,
                key_dim: width,
                value_dim: rank,
                scale,
                window: None,
                soft_cap: None,
                sinks: None,
            };
            let seen = cache.capacity().min(span.first_position + span.tokens);
            let threads = threads_for(span.tokens * count * seen * width);
            let needed = (rank, seen.next_power_of_two().min(cache.capacity()));
            let (scratch, fits) = &mut self.attention;
            let scratch = scratch_for(scratch, fits, threads, needed);
            let q = rows_of(span, self.absorbed, count * width);
            let y = &mut self.attended[span.first_row * count * rank..];
            let y = &mut y[..span.tokens * count * rank];
            let queries = Queries { first: span.first_position, q };
            attend(self.tier, &rule, &cache.view(), queries, y, scratch);
        }
    }

    /// Packs the sums of latents of `count` heads.
    fn pack(&mut self, count: usize) {
        let rank = self.spec.rank;
        if self.inputs.len() < count {
            self.inputs.resize_with(count, Input::new);
        }
        for (head, input) in self.inputs[..count].iter_mut().enumerate() {
            let row = |token: usize| &self.attended[(token * count + head) * rank..][..rank];
            input.pack_rows(self.tier, self.tokens, rank, row);
        }
    }

    /// Computes elements of the values of some heads, by rows from `first` on.
    fn values<'m>(
        &mut self,
        heads: Range<usize>,
        first: usize,
        rows: impl Fn(usize) -> Matrix<'m>,
    ) {
        let value_dim = self.spec.value_dim;
        let mut jobs = [const { None }; MAX];
        let all = Output::new(&mut *self.mixed, self.tokens, self.spec.value_width());
        let (_, mut left) = all.split_at(heads.start * value_dim);
        for ((job, input), head) in jobs.iter_mut().zip(&*self.inputs).zip(heads) {
            let matrix = rows(head);
            let (own, others) = left.split_at(value_dim);
            left = others;
            let (_, y) = own.split_at(first);
            let (y, _) = y.split_at(matrix.row_count());
            *job = Some(MatmulJob { matrix, x: input, y });
        }
        run(self.tier, Threads::All, jobs, self.scratch);
    }
}

#[cfg(test)]
mod tests {
    use sws_kernels::Encoding;

    use super::*;

    /// Large enough for several threads, with queries of one token on different threads.
    #[test]
    fn absorbed_queries_do_not_depend_on_threads_or_blocks() {
        let spec = LatentSpec {
            heads: 7,
            query_rank: None,
            rank: 50,
            plain: 64,
            rotated: 2,
            value_dim: 3,
            eps: 1e-6,
            scale: 1.0,
            rope: 0,
        };
        let (tokens, rows, head_dim, width) = (5, spec.head_rows(), 66, spec.width());
        let number = |i: usize| ((i * 7919) % 1013) as f32 / 500.0 - 1.0;
        let q: Vec<f32> = (0..tokens * spec.query_width()).map(number).collect();
        let weights: Vec<f32> = (0..spec.heads * rows * spec.rank).map(|i| number(i + 1)).collect();
        let bytes: Vec<u8> = weights.iter().flat_map(|x| x.to_le_bytes()).collect();
        let shape = (spec.heads * rows, spec.rank);
        let matrix = Matrix::new(Encoding::F32, shape.0, shape.1, &[&bytes]).unwrap();
        let mut expected = vec![0.0f32; tokens * spec.heads * width];
        for (i, to) in expected.chunks_exact_mut(width).enumerate() {
            let q = &q[i * head_dim..][..head_dim];
            for (row, q) in q[..spec.plain].iter().enumerate() {
                let from = &weights[(i % spec.heads * rows + row) * spec.rank..][..spec.rank];
                to.iter_mut().zip(from).for_each(|(to, w)| *to = w.mul_add(*q, *to));
            }
            to[spec.rank..].copy_from_slice(&q[spec.plain..]);
        }
        for threads in [1, 2, 3, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for cut in [0, 1, 30, 64] {
                let mut found = vec![f32::NAN; expected.len()];
                let (mut empty, mut inputs, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
                let mut heads = Heads {
                    tier: Tier::best(),
                    layer: 0,
                    spec: &spec,
                    tokens,
                    spans: &[],
                    sequences: &mut [],
                    q: &q,
                    mixed: &mut [],
                    absorbed: &mut found,
                    attended: &mut [],
                    inputs: &mut inputs,
                    attention: (&mut empty, &mut (0, 0)),
                    scratch: &mut scratch,
                };
                pool.install(|| {
                    let all = 0..spec.heads;
                    heads.begin(all.clone());
                    for part in [0..cut, cut..spec.plain] {
                        let of = |head: usize| {
                            matrix.rows(head * rows + part.start..head * rows + part.end)
                        };
                        heads.absorb(all.clone(), part.start, of);
                    }
                });
                assert_eq!(found, expected, "{threads} threads, cut at {cut}");
            }
        }
    }
}
