//! The heads of latent attention.

use std::ops::Range;

use sws_format::Span;
use sws_kernels::functional::{Attention, Queries, attention as attend};
use sws_kernels::{
    MatmulJob, Matrix, OutputColumns, PackedInput, ScratchPool, Strided, Tier, matmul_transposed,
    threads_for,
};

use super::super::by_rows::{WORTH_SPLITTING, rows_of, split_rows};
use super::super::linear::{MAX, run};
use super::heads_together;
use crate::layer_state::SequenceState;
use crate::spec::LatentSpec;
use crate::workspace::{AttendScratch, Selection};

/// The heads of a layer, and their buffers.
pub(super) struct Heads<'a> {
    pub(super) tier: Tier,
    pub(super) layer: usize,
    pub(super) spec: &'a LatentSpec,
    pub(super) tokens: usize,
    pub(super) spans: &'a [Span],
    pub(super) sequences: &'a mut [SequenceState],
    /// Queries, rotated: [tokens, all heads, plain + rotated].
    pub(super) q: &'a [f32],
    /// Values of all heads: [tokens, all heads, value].
    pub(super) mixed: &'a mut [f32],
    /// Absorbed queries of the heads computed together: [tokens, heads, rank + rotated]. With
    /// separate matrices, of all heads, one group after another.
    pub(super) absorbed: &'a mut [f32],
    /// [tokens, heads, rank]
    pub(super) attended: &'a mut [f32],
    /// Packed inputs, one for each head computed together.
    pub(super) inputs: &'a mut Vec<PackedInput>,
    pub(super) packed: usize,
    /// The positions selected for each token of the batch.
    pub(super) selected: &'a Selection,
    /// Sinks, one for each head.
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) attending: &'a mut AttendScratch,
    pub(super) scratch: &'a mut ScratchPool,
}

impl Heads<'_> {
    /// Computes all heads with the whole matrix.
    pub(super) fn all(&mut self, matrix: &Matrix<'_>) {
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
            self.pack(group.clone());
            self.values(group, 0, |head| of(head, plain..rows));
        }
    }

    /// Computes with rows from `first` on. Rows arrive in ascending order, so a head is computed
    /// once the last row of its keys has arrived.
    pub(super) fn block(&mut self, first: usize, block: &Matrix<'_>) {
        let plain = self.spec.plain;
        let rows = self.spec.head_rows();
        let mut at = first;
        let end = first + block.row_count();
        while at < end {
            let head = at / rows;
            let row = at % rows;
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
                    self.attend(group.clone());
                    self.pack(group);
                }
            } else {
                self.values(group, row - plain, |_| part);
            }
            at = next;
        }
    }

    /// Begins the queries of all heads, for separate matrices.
    pub(super) fn begin_all(&mut self) {
        for first in (0..self.spec.heads).step_by(self.together()) {
            self.begin(self.group(first));
        }
    }

    /// Computes with rows of the separate matrix of keys, from `first` on.
    pub(super) fn split_keys(&mut self, first: usize, block: &Matrix<'_>) {
        let &LatentSpec { heads: all, rank, plain, rotated, .. } = self.spec;
        let head_dim = plain + rotated;
        let width = rank + rotated;
        let tokens = self.tokens;
        for HeadRange { heads, row, rows } in runs(first, block.row_count(), rank, self.together())
        {
            let group = self.group(heads.start);
            let place = self.place(&group);
            let q = self.q;
            let of =
                |head: usize| move |token: usize| &q[(token * all + head) * head_dim..][..plain];
            let inputs = packs(self.inputs, heads.len());
            for (input, head) in inputs.iter_mut().zip(heads.clone()) {
                input.pack_rows(self.tier, tokens, plain, of(head));
            }
            let mut jobs = [const { None }; MAX];
            let y = OutputColumns::new(&mut self.absorbed[place], tokens, group.len() * width);
            let mut left = y.split_at((heads.start - group.start) * width).1;
            for ((job, input), head) in jobs.iter_mut().zip(&*inputs).zip(heads) {
                let (own, others) = left.split_at(width);
                left = others;
                let y = own.split_at(row).1.split_at(rows).0;
                let at = head * rank + row - first;
                *job = Some(MatmulJob { matrix: block.rows(at..at + rows), x: input, y });
            }
            run(self.tier, &jobs, self.scratch);
        }
    }

    /// Computes with rows of the separate matrix of values, from `first` on. Rows come in ascending
    /// order, so heads attend before the first of them.
    pub(super) fn split_values(&mut self, first: usize, block: &Matrix<'_>) {
        let each = self.spec.value_dim;
        for HeadRange { heads, row, rows } in runs(first, block.row_count(), each, self.together())
        {
            let group = self.group(heads.start);
            if row == 0 && heads.start == group.start {
                self.attend(group.clone());
                self.pack(group);
            }
            self.values(heads, row, |head| {
                let at = head * each + row - first;
                block.rows(at..at + rows)
            });
        }
    }

    /// Number of heads computed together.
    fn together(&self) -> usize {
        heads_together(self.tokens, self.spec.heads)
    }

    /// The heads that are computed together with this one.
    fn group(&self, head: usize) -> Range<usize> {
        let first = head - head % self.together();
        first..self.spec.heads.min(first + self.together())
    }

    /// The place of the absorbed queries of some heads.
    fn place(&self, heads: &Range<usize>) -> Range<usize> {
        let each = self.tokens * self.spec.width();
        let first = if self.spec.split { heads.start * each } else { 0 };
        first..first + heads.len() * each
    }

    /// Begins the queries of some heads: zeros, followed by the rotated parts unchanged.
    fn begin(&mut self, heads: Range<usize>) {
        let &LatentSpec { rank, plain, rotated, .. } = self.spec;
        let head_dim = plain + rotated;
        let all = self.spec.heads;
        let place = self.place(&heads);
        let absorbed = self.absorbed[place].chunks_exact_mut(rank + rotated);
        for (i, row) in absorbed.enumerate() {
            let token = i / heads.len();
            let head = heads.start + i % heads.len();
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
        let tier = self.tier;
        let q = self.q;
        let count = heads.len();
        let head_dim = plain + rotated;
        let width = rank + rotated;
        let absorbed = &mut self.absorbed[..self.tokens * count * width];
        let worth = WORTH_SPLITTING / plain + 1;
        split_rows(absorbed, width, worth, |from, part| {
            let until = from + part.len() / width;
            for (place, head) in heads.clone().enumerate() {
                // The first token whose query of this head is in row `row` or later.
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
        let &LatentSpec { rank, scale, window, sparse, .. } = self.spec;
        let count = heads.len();
        let width = self.spec.width();
        let place = self.place(&heads);
        for span in self.spans {
            let layer = self.spec.latents_of(self.layer);
            let cache = self.sequences[span.sequence].layer(layer).latent();
            let rule = Attention {
                heads: count,
                kv_heads: 1,
                key_dim: width,
                value_dim: rank,
                scale,
                window,
                aligned: false,
                soft_cap: None,
                sinks: self.sinks.map(|sinks| &sinks[heads.clone()]),
            };
            let selected = sparse.and_then(|_| self.selected.of(span));
            let seen = cache.capacity().min(span.first_position + span.tokens);
            let seen = selected.map_or(seen, |selected| selected.most);
            let threads = threads_for(span.tokens * count * seen * width);
            let needed = (rank, seen.next_power_of_two().min(cache.capacity()));
            let scratch = self.attending.of(threads, needed);
            let q = rows_of(span, &self.absorbed[place.clone()], count * width);
            let y = &mut self.attended[span.first_row * count * rank..];
            let y = &mut y[..span.tokens * count * rank];
            let queries = Queries { first: span.first_position, q, selected, distances: None };
            attend(self.tier, &rule, &cache.view(), queries, y, scratch);
        }
    }

    /// Packs the sums of latents of some heads.
    fn pack(&mut self, heads: Range<usize>) {
        let rank = self.spec.rank;
        let count = heads.len();
        self.packed = heads.start;
        for (head, input) in packs(self.inputs, count).iter_mut().enumerate() {
            let row = |token: usize| &self.attended[(token * count + head) * rank..][..rank];
            input.pack_rows(self.tier, self.tokens, rank, row);
        }
    }

    /// Computes elements of the values of some heads, from matrix rows from `first` on.
    fn values<'m>(
        &mut self,
        heads: Range<usize>,
        first: usize,
        rows: impl Fn(usize) -> Matrix<'m>,
    ) {
        let value_dim = self.spec.value_dim;
        let mut jobs = [const { None }; MAX];
        let all = OutputColumns::new(&mut *self.mixed, self.tokens, self.spec.value_width());
        let mut left = all.split_at(heads.start * value_dim).1;
        let inputs = &self.inputs[heads.start - self.packed..];
        for ((job, input), head) in jobs.iter_mut().zip(inputs).zip(heads) {
            let matrix = rows(head);
            let (own, others) = left.split_at(value_dim);
            left = others;
            let y = own.split_at(first).1.split_at(matrix.row_count()).0;
            *job = Some(MatmulJob { matrix, x: input, y });
        }
        run(self.tier, &jobs, self.scratch);
    }
}

/// The first `count` packed inputs, which are added if necessary.
pub(super) fn packs(inputs: &mut Vec<PackedInput>, count: usize) -> &mut [PackedInput] {
    if inputs.len() < count {
        inputs.resize_with(count, PackedInput::new);
    }
    &mut inputs[..count]
}

/// Rows of a matrix that has equally many for each head: all rows of several heads, or some rows of
/// one head.
struct HeadRange {
    heads: Range<usize>,
    /// The first row of each head, and the number of rows.
    row: usize,
    rows: usize,
}

/// Divides `count` rows from `first` on into runs. The heads of a run belong to one group of
/// `together` heads.
fn runs(
    first: usize,
    count: usize,
    each: usize,
    together: usize,
) -> impl Iterator<Item = HeadRange> {
    let mut at = first;
    let end = first + count;
    std::iter::from_fn(move || {
        let head = at / each;
        let row = at % each;
        let whole = if row == 0 { (end - at) / each } else { 0 };
        let until = (head + whole).min(head - head % together + together).max(head + 1);
        let rows = if whole > 0 { each } else { (each - row).min(end - at) };
        at += (until - head) * rows;
        (rows > 0).then_some(HeadRange { heads: head..until, row, rows })
    })
}

#[cfg(test)]
mod tests {
    use sws_kernels::{Encoding, fma};

    use super::*;

    /// Large enough for several threads, with queries of one token on different threads.
    #[test]
    fn absorbed_queries_do_not_depend_on_threads_or_blocks() {
        let spec = LatentSpec {
            gates: crate::spec::LatentGates::None,
            sinks: false,
            temperature: None,
            head_growth: false,
            latents: crate::spec::KeyValues::Own,
            heads: 7,
            query_rank: None,
            rank: 50,
            plain: 64,
            rotated: 2,
            value_dim: 3,
            eps: 1e-6,
            key_norm: false,
            latent_scale: 1.0,
            scale: 1.0,
            rope: Some(0),
            split: false,
            window: None,
            sparse: None,
        };
        let tokens = 5;
        let rows = spec.head_rows();
        let head_dim = 66;
        let width = spec.width();
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
                to.iter_mut().zip(from).for_each(|(to, w)| *to = fma(*w, *q, *to));
            }
            to[spec.rank..].copy_from_slice(&q[spec.plain..]);
        }
        for threads in [1, 2, 3, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for cut in [0, 1, 30, 64] {
                let mut found = vec![f32::NAN; expected.len()];
                let mut attending = AttendScratch::default();
                let mut inputs = Vec::new();
                let mut scratch = ScratchPool::default();
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
                    selected: &Selection::default(),
                    sinks: None,
                    packed: 0,
                    attending: &mut attending,
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
