//! An upper bound on the working memory of a pass, computed before any is allocated.

use sws_kernels::functional::AttentionScratch;
use sws_kernels::{PackedInput, Packings, ThreadScratch, Tier};

use super::attention::DISTANCES;
use super::experts::{ROWS_TOGETHER, TOGETHER};
use super::latent::{rows_together, tokens_together};
use super::linear::MAX;
use super::rows;
use super::strips::STRIP;
use crate::layer_state::KvState;
use crate::spec::{
    AttentionSpec, CompressedSpec, DeltaInputs, DeltaSpec, Ffn, LatentSpec, Mixer, MlpSpec,
    ModelSpec, MoeSpec, Router, StateSpaceSpec,
};
use crate::workspace::{BlockWork, CompressedWork, GateWork, IndexWork, MessageWork};

/// The largest pass that a [`ForwardState`](crate::ForwardState) will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSize {
    /// Tokens that go through the layers together, over all sequences.
    pub tokens: usize,
    /// Rows of logits: 1 for each sequence, or all tokens.
    pub logits: usize,
    /// Maximum number of positions of a sequence.
    pub positions: usize,
    /// Number of computing threads.
    pub threads: usize,
    /// Tokens that the parts of a layer take at a time
    /// ([`ForwardPass::with_strips`](crate::ForwardPass::with_strips)).
    pub strip: usize,
    /// Layouts of packed activations that the model's matrices need.
    pub packings: Packings,
}

impl PassSize {
    /// Default number of tokens that the parts of a layer take at a time.
    pub const STRIP: usize = STRIP;
}

impl ModelSpec {
    /// An upper bound of [`ForwardState::work_bytes`](crate::ForwardState::work_bytes) with passes of up to this
    /// size. KV caches are not included.
    ///
    /// Passes of more than a strip are assumed to have each matrix in memory as a whole: one that
    /// arrives in blocks is multiplied with all tokens at once, which takes more.
    pub fn work_bytes(&self, tier: Tier, size: PassSize) -> u64 {
        let PassSize { tokens, logits, positions, threads, strip, packings } = size;
        // Tokens of one product: in mixers, and in blocks and experts.
        let mixed = self.mixed_together(strip, tokens);
        let few = tokens.min(strip.max(ROWS_TOGETHER));
        let hidden = self.hidden;
        let float = size_of::<f32>();
        let pairs: usize = self.ropes.iter().map(|rope| rope.inv_freq.len()).sum();
        let positions = positions.min(self.context);
        let Largest { mixers, mlps, experts } =
            Largest::of(self, packings, (mixed, few), positions);

        let mut inputs = Mlps::default();
        if let Some(spec) = self.layer_inputs {
            inputs.add(MlpSpec::silu(spec.width), hidden);
        }

        let rows = mixed.max(few).max(logits);
        let width = self.state_width();
        // All streams of a token are normed together.
        let together = if self.streams.is_some() { width } else { hidden };
        let others = if mixed < tokens { tokens * hidden } else { 0 };
        let normed = ((rows * hidden).max(mixed * together) + others) * float
            + PackedInput::bytes_for(packings, rows, hidden)
                .max(PackedInput::bytes_for(packings, mixed, together));
        let of_streams = self.streams.map_or(0, |streams| streams.weights());
        let gates =
            self.widest_gates().map_or(0, |rank| GateWork::bytes_for(packings, mixed, width, rank));
        let stream = tokens * (hidden + width + of_streams + self.inputs_width()) * float
            + gates
            + rows::bytes_for(self, tokens)
            + self.looped.map_or(0, |of| MessageWork::bytes_for(packings, (self, of), mixed));
        let compressed = self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Compressed(spec) => Some(spec),
            _ => None,
        });
        let attention = mixers.bytes(packings, mixed)
            + CompressedWork::bytes_for(packings, compressed, mixed, positions)
            + (mixed * 2 + usize::from(self.learned_angles)) * pairs * float
            + threads * AttentionScratch::bytes(mixers.value_dim, mixers.seen);
        let mlp = experts.mlps.numbers(ROWS_TOGETHER.min(tokens * experts.top_k));
        let mlp = mlp.max(mlps.numbers(few)).max(inputs.numbers(tokens)) * float
            + mlps.packed(packings, few).max(mlps.parts).max(inputs.packed(packings, tokens));
        // Activations of weighted shared experts are packed separately.
        let per_thread =
            threads * ThreadScratch::bytes_for(tier, packings, rows * experts.weighed.max(1));
        let bytes = normed + stream + attention + mlp + per_thread + logits * self.vocab * float;
        (bytes + experts.bytes(packings, tokens, few, hidden)) as u64
    }
}

/// Every buffer has the size of the largest layer that uses it.
#[derive(Default)]
struct Largest {
    mixers: Mixers,
    mlps: Mlps,
    experts: ExpertSizes,
}

impl Largest {
    /// The largest buffers of all layers, for this many tokens per product in mixers and in
    /// experts.
    fn of(
        model: &ModelSpec,
        packings: Packings,
        (mixed, few): (usize, usize),
        positions: usize,
    ) -> Largest {
        let mut largest = Largest::default();
        let hidden = model.hidden;
        // In later rounds, keys and values have inputs of their own.
        largest.mixers.inputs = model.looped.map_or(0, |_| hidden);
        for layer in &model.layers {
            if let Some(ngrams) = &layer.ngrams {
                let all = model.state_width();
                let count = all / hidden;
                largest.mixers.add([all, all, hidden, all, ngrams.width(), 0]);
                largest.mixers.gates = largest.mixers.gates.max(count);
            }
            largest.mixers.add_mixer(&layer.mixer, hidden, mixed, positions);
            match layer.ffn {
                Ffn::Dense(mlp) => largest.mlps.add(mlp, hidden),
                Ffn::Moe(moe) => largest.add_experts(&moe, hidden, packings, few),
                Ffn::None => {}
            }
        }
        largest
    }

    fn add_experts(&mut self, moe: &MoeSpec, hidden: usize, packings: Packings, few: usize) {
        let Largest { mlps, experts, .. } = self;
        mlps.add(moe.expert, hidden);
        experts.mlps.add(moe.expert, hidden);
        experts.count = experts.count.max(moe.scored());
        experts.later = experts.later.max(usize::from(moe.added_later));
        experts.identity = experts.identity.max(usize::from(moe.identities > 0));
        experts.ranked = experts.ranked.max(ranked(moe));
        experts.top_k = experts.top_k.max(moe.top_k);
        experts.latent = experts.latent.max(moe.latent.unwrap_or(0));
        if let Some(shared) = moe.shared {
            mlps.add(shared.mlp, hidden);
            let parts = moe.shared_scored;
            if parts > 0 {
                mlps.gates = mlps.gates.max(parts * parts * hidden);
                let width = shared.mlp.width / parts;
                let rows = PackedInput::bytes_for(packings, few * parts, width);
                mlps.parts = mlps.parts.max(rows);
            }
            experts.weighed = experts.weighed.max(parts);
            experts.shared = 1;
        }
    }
}

/// Number of experts whose ranks differ from their scores.
fn ranked(moe: &MoeSpec) -> usize {
    match moe.router {
        Router::Softmax { .. } | Router::SoftmaxOfChosen | Router::Near { .. } => 0,
        Router::Ranked(_) | Router::Table(_) | Router::SoftmaxScaled => moe.scored(),
    }
}

/// The maximum of each value over some mixers.
#[derive(Default)]
struct Mixers {
    /// Elements per token in each buffer.
    q: usize,
    k: usize,
    v: usize,
    mixed: usize,
    packed: usize,
    gated: usize,
    /// Decays and betas of a delta net or a state space.
    heads_of_delta: usize,
    /// Gates of the values of n-grams, in the buffer of betas.
    gates: usize,
    outputs: usize,
    /// Elements of a value, for the scratch of attention.
    value_dim: usize,
    /// The most positions among which any query sees some.
    seen: usize,
    /// Heads with latents that are computed together: elements, largest latent, and number of
    /// heads.
    absorbed: usize,
    rank: usize,
    heads: usize,
    /// Bytes of indexers.
    index: usize,
    /// Factors of distance biases per token, and the biases of all distances.
    distances: usize,
    bias: usize,
    /// Sinks per token, and weights of a convolution of keys or of values.
    token_sinks: usize,
    token_taps: usize,
    /// Elements of the inputs of keys and values, where these have inputs of their own.
    inputs: usize,
}

impl Mixers {
    /// Counts a mixer, for this many tokens per product.
    fn add_mixer(&mut self, mixer: &Mixer, hidden: usize, tokens: usize, positions: usize) {
        match mixer {
            Mixer::Attention(spec) => {
                self.add_attention(spec, positions);
                let inputs = if spec.extras.inputs_apart { hidden } else { 0 };
                self.inputs = self.inputs.max(inputs);
                let blocks = BlockWork::bytes_for(spec, tokens, positions);
                self.index = self.index.max(blocks);
            }
            Mixer::Latent(spec) => {
                self.add_latent(spec, hidden, tokens, positions);
                let index = IndexWork::bytes_for(spec, tokens, positions);
                self.index = self.index.max(index);
            }
            Mixer::Compressed(spec) => self.add_compressed(spec, positions),
            Mixer::Delta(spec) => self.add_delta(spec),
            Mixer::Conv(_) => self.add([3 * hidden, hidden, 0, hidden, hidden, 0]),
            Mixer::StateSpace(spec) => self.add_state_space(spec),
            Mixer::None => {}
        }
    }

    fn add_attention(&mut self, spec: &AttentionSpec, positions: usize) {
        let q = spec.q_width();
        let outputs = spec.output_width();
        let keys = spec.key_width();
        let values = spec.value_width();
        let mixed = q.max(outputs).max(spec.fused_rows());
        self.add([q, keys, values, mixed, outputs, spec.value_dim]);
        self.seen = KvState::kept(spec, positions).max(self.seen);
        self.gated = self.gated.max(spec.gate_room());
        if let Some(it) = spec.extras.distances {
            self.distances = self.distances.max(spec.heads * it.rank);
            self.bias = self.bias.max(spec.heads * it.extent);
        }
        self.token_sinks =
            self.token_sinks.max(if spec.extras.token_sinks { spec.heads } else { 0 });
        self.token_taps = self.token_taps.max(spec.token_taps());
    }

    fn add_delta(&mut self, spec: &DeltaSpec) {
        let channels = spec.channels();
        let values = spec.value_width();
        let mixed = values;
        let outputs = spec.recurrence().output_len(1);
        let (mixed, outputs, packed) = match spec.inputs {
            DeltaInputs::Separate | DeltaInputs::Tiled => (mixed, outputs, values),
            DeltaInputs::Pairs => (mixed, outputs.max(2 * spec.heads), values),
            DeltaInputs::ByKeyHead => (channels + values, outputs.max(2 * spec.heads), values),
            DeltaInputs::Apart => (mixed, outputs, values),
            DeltaInputs::PerElement { rank, .. } => {
                (mixed.max(2 * rank), outputs, values.max(rank))
            }
        };
        self.add([channels, channels, values, mixed, packed, 0]);
        self.heads_of_delta = self.heads_of_delta.max(spec.heads + spec.decays());
        self.outputs = self.outputs.max(outputs);
    }

    fn add_state_space(&mut self, spec: &StateSpaceSpec) {
        let width = spec.width();
        let channels = spec.channels();
        self.add([spec.rows(), channels, channels, width, width, 0]);
        self.heads_of_delta = self.heads_of_delta.max(2 * spec.heads);
        self.outputs = self.outputs.max(spec.recurrence().output_len(1));
    }

    fn add_latent(&mut self, spec: &LatentSpec, hidden: usize, tokens: usize, positions: usize) {
        let low = spec.query_rank.unwrap_or(0);
        let values = spec.value_width();
        let (_, up) = spec.query_up(low);
        let latents = low + if up > low { up } else { 0 };
        // A copy of the hidden state, normed once more.
        let of_hidden = spec.indexer().is_some_and(|indexer| indexer.of_hidden);
        let copy = if of_hidden { hidden } else { 0 };
        let latents = latents.max(copy);
        let packed = low.max(values).max(copy);
        self.add([spec.query_width(), spec.width(), latents, values, packed, spec.rank]);
        self.seen = positions.max(self.seen);
        let rows = rows_together(tokens, spec.heads);
        let queries = if spec.split { tokens * spec.heads } else { rows };
        self.gated = self.gated.max(spec.gate_room());
        let sinks = if spec.sinks { spec.heads } else { 0 };
        self.absorbed = self.absorbed.max(queries * spec.width() + rows * spec.rank + sinks);
        let rank = if spec.split { spec.rank.max(spec.plain) } else { spec.rank };
        self.rank = self.rank.max(if up > low { rank.max(up) } else { rank });
        self.heads = self.heads.max(spec.heads);
    }

    fn add_compressed(&mut self, spec: &CompressedSpec, positions: usize) {
        let q = spec.query_width();
        let low = spec.query_rank.max(spec.group_width());
        self.add([q, spec.head_dim, low, q, low, spec.head_dim]);
        self.seen = spec.most_seen(positions).max(self.seen);
    }

    fn add(&mut self, widths: [usize; 6]) {
        let Mixers { q, k, v, mixed, packed, value_dim, .. } = self;
        for (most, width) in [q, k, v, mixed, packed, value_dim].into_iter().zip(widths) {
            *most = width.max(*most);
        }
    }

    /// Bytes of all buffers.
    fn bytes(&self, packings: Packings, tokens: usize) -> usize {
        let Mixers { q, k, v, mixed, packed, absorbed, rank, heads, .. } = *self;
        let others = self.gated + self.heads_of_delta + self.gates + self.outputs;
        let sums = (0..heads.min(MAX)).map(|head| tokens_together(head, tokens));
        let sums: usize = sums.map(|tokens| PackedInput::bytes_for(packings, tokens, rank)).sum();
        let others = others + self.distances + self.token_sinks + 2 * self.token_taps;
        let inputs = match self.inputs {
            0 => 0,
            width => 2 * PackedInput::bytes_for(packings, tokens, width),
        };
        let absorbed = absorbed + DISTANCES.min(tokens) * self.bias;
        (tokens * (q + k + v + mixed + others) + absorbed) * size_of::<f32>()
            + PackedInput::bytes_for(packings, tokens, packed)
            + inputs
            + sums
            + self.index
    }
}

/// The maximum of each value over some gated MLPs.
#[derive(Default)]
struct Mlps {
    width: usize,
    /// Rows of the first matrix: gates, or gates and ups.
    gates: usize,
    /// Elements of a bias that is copied.
    bias: usize,
    /// Bytes of packed activations of weighted shared experts.
    parts: usize,
}

impl Mlps {
    fn add(&mut self, mlp: MlpSpec, hidden: usize) {
        self.width = self.width.max(mlp.width);
        self.gates = self.gates.max(mlp.gate_rows());
        self.bias = self.bias.max(if mlp.bias { mlp.gate_rows().max(hidden) } else { 0 });
    }

    /// Elements of all buffers for this many rows.
    fn numbers(&self, rows: usize) -> usize {
        rows * (self.gates + self.width) + self.bias
    }

    /// Bytes of packed activations.
    fn packed(&self, packings: Packings, rows: usize) -> usize {
        PackedInput::bytes_for(packings, rows, self.width)
    }
}

/// The maximum of each value over all layers with experts.
#[derive(Default)]
struct ExpertSizes {
    mlps: Mlps,
    count: usize,
    /// Number of experts whose ranks differ from their scores.
    ranked: usize,
    top_k: usize,
    /// 1 if any layer adds its experts later, otherwise 0.
    later: usize,
    /// 1 if any layer has identity choices, otherwise 0.
    identity: usize,
    /// Elements of the projection that experts read.
    latent: usize,
    /// 1 if any layer has a shared expert, otherwise 0.
    shared: usize,
    /// Number of weighted shared experts.
    weighed: usize,
}

impl ExpertSizes {
    /// Additional bytes of layers with experts, which take `few` rows at a time.
    fn bytes(&self, packings: Packings, tokens: usize, few: usize, hidden: usize) -> usize {
        if self.count == 0 {
            return 0;
        }
        let float = size_of::<f32>();
        let chosen = tokens * self.top_k;
        let outputs = (chosen + (self.shared + self.later) * tokens) * hidden * float;
        // An expert that all tokens chose uses the input directly.
        let most = if few < tokens { few } else { tokens - 1 };
        let packed = PackedInput::bytes_for(packings, most, hidden);
        // Buffers of several experts computed together, except the first.
        let mut others = 0;
        for place in 1..TOGETHER.min(self.count).min(chosen) {
            let rows = tokens.min(ROWS_TOGETHER - place);
            others += PackedInput::bytes_for(packings, rows.min(most), hidden)
                + PackedInput::bytes_for(packings, rows, self.mlps.width);
        }
        // Router and choices. Vectors grown by `push` may have twice the capacity they need.
        let number = size_of::<u32>();
        let place = size_of::<usize>();
        let scores = self.count + self.ranked + self.shared + self.weighed + self.identity;
        let choices = tokens * scores * float
            + 2 * chosen * (2 * number + float + 2 * place)
            + 2 * tokens * place
            + 2 * (self.count + 4) * (place + 1);
        let latents = match self.latent {
            0 => 0,
            latent => tokens * latent * float + PackedInput::bytes_for(packings, few, latent),
        };
        outputs + packed + others + choices + latents
    }
}
