//! Memory that passes work in: grown by the largest batch, then reused.

use rayon::prelude::*;
use sws_kernels::functional::{AttentionScratch, rope_tables};
use sws_kernels::{Functionals, Input, ThreadScratch};
use sws_store::Span;

use super::moe::group;
use super::norm;
use crate::rope::Rope;
use crate::source::Routed;
use crate::spec::Norm;

/// Positions whose sines a thread computes at a time: some twenty microseconds.
const TABLE_ROWS: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// A normed copy of the hidden state: [tokens, hidden].
    pub(super) x: Vec<f32>,
    /// The same, packed.
    pub(super) input: Input,
    /// What a branch adds to the hidden state: [tokens, hidden].
    pub(super) branch: Vec<f32>,
    pub(super) attention: AttentionWork,
    /// [tokens, experts]
    pub(super) router: Vec<f32>,
    pub(crate) routed: Routed,
    pub(super) mlp: MlpWork,
    pub(super) experts: ExpertWork,
    pub(super) scratch: Vec<ThreadScratch>,
    pub(super) logits: Vec<f32>,
    /// Whether `x`, `routed` and the shared expert's output have been put back, and what is made of
    /// them has not.
    pub(super) resumed: bool,
}

/// What the experts of a layer need of what came before them.
#[derive(Debug)]
pub(crate) struct Middle {
    x: Vec<f32>,
    routed: Routed,
    shared: Vec<f32>,
}

#[derive(Debug, Default)]
pub(super) struct AttentionWork {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) mixed: Vec<f32>,
    pub(super) packed: Input,
    /// Cosines and sines [tokens, pairs] of each rotary embedding.
    pub(super) tables: Vec<[Vec<f32>; 2]>,
    /// The batch that the tables are of.
    spans: Vec<Span>,
    pub(super) scratch: Vec<AttentionScratch>,
    /// The size of values and the number of positions that the scratch is made for.
    pub(super) scratch_fits: (usize, usize),
}

/// A gated MLP, or the experts that are computed together.
#[derive(Debug, Default)]
pub(super) struct MlpWork {
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    pub(super) packed: Vec<Input>,
}

#[derive(Debug, Default)]
pub(super) struct ExpertWork {
    /// Where in `rows` the rows of each of `Routed::distinct` begin; one more for the end.
    pub(super) starts: Vec<usize>,
    /// Places in `Routed::choices`, by expert, then by token.
    pub(super) rows: Vec<usize>,
    /// Which experts have been computed.
    pub(super) done: Vec<bool>,
    /// The outputs, in the order of `rows`: [tokens · top_k, hidden].
    pub(super) outputs: Vec<f32>,
    /// For each token, where in `rows` its own are: [tokens, top_k], ascending.
    pub(super) by_token: Vec<usize>,
    /// How many of them have been found.
    pub(super) found: Vec<usize>,
    pub(super) inputs: Vec<Input>,
    /// The output of the shared expert, and how much of it each token takes.
    pub(super) shared: Vec<f32>,
    pub(super) shared_gate: Vec<f32>,
}

impl Workspace {
    /// Puts the normed hidden state in `x` and `input`.
    pub(super) fn norm(
        &mut self,
        functionals: Functionals,
        by: Norm,
        hidden: &[f32],
        width: usize,
        weight: &[f32],
    ) {
        let x = grown(&mut self.x, hidden.len());
        by_rows(x, width, |first, rows| {
            rows.copy_from_slice(&hidden[first * width..][..rows.len()]);
            norm(functionals.norm, by, rows, width, weight);
        });
        self.input.pack(functionals.linear, x, hidden.len() / width, width);
    }

    /// What experts will need, of a batch with so many `numbers` in its hidden state.
    pub(crate) fn middle(&self, numbers: usize) -> Middle {
        let first = |of: &[f32]| of[..numbers.min(of.len())].to_vec();
        let Routed { top_k, choices, weights, distinct } = &self.routed;
        let (choices, weights, distinct) = (choices.clone(), weights.clone(), distinct.clone());
        let routed = Routed { top_k: *top_k, choices, weights, distinct };
        Middle { x: first(&self.x), routed, shared: first(&self.experts.shared) }
    }

    /// Goes back to where that was.
    pub(crate) fn resume(&mut self, middle: Middle) {
        self.x[..middle.x.len()].copy_from_slice(&middle.x);
        self.experts.shared[..middle.shared.len()].copy_from_slice(&middle.shared);
        self.routed = middle.routed;
        self.resumed = true;
    }

    /// After [`resume`](Self::resume), makes the rest from what was put back, of a batch with so many
    /// `numbers` in its hidden state.
    pub(super) fn restore(&mut self, functionals: Functionals, width: usize, numbers: usize) {
        if std::mem::take(&mut self.resumed) {
            self.input.pack(functionals.linear, &self.x[..numbers], numbers / width, width);
            group(&self.routed, &mut self.experts);
        }
    }

    /// The first numbers of what the shared expert has computed.
    pub(super) fn shared(&self, numbers: usize) -> &[f32] {
        &self.experts.shared[..numbers]
    }

    /// Makes the rotary tables of a batch, unless they are there.
    pub(super) fn tables(&mut self, ropes: &[Rope], spans: &[Span]) {
        let AttentionWork { tables, spans: made, .. } = &mut self.attention;
        if made == spans {
            return;
        }
        tables.resize_with(ropes.len(), Default::default);
        let tokens: usize = spans.iter().map(|span| span.tokens).sum();
        for ([cos, sin], rope) in tables.iter_mut().zip(ropes) {
            let pairs = rope.inv_freq.len();
            let (cos, sin) = (grown(cos, tokens * pairs), grown(sin, tokens * pairs));
            for span in spans {
                let rows = span.first_row * pairs..(span.first_row + span.tokens) * pairs;
                let cos = cos[rows.clone()].par_chunks_mut(TABLE_ROWS * pairs);
                let sin = sin[rows].par_chunks_mut(TABLE_ROWS * pairs);
                cos.zip(sin).enumerate().for_each(|(part, (cos, sin))| {
                    let first = span.first_position + part * TABLE_ROWS;
                    rope_tables(&rope.inv_freq, rope.factor, first, cos, sin);
                });
            }
        }
        made.clear();
        made.extend_from_slice(spans);
    }

    /// The bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let AttentionWork { q, k, v, mixed, tables, packed, scratch, scratch_fits, .. } =
            &self.attention;
        let ExpertWork {
            outputs,
            inputs,
            shared,
            shared_gate,
            starts,
            rows,
            by_token,
            found,
            done,
        } = &self.experts;
        let Routed { choices, weights, distinct, .. } = &self.routed;
        let floats = [&self.x, &self.branch, &self.router, &self.logits, q, k, v, mixed, outputs];
        let floats = floats.into_iter().chain([shared, shared_gate, weights]);
        let floats = floats.chain([&self.mlp.gate, &self.mlp.up]);
        let floats = floats.chain(tables.iter().flatten()).map(|v| v.capacity() * size_of::<f32>());
        let packed = self.mlp.packed.iter().chain(inputs).chain([&self.input, packed]);
        let places = [starts, rows, by_token, found];
        let per_thread = AttentionScratch::bytes(scratch_fits.0, scratch_fits.1);
        let bytes = floats.sum::<usize>()
            + packed.map(Input::bytes).sum::<usize>()
            + self.scratch.iter().map(ThreadScratch::bytes).sum::<usize>()
            + places.map(Vec::capacity).iter().sum::<usize>() * size_of::<usize>()
            + (choices.capacity() + distinct.capacity()) * size_of::<u32>()
            + done.capacity()
            + scratch.len() * per_thread;
        bytes as u64
    }
}

/// The first `len` numbers, of whatever value.
pub(super) fn grown(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        // Freed before the larger one is there, and no longer than asked for: a budget counts on it.
        *buffer = Vec::new();
        *buffer = vec![0.0; len];
    }
    &mut buffer[..len]
}

/// Calls `f` with every element, on several threads if they work on so many `numbers` that it pays.
pub(super) fn each<T: Send>(list: &mut [T], numbers: usize, f: impl Fn(&mut T) + Sync + Send) {
    let least = if numbers < WORTH_SPLITTING { list.len() } else { 1 };
    list.par_iter_mut().with_min_len(least.max(1)).with_max_len(least.max(1)).for_each(f);
}

/// Below this many numbers a second thread costs more to wake than it saves.
const WORTH_SPLITTING: usize = 1 << 16;

/// Calls `f` with runs of rows and the number of the first, on several threads if there are many.
pub(super) fn by_rows(x: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    fn split(
        x: &mut [f32],
        width: usize,
        first: usize,
        threads: usize,
        f: &(impl Fn(usize, &mut [f32]) + Sync),
    ) {
        let rows = x.len() / width;
        if threads < 2 || rows < 2 || x.len() < WORTH_SPLITTING {
            return f(first, x);
        }
        let half = rows / 2;
        let (left, right) = x.split_at_mut(half * width);
        rayon::join(
            || split(left, width, first, threads / 2, f),
            || split(right, width, first + half, threads - threads / 2, f),
        );
    }
    split(x, width, 0, rayon::current_num_threads(), &f);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_whatever_the_threads() {
        for (rows, width) in [(0, 5), (1, 200_000), (3, 40_000), (1000, 100), (131_072, 1)] {
            for threads in [1, 2, 3, 5] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut x = vec![0.5; rows * width];
                pool.install(|| {
                    by_rows(&mut x, width, |first, rows| {
                        for (row, x) in (first..).zip(rows.chunks_exact_mut(width)) {
                            x.iter_mut().for_each(|x| *x += row as f32);
                        }
                    });
                });
                let expected = (0..rows).flat_map(|row| vec![row as f32 + 0.5; width]);
                assert!(x.into_iter().eq(expected), "{rows} x {width}, {threads} threads");
            }
        }
    }
}
