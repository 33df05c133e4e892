//! An upper bound on the working memory of a pass, computed before any is allocated.

use sws_kernels::functional::AttentionScratch;
use sws_kernels::{Input, ThreadScratch, Tier};

use super::experts::{ROWS_TOGETHER, TOGETHER};
use crate::spec::{Ffn, Mixer, MlpSpec, ModelSpec};

/// The largest pass that a [`State`](crate::State) will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSize {
    /// Tokens that go through the layers together, over all sequences.
    pub tokens: usize,
    /// Rows of logits: 1 for each sequence, or all tokens.
    pub logits: usize,
    /// Positions of a sequence.
    pub positions: usize,
    /// Number of computing threads.
    pub threads: usize,
}

impl ModelSpec {
    /// An upper bound of [`State::work_bytes`](crate::State::work_bytes) with passes of up to this
    /// size. Caches of keys and values are not included.
    pub fn work_bytes(&self, tier: Tier, size: PassSize) -> u64 {
        let PassSize { tokens, logits, positions, threads } = size;
        let (hidden, float) = (self.hidden, size_of::<f32>());
        let attention = || {
            self.layers.iter().map(|layer| match &layer.mixer {
                Mixer::Attention(spec) => spec,
            })
        };
        let q = attention().map(|spec| spec.q_width()).max().unwrap_or(0);
        let kv = attention().map(|spec| spec.kv_width()).max().unwrap_or(0);
        let head = attention().map(|spec| spec.head_dim).max().unwrap_or(0);
        let pairs: usize = self.ropes.iter().map(|rope| rope.inv_freq.len()).sum();

        // Every buffer has the size of the largest layer that uses it.
        let (mut mlps, mut experts) = (Mlps::default(), Experts::default());
        for layer in &self.layers {
            match layer.ffn {
                Ffn::Dense(mlp) => mlps.add(mlp, hidden),
                Ffn::Moe(moe) => {
                    mlps.add(moe.expert, hidden);
                    experts.mlps.add(moe.expert, hidden);
                    experts.count = experts.count.max(moe.experts);
                    experts.top_k = experts.top_k.max(moe.top_k);
                    if let Some(shared) = moe.shared {
                        mlps.add(shared.mlp, hidden);
                        experts.shared = 1;
                    }
                }
            }
        }

        let rows = tokens.max(logits);
        let normed = rows * hidden * float + Input::bytes_for(rows, hidden);
        let stream = 2 * tokens * hidden * float;
        let attention = tokens * (2 * q + 2 * kv + 2 * pairs) * float
            + Input::bytes_for(tokens, q)
            + threads * AttentionScratch::bytes(head, positions.min(self.context));
        let mlp = experts.mlps.numbers(ROWS_TOGETHER.min(tokens * experts.top_k));
        let mlp = mlp.max(mlps.numbers(tokens)) * float + Input::bytes_for(tokens, mlps.width);
        let per_thread = threads * ThreadScratch::bytes_for(tier, tokens);
        let bytes = normed + stream + attention + mlp + per_thread + logits * self.vocab * float;
        (bytes + experts.bytes(tokens, hidden)) as u64
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
}

/// The maximum of each value over all layers with experts.
#[derive(Default)]
struct Experts {
    mlps: Mlps,
    count: usize,
    top_k: usize,
    /// 1 if any layer has a shared expert, otherwise 0.
    shared: usize,
}

impl Experts {
    /// Additional bytes for layers with experts.
    fn bytes(&self, tokens: usize, hidden: usize) -> usize {
        if self.count == 0 {
            return 0;
        }
        let float = size_of::<f32>();
        let chosen = tokens * self.top_k;
        let outputs = (chosen + self.shared * tokens) * hidden * float;
        // An expert that all tokens chose uses the input as it is.
        let packed = Input::bytes_for(tokens - 1, hidden);
        // Of several experts computed together, those after the first.
        let others: usize = (1..TOGETHER.min(self.count).min(chosen))
            .map(|place| {
                let rows = tokens.min(ROWS_TOGETHER - place);
                Input::bytes_for(rows.min(tokens - 1), hidden)
                    + Input::bytes_for(rows, self.mlps.width)
            })
            .sum();
        // Router and choices. Vectors grown by `push` may have twice the capacity they need.
        let (number, place) = (size_of::<u32>(), size_of::<usize>());
        let choices = tokens * (self.count + self.shared) * float
            + 2 * chosen * (2 * number + float + 2 * place)
            + 2 * tokens * place
            + 2 * (self.count + 4) * (place + 1);
        outputs + packed + others + choices
    }
}
