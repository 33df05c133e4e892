//! Working memory of passes: grown by the largest batch, then reused.

mod experts;
mod mixers;

use sws_format::Span;
use sws_kernels::{PackedInput, ScratchPool};

use crate::source::Routed;
pub(crate) use experts::{ExpertWork, MlpWork};
pub(crate) use mixers::{
    AttendScratch, AttentionWork, BlockWork, CompressedWork, DeltaWork, DistanceWork, IndexWork,
    LatentWork, PoolWork, RopeTables, Selection, TokenWork,
};

/// Buffers of a pass, which grow to the size of the largest one.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// A normed copy of the hidden state: [tokens, hidden].
    pub(crate) x: Vec<f32>,
    pub(crate) strips: StripWork,
    /// `x`, packed; undefined if it has more than one strip.
    pub(crate) input: PackedInput,
    /// The output of a branch, to be added to the hidden state: [tokens, hidden].
    pub(crate) branch: Vec<f32>,
    /// Per-layer inputs.
    pub(crate) inputs: InputWork,
    pub(crate) streams: StreamWork,
    pub(crate) messages: MessageWork,
    /// The rows of n-grams of a layer: [tokens, elements].
    pub(crate) rows: Vec<f32>,
    pub(crate) attention: AttentionWork,
    pub(crate) router: RouterWork,
    pub(crate) routed: Routed,
    pub(crate) mlp: MlpWork,
    pub(crate) experts: ExpertWork,
    pub(crate) scratch: ScratchPool,
    pub(crate) logits: Vec<f32>,
    /// True after `x`, `routed` and the shared expert's output were restored, until the data
    /// derived from them has been rebuilt.
    pub(crate) resumed: bool,
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

/// The normed states of a pass in strips.
#[derive(Debug, Default)]
pub(crate) struct StripWork {
    /// The normed state of all tokens, while `x` has that of a strip. Afterwards the buffers are
    /// swapped.
    pub(crate) normed: Vec<f32>,
    /// True if the buffers are swapped.
    is_swapped: bool,
    /// The spans of a strip.
    pub(crate) spans: Vec<Span>,
}

/// Working memory of residual streams.
#[derive(Debug, Default)]
pub(crate) struct StreamWork {
    /// Weights of the streams for the branch that is added next: [tokens, weights].
    pub(crate) weights: Vec<f32>,
    pub(crate) gates: GateWork,
}

/// Working memory of messages between rounds.
#[derive(Debug, Default)]
pub(crate) struct MessageWork {
    /// The number of the layer among those of the round, in a later round.
    pub(crate) round: Option<usize>,
    /// The rows that compute the logits of messages: to queries and to feed-forward blocks, and to
    /// keys and to values.
    pub(crate) rows: [Vec<f32>; 2],
    /// The states that queries, keys and values read: [tokens, hidden].
    pub(crate) states: [Vec<f32>; 3],
    /// [tokens, hidden]
    pub(crate) message: Vec<f32>,
    /// State and message, normed: [tokens, 2, hidden].
    pub(crate) both: Vec<f32>,
    pub(crate) packed: PackedInput,
    /// The latent of gates: [tokens, rank].
    pub(crate) low: Vec<f32>,
    pub(crate) of_low: PackedInput,
    /// Gates of states, then those of messages: [2, tokens, hidden].
    pub(crate) gates: Vec<f32>,
}

impl MessageWork {
    fn bytes(&self) -> usize {
        let MessageWork { round: _, rows, states, message, both, packed, low, of_low, gates } =
            self;
        let floats = rows.iter().chain(states).chain([message, both, low, gates]);
        floats.map(Vec::capacity).sum::<usize>() * size_of::<f32>()
            + packed.bytes()
            + of_low.bytes()
    }
}

/// Working memory of routers.
#[derive(Debug, Default)]
pub(crate) struct RouterWork {
    /// Logits or scores: [tokens, experts].
    pub(crate) scores: Vec<f32>,
    /// Ranks of ranking routers: [tokens, experts].
    pub(crate) ranks: Vec<f32>,
}

/// Working memory of gates of streams.
#[derive(Debug, Default)]
pub(crate) struct GateWork {
    /// [tokens, rank]
    pub(crate) low: Vec<f32>,
    /// [tokens, streams, width]
    pub(crate) gates: Vec<f32>,
    pub(crate) packed: PackedInput,
}

impl GateWork {
    fn bytes(&self) -> usize {
        let GateWork { low, gates, packed } = self;
        (low.capacity() + gates.capacity()) * size_of::<f32>() + packed.bytes()
    }
}

/// The inputs of all layers for the tokens of a batch.
#[derive(Debug, Default)]
pub(crate) struct InputWork {
    /// [tokens, layers · elements]
    pub(crate) numbers: Vec<f32>,
    /// Number of values of the batch; 0 after its last layer.
    pub(crate) len: usize,
}

impl InputWork {
    /// Forgets the batch, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// A copy of the inputs of the batch.
    fn copy(&self) -> Vec<f32> {
        self.numbers[..self.len].to_vec()
    }

    /// Restores them.
    fn restore(&mut self, copy: &[f32]) {
        self.numbers[..copy.len()].copy_from_slice(copy);
        self.len = copy.len();
    }

    fn capacity(&self) -> usize {
        self.numbers.capacity()
    }
}

impl Workspace {
    /// Number of times that products were divided among threads.
    pub(crate) fn divisions(&self) -> u64 {
        self.scratch.divisions()
    }

    /// Swaps the normed state of all tokens into `x`, after the state of each strip was copied to
    /// `normed`.
    pub(crate) fn begin_strips(&mut self) {
        std::mem::swap(&mut self.x, &mut self.strips.normed);
        self.strips.is_swapped = true;
    }

    /// Puts the buffer of a strip back.
    pub(crate) fn end_strips(&mut self) {
        if std::mem::take(&mut self.strips.is_swapped) {
            std::mem::swap(&mut self.x, &mut self.strips.normed);
        }
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
        Middle { x, routed, shared, streams: self.streams.weights.clone(), latent }
    }

    /// Restores the inputs of the experts from `middle`.
    pub(crate) fn resume(&mut self, middle: Middle) {
        grown(&mut self.x, middle.x.len()).copy_from_slice(&middle.x);
        self.experts.shared[..middle.shared.len()].copy_from_slice(&middle.shared);
        self.streams.weights[..middle.streams.len()].copy_from_slice(&middle.streams);
        self.experts.latent[..middle.latent.len()].copy_from_slice(&middle.latent);
        self.routed = middle.routed;
        self.resumed = true;
    }

    /// A copy of the sum that is added at the end of the next layer, for a batch with `numbers`
    /// elements in its hidden state.
    pub(crate) fn later(&self, numbers: usize) -> Vec<f32> {
        self.experts.later[..numbers.min(self.experts.later.len())].to_vec()
    }

    /// Restores it.
    pub(crate) fn restore_later(&mut self, later: &[f32]) {
        self.experts.later[..later.len()].copy_from_slice(later);
    }

    /// A copy of the per-layer inputs of the batch; empty after the last layer.
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

    /// The copied selections of layers with blocks or entries.
    pub(crate) fn noted(&mut self) -> &mut Option<Vec<u32>> {
        &mut self.attention.noted
    }

    /// A copy of the selected positions, for a batch of `rows` tokens.
    pub(crate) fn selected(&self, rows: usize) -> Option<Selection> {
        self.selection().map(|selection| selection.first(rows))
    }

    /// Restores the positions selected for the batch. With `None`, no layer has selected any.
    pub(crate) fn reselect(&mut self, selection: Option<Selection>) {
        match selection {
            Some(copy) => self.attention.index.selection.restore(copy),
            None => self.attention.index.selection.clear(),
        }
    }

    /// The first `numbers` elements of the shared expert's output.
    pub(crate) fn shared(&self, numbers: usize) -> &[f32] {
        &self.experts.shared[..numbers]
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
            later,
            factor: _,
        } = &self.experts;
        let Routed { choices, weights, identity, shared: of_shared, distinct, .. } = &self.routed;
        let DistanceWork { rows: distances, bias } = &self.attention.distances;
        let TokenWork { sinks: of_tokens, taps: [key_taps, value_taps] } =
            &self.attention.of_tokens;
        let floats = [
            &self.x,
            &self.strips.normed,
            &self.branch,
            &self.router.scores,
            &self.logits,
            q,
            k,
            v,
            mixed,
            outputs,
        ];
        let floats = floats.into_iter().chain([shared, shared_gate, weights]);
        let floats = floats.chain([&self.router.ranks, sinks, absorbed, attended, identity, later]);
        let floats = floats.chain([of_shared, distances, bias, of_tokens, key_taps, value_taps]);
        let floats = floats.chain([latent, gated, decay, beta, of_heads, &self.streams.weights]);
        let floats = floats.chain([&self.mlp.gate, &self.mlp.up, &self.mlp.bias]);
        let floats = floats
            .chain(tables.each.iter().flatten())
            .chain([&tables.learned])
            .map(|v| v.capacity() * size_of::<f32>());
        let packed = self.mlp.packed.iter().chain(inputs).chain([&self.input, packed]).chain(sums);
        let packed = packed.chain([of_latents]).chain(&self.attention.inputs);
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
            + self.streams.gates.bytes()
            + self.messages.bytes()
            + self.rows.capacity() * size_of::<f32>();
        bytes as u64
    }
}

/// The first `len` elements of `buffer`, which grows if it is shorter. Their values are
/// unspecified.
pub(crate) fn grown(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        // The old buffer is freed before the larger one is allocated. Its length is exact, because
        // the budget relies on it.
        *buffer = Vec::new();
        *buffer = vec![0.0; len];
    }
    &mut buffer[..len]
}
