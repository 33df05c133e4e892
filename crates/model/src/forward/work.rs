//! Working memory of passes: grown by the largest batch, then reused.

use rayon::prelude::*;
use sws_kernels::functional::{AttentionScratch, rope_tables};
use sws_kernels::{PackedInput, ScratchPool, Tier};
use sws_store::Span;

use super::blocks::BlockWork;
use super::branches::{NormVectors, norm, scale};
use super::by_rows::by_rows;
use super::compressed::CompressedWork;
use super::indexer::{IndexWork, Selection};
use super::inputs::InputWork;
use super::moe::group;
use super::streams::GateWork;
use crate::rope::Rope;
use crate::source::Routed;
use crate::spec::Norm;

/// Number of positions whose sines a thread computes at a time: some twenty microseconds.
const TABLE_ROWS: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// A normed copy of the hidden state: [tokens, hidden].
    pub(super) x: Vec<f32>,
    /// That of all tokens of a pass, while those of a strip are in `x`; after that the other way round.
    pub(super) normed: Vec<f32>,
    /// True if it is the other way round.
    has_strips: bool,
    /// The spans of a strip.
    pub(super) spans: Vec<Span>,
    /// `x`, packed; undefined if it has more than one strip.
    pub(super) input: PackedInput,
    /// The output of a branch, to be added to the hidden state: [tokens, hidden].
    pub(super) branch: Vec<f32>,
    /// What is added at the end of the next layer: [tokens, hidden].
    pub(super) later: Vec<f32>,
    /// What tokens give to layers.
    pub(super) inputs: InputWork,
    /// The weights of residual streams, of the branch that is added next: [tokens, weights].
    pub(super) streams: Vec<f32>,
    pub(super) gates: GateWork,
    /// The rows of n-grams of a layer: [tokens, elements].
    pub(super) rows: Vec<f32>,
    pub(super) attention: AttentionWork,
    /// Logits or scores: [tokens, experts].
    pub(super) router: Vec<f32>,
    /// Of routers that rank: [tokens, experts].
    pub(super) ranks: Vec<f32>,
    pub(crate) routed: Routed,
    pub(super) mlp: MlpWork,
    pub(super) experts: ExpertWork,
    pub(super) scratch: ScratchPool,
    pub(crate) logits: Vec<f32>,
    /// True after `x`, `routed` and the shared expert's output were restored, until the data
    /// derived from them has been rebuilt.
    pub(super) resumed: bool,
}

/// The inputs of a layer's experts.
#[derive(Debug)]
pub(crate) struct Middle {
    x: Vec<f32>,
    routed: Routed,
    shared: Vec<f32>,
    streams: Vec<f32>,
    latent: Vec<f32>,
}

#[derive(Debug, Default)]
pub(super) struct AttentionWork {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) mixed: Vec<f32>,
    pub(super) packed: PackedInput,
    pub(super) latent: LatentWork,
    pub(super) delta: DeltaWork,
    /// Queries with their gates: [tokens, heads, 2 · elements].
    pub(super) gated: Vec<f32>,
    pub(super) index: IndexWork,
    pub(super) blocks: BlockWork,
    pub(super) compressed: CompressedWork,
    pub(super) distances: DistanceWork,
    /// A copy of what layers with blocks or entries select, if it is wanted.
    pub(super) noted: Option<Vec<u32>>,
    /// Cosines and sines [tokens, pairs] of each rotary embedding.
    pub(super) tables: Vec<[Vec<f32>; 2]>,
    /// The batch for which the tables were made.
    spans: Vec<Span>,
    pub(super) attending: AttendScratch,
}

/// Scratch of each thread of attention.
#[derive(Debug, Default)]
pub(super) struct AttendScratch {
    threads: Vec<AttentionScratch>,
    /// The head size and the number of positions that it is made for.
    fits: (usize, usize),
}

impl AttendScratch {
    /// Scratch for some threads, reallocated if it is too small.
    pub(super) fn of(&mut self, threads: usize, needed: (usize, usize)) -> &mut [AttentionScratch] {
        let AttendScratch { threads: all, fits } = self;
        if fits.0 < needed.0 || fits.1 < needed.1 {
            *fits = (fits.0.max(needed.0), fits.1.max(needed.1));
            all.clear();
        }
        if all.len() < threads {
            all.resize_with(threads, || AttentionScratch::new(fits.0, fits.1));
        }
        &mut all[..threads]
    }

    fn bytes(&self) -> usize {
        self.threads.len() * AttentionScratch::bytes(self.fits.0, self.fits.1)
    }
}

/// What is added to scores by distances.
#[derive(Debug, Default)]
pub(super) struct DistanceWork {
    /// [tokens, heads, rank]
    pub(super) rows: Vec<f32>,
    /// [some tokens, heads, distances]
    pub(super) bias: Vec<f32>,
}

/// Some heads of latent attention, which are computed together.
#[derive(Debug, Default)]
pub(super) struct LatentWork {
    /// Queries multiplied into the space of latents: [tokens, heads, rank + rotated]. With
    /// matrices of their own for keys, those of all heads, group after group.
    pub(super) absorbed: Vec<f32>,
    /// Sums of latents: [tokens, heads, rank].
    pub(super) attended: Vec<f32>,
    /// The sums of each head, packed, or before them the plain parts of its queries.
    pub(super) inputs: Vec<PackedInput>,
    /// [heads]
    pub(super) sinks: Vec<f32>,
}

/// The inputs and outputs of the heads of a delta net or a state space.
#[derive(Debug, Default)]
pub(super) struct DeltaWork {
    /// [tokens, heads], or [tokens, heads, elements of a key]
    pub(super) decay: Vec<f32>,
    /// [tokens, heads]
    pub(super) beta: Vec<f32>,
    /// [heads, blocks of columns, tokens, columns]
    pub(super) outputs: Vec<f32>,
}

/// A gated MLP, or the experts that are computed together.
#[derive(Debug, Default)]
pub(super) struct MlpWork {
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    pub(super) packed: Vec<PackedInput>,
    /// A bias of an expert.
    pub(super) bias: Vec<f32>,
}

#[derive(Debug, Default)]
pub(super) struct ExpertWork {
    /// Start in `rows` of the rows of each expert in `Routed::distinct`, followed by the end.
    pub(super) starts: Vec<usize>,
    /// Indices into `Routed::choices`, by expert, then by token, without repeated choices.
    pub(super) rows: Vec<usize>,
    /// Flag for each expert of `Routed::distinct`: true once it has been computed.
    pub(super) done: Vec<bool>,
    /// The outputs, in the order of `rows`: [tokens · top_k, hidden].
    pub(super) outputs: Vec<f32>,
    /// Indices of each token's rows in `rows`: [tokens, top_k], ascending.
    pub(super) by_token: Vec<usize>,
    /// Number of entries of `by_token` for each token.
    pub(super) found: Vec<usize>,
    pub(super) inputs: Vec<PackedInput>,
    /// Where experts read a projection: [tokens, elements], the same packed, and the elements.
    pub(super) latent: Vec<f32>,
    pub(super) packed: PackedInput,
    pub(super) latent_width: usize,
    /// The output of the shared expert, and its gate for each token.
    pub(super) shared: Vec<f32>,
    pub(super) shared_gate: Vec<f32>,
    /// The number by which weights of experts are multiplied, where shared ones are weighed.
    pub(super) factor: f32,
}

impl Workspace {
    /// How often products were divided among threads.
    pub(crate) fn divisions(&self) -> u64 {
        self.scratch.divisions()
    }

    /// Puts the normed state of all tokens in `x`, after that of each strip was copied to `normed`.
    pub(super) fn begin_strips(&mut self) {
        std::mem::swap(&mut self.x, &mut self.normed);
        self.has_strips = true;
    }

    /// Puts the buffer of a strip back.
    pub(super) fn end_strips(&mut self) {
        if std::mem::take(&mut self.has_strips) {
            std::mem::swap(&mut self.x, &mut self.normed);
        }
    }

    /// Puts the normed hidden state in `x` and `input`.
    pub(super) fn norm(&mut self, tier: Tier, by: Norm, hidden: &[f32], vectors: NormVectors<'_>) {
        let width = vectors.weight.len();
        let x = grown(&mut self.x, hidden.len());
        by_rows(x, width, |first, rows| {
            rows.copy_from_slice(&hidden[first * width..][..rows.len()]);
            norm(tier, by, rows, width, vectors);
        });
        self.input.pack(tier, x, hidden.len() / width, width);
    }

    /// The same, with the normed state divided by the root of its length.
    pub(super) fn scaled_norm(&mut self, tier: Tier, by: Norm, hidden: &[f32], weight: &[f32]) {
        let width = weight.len();
        let x = grown(&mut self.x, hidden.len());
        x.copy_from_slice(hidden);
        by_rows(x, width, |_, rows| norm(tier, by, rows, width, weight));
        scale(1.0 / (width as f32).sqrt(), x);
        self.input.pack(tier, x, hidden.len() / width, width);
    }

    /// Copies the inputs of the experts, of a batch with `numbers` elements in its hidden state.
    pub(crate) fn middle(&self, numbers: usize) -> Middle {
        let first = |of: &[f32]| of[..numbers.min(of.len())].to_vec();
        let routed = self.routed.clone();
        let ExpertWork { shared, latent, latent_width, .. } = &self.experts;
        let latents = routed.choices.len() / routed.top_k.max(1) * latent_width;
        let latent = latent[..latents.min(latent.len())].to_vec();
        let x = first(&self.x);
        let shared = first(shared);
        Middle { x, routed, shared, streams: self.streams.clone(), latent }
    }

    /// Restores the inputs of the experts from `middle`.
    pub(crate) fn resume(&mut self, middle: Middle) {
        grown(&mut self.x, middle.x.len()).copy_from_slice(&middle.x);
        self.experts.shared[..middle.shared.len()].copy_from_slice(&middle.shared);
        self.streams[..middle.streams.len()].copy_from_slice(&middle.streams);
        self.experts.latent[..middle.latent.len()].copy_from_slice(&middle.latent);
        self.routed = middle.routed;
        self.resumed = true;
    }

    /// A copy of what is added at the end of the next layer, of a batch with `numbers` elements in
    /// its hidden state.
    pub(crate) fn later(&self, numbers: usize) -> Vec<f32> {
        self.later[..numbers.min(self.later.len())].to_vec()
    }

    /// Restores it.
    pub(crate) fn restore_later(&mut self, later: &[f32]) {
        self.later[..later.len()].copy_from_slice(later);
    }

    /// A copy of what the tokens of the batch give to layers; empty after the last.
    pub(crate) fn layer_inputs(&self) -> Vec<f32> {
        self.inputs.copy()
    }

    /// Restores it.
    pub(crate) fn restore_layer_inputs(&mut self, inputs: &[f32]) {
        self.inputs.restore(inputs);
    }

    /// The positions selected for the batch; None without sparse attention.
    pub(crate) fn selection(&self) -> Option<&Selection> {
        let selection = &self.attention.index.selection;
        selection.is_made().then_some(selection)
    }

    /// The copy of what layers with blocks or entries select.
    pub(crate) fn noted(&mut self) -> &mut Option<Vec<u32>> {
        &mut self.attention.noted
    }

    /// A copy of them, for a batch of `rows` tokens.
    pub(crate) fn selected(&self, rows: usize) -> Option<Selection> {
        self.selection().map(|selection| selection.first(rows))
    }

    /// Restores the positions selected for the batch; with None, no layer has selected any.
    pub(crate) fn reselect(&mut self, selection: Option<Selection>) {
        match selection {
            Some(copy) => self.attention.index.selection.restore(copy),
            None => self.attention.index.selection.clear(),
        }
    }

    /// After [`resume`](Self::resume), rebuilds the data derived from what was restored, for a
    /// batch with `numbers` elements in its hidden state.
    pub(super) fn restore(&mut self, tier: Tier, width: usize, numbers: usize) {
        if std::mem::take(&mut self.resumed) {
            self.input.pack(tier, &self.x[..numbers], numbers / width, width);
            group(&self.routed, &mut self.experts);
            let ExpertWork { latent, packed, latent_width: each, .. } = &mut self.experts;
            let latents = numbers / width * *each;
            if latents > 0 && latent.len() >= latents {
                packed.pack(tier, &latent[..latents], numbers / width, *each);
            }
        }
    }

    /// The first `numbers` elements of the shared expert's output.
    pub(super) fn shared(&self, numbers: usize) -> &[f32] {
        &self.experts.shared[..numbers]
    }

    /// Computes the rotary tables of a batch, unless they exist already.
    pub(super) fn tables(&mut self, ropes: &[Rope], spans: &[Span]) {
        let AttentionWork { tables, spans: made, .. } = &mut self.attention;
        if made == spans {
            return;
        }
        tables.resize_with(ropes.len(), Default::default);
        let tokens: usize = spans.iter().map(|span| span.tokens).sum();
        for ([cos, sin], rope) in tables.iter_mut().zip(ropes) {
            let pairs = rope.inv_freq.len();
            let cos = grown(cos, tokens * pairs);
            let sin = grown(sin, tokens * pairs);
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

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> u64 {
        let AttentionWork { q, k, v, mixed, gated, tables, packed, attending, .. } =
            &self.attention;
        let DeltaWork { decay, beta, outputs: of_heads } = &self.attention.delta;
        let LatentWork { absorbed, attended, inputs: sums, sinks } = &self.attention.latent;
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
            latent,
            packed: of_latents,
            latent_width: _,
            factor: _,
        } = &self.experts;
        let Routed { choices, weights, identity, shared: of_shared, distinct, .. } = &self.routed;
        let DistanceWork { rows: distances, bias } = &self.attention.distances;
        let floats = [
            &self.x,
            &self.normed,
            &self.branch,
            &self.router,
            &self.logits,
            q,
            k,
            v,
            mixed,
            outputs,
        ];
        let floats = floats.into_iter().chain([shared, shared_gate, weights]);
        let floats = floats.chain([&self.ranks, sinks, absorbed, attended, identity, &self.later]);
        let floats = floats.chain([of_shared, distances, bias]);
        let floats = floats.chain([latent, gated, decay, beta, of_heads, &self.streams]);
        let floats = floats.chain([&self.mlp.gate, &self.mlp.up, &self.mlp.bias]);
        let floats = floats.chain(tables.iter().flatten()).map(|v| v.capacity() * size_of::<f32>());
        let packed = self.mlp.packed.iter().chain(inputs).chain([&self.input, packed]).chain(sums);
        let packed = packed.chain([of_latents]);
        let places = [starts, rows, by_token, found];
        let bytes = floats.sum::<usize>()
            + self.inputs.capacity() * size_of::<f32>()
            + packed.map(PackedInput::bytes).sum::<usize>()
            + self.scratch.bytes()
            + places.map(Vec::capacity).iter().sum::<usize>() * size_of::<usize>()
            + (choices.capacity() + distinct.capacity()) * size_of::<u32>()
            + done.capacity()
            + attending.bytes()
            + self.attention.index.bytes()
            + self.attention.blocks.bytes()
            + self.attention.compressed.bytes()
            + self.gates.bytes()
            + self.rows.capacity() * size_of::<f32>();
        bytes as u64
    }
}

/// The first `len` elements of `buffer`, which grows if it is shorter. Their values are
/// unspecified.
pub(super) fn grown(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        // The old buffer is freed before the larger one is allocated, at exactly `len`: a budget
        // counts on it.
        *buffer = Vec::new();
        *buffer = vec![0.0; len];
    }
    &mut buffer[..len]
}
