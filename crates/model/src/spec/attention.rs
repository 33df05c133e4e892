//! Attention with grouped heads.

use sws_kernels::functional::Activation;

use super::Mixer;

/// Attention with grouped heads.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple of this.
    pub kv_heads: usize,
    /// Elements of a query and a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// True if queries, keys and values have biases.
    pub qkv_bias: bool,
    /// True if the output has a bias.
    pub output_bias: bool,
    /// The norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Index into [`ModelSpec::ropes`](crate::ModelSpec::ropes).
    pub rope: Option<usize>,
    /// Number of most recent keys that a query sees, itself included; None means all.
    pub window: Option<usize>,
    /// The factor applied to products of queries and keys.
    pub scale: f32,
    /// True if each head has a sink: one more logit of the softmax, without a value.
    pub sinks: bool,
    /// The gates by which outputs are multiplied.
    pub gate: Option<AttentionGate>,
    /// The keys and values that queries see.
    pub key_values: KeyValues,
    /// The specials of one family or two.
    pub extras: AttentionExtras,
}

/// Specials of attention, each of which one family has, or two; none by default. They are applied in
/// the order in which they are declared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionExtras {
    /// True if one matrix computes all queries, then all keys, then all values (Ling).
    pub fused: bool,
    /// True if values are the products of keys, before their norms (Gemma 4).
    pub values_are_keys: bool,
    /// Values that the convolutions of keys and of values see, which are added to these before their
    /// norms; None without (Inkling).
    pub conv: Option<usize>,
    /// True if the values of each head are normed, without weights (Gemma 4).
    pub value_norm: bool,
    /// The factor applied to values (MiMo).
    pub value_scale: Option<f32>,
    /// True if the matrices of queries and keys, and their biases, have the elements that a rotary
    /// embedding turns together as neighbours. Their products are brought into halves (GGUF).
    pub paired_rows: bool,
    /// Queries, keys and values are clamped to ± this (OLMoE).
    pub clip: Option<f32>,
    /// The growth of queries (Llama 4, Mistral, Inkling).
    pub temperature: Option<Temperature>,
    /// True if windows begin at multiples of their size (Llama 4).
    pub aligned: bool,
    /// The selection of the positions that a query sees; None means all (MiniMax M3, Qwen4).
    pub blocks: Option<BlocksSpec>,
    /// Numbers added to scores by the distance between a query and a key (Inkling).
    pub distances: Option<DistanceSpec>,
    /// Scores become cap · tanh(score / cap) (Gemma 2).
    pub soft_cap: Option<f32>,
}

/// Numbers added to scores: for each query and distance, the product of a few numbers, which a matrix
/// makes of the normed state for each head, and a column of another matrix. They grow as queries do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistanceSpec {
    /// Numbers for a head.
    pub rank: usize,
    /// Distances, from 0. Keys further away get nothing.
    pub extent: usize,
}

/// The keys and values that the queries of a layer see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValues {
    /// Its own.
    Own,
    /// Its own, which later layers see, too. Those begin after a whole batch was stored, so that all
    /// positions are kept, whatever the window.
    Lent,
    /// Those of this earlier layer, with heads of the same shape. It has no matrices for them.
    Of(usize),
}

/// Blocks of positions that queries see: the best by the scores of an indexer, larger scores first,
/// then lower blocks. Its heads select each for as many query heads in a row. Blocks begin at
/// multiples of their size.
///
/// The score of a block is the largest product of the head's query and a key of the positions that
/// the query sees. An indexer has one key per position. Its queries and keys are normed and rotated
/// as those of the layer are.
///
/// Or a whole block has one key: the mean of those of its positions, then normed, and rotated as
/// its first position is. Its score is the sum of the products above zero with the queries of all
/// heads, which select together. A query sees the best blocks, and the positions that are in no
/// whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksSpec {
    /// Heads of the indexer, a divisor of those of the layer.
    pub heads: usize,
    /// Elements of its queries and keys.
    pub dim: usize,
    /// Positions of a block.
    pub size: usize,
    /// The largest number of blocks that a query sees.
    pub most: usize,
    /// Blocks, up to that of the query, that it sees whatever their scores.
    pub last: usize,
    /// True if whole blocks have one key, and one matrix computes queries and keys of positions.
    pub pooled: bool,
}

/// The origin of the gates of an attention's outputs, and their function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttentionGate {
    /// The matrix of queries: for each head the rows of its query, then as many for its gate, whose
    /// sigmoid counts.
    WithQueries,
    /// A matrix of its own.
    Own {
        /// True if it has a row for each head, false if one for each element of a value.
        per_head: bool,
        /// The function of a gate and an output.
        activation: Activation,
    },
}

/// Queries that grow with their position: by 1 + scale · ln(1 + ⌊(first + position) / length⌋), or by
/// 1 + scale · ln(max((first + position) / length, 1)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// The scale of the logarithm.
    pub scale: f64,
    /// Positions until the next step.
    pub length: f64,
    /// The number of the first position.
    pub first: usize,
    /// True if they grow without steps.
    pub smooth: bool,
}

/// Norms of queries and keys, of the same kind as the layer's norm. They come before the rotary
/// embedding where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm.
    None,
    /// Each head separately, all with the same weights.
    PerHead,
    /// Each head separately, after the rotary embedding.
    PerRotatedHead,
    /// The same without weights.
    Unweighted,
    /// All heads of a position together.
    FullWidth,
}

impl From<AttentionSpec> for Mixer {
    fn from(spec: AttentionSpec) -> Mixer {
        Mixer::Attention(spec)
    }
}

impl BlocksSpec {
    /// The largest number of positions that a query sees.
    pub fn positions(&self) -> usize {
        self.most * self.size + if self.pooled { self.size - 1 } else { 0 }
    }

    /// Lists of positions for a query: one for each head of the indexer, or one for all.
    pub fn lists(&self) -> usize {
        if self.pooled { 1 } else { self.heads }
    }

    /// Keys of the indexer for so many positions.
    pub(crate) fn keys(&self, positions: usize) -> usize {
        if self.pooled { (positions / self.size).max(1) } else { positions }
    }

    /// Elements of all queries of a position.
    pub fn width(&self) -> usize {
        self.heads * self.dim
    }
}

impl AttentionSpec {
    /// Rows of the matrix of queries.
    pub(crate) fn query_rows(&self) -> usize {
        match self.gate {
            None | Some(AttentionGate::Own { .. }) => self.q_width(),
            Some(AttentionGate::WithQueries) => 2 * self.q_width(),
        }
    }

    /// Rows of the matrix of gates, where it is one of its own.
    pub(crate) fn gate_rows(&self) -> Option<usize> {
        match self.gate {
            None | Some(AttentionGate::WithQueries) => None,
            Some(AttentionGate::Own { per_head: true, .. }) => Some(self.heads),
            Some(AttentionGate::Own { per_head: false, .. }) => Some(self.output_width()),
        }
    }

    /// Elements of a position in the buffer for gates: queries with their gates, or gates as they
    /// are multiplied, followed by the product of their matrix where that has one for each head.
    pub(crate) fn gate_room(&self) -> usize {
        match self.gate {
            None => 0,
            Some(AttentionGate::WithQueries) => self.query_rows(),
            Some(AttentionGate::Own { per_head, .. }) => {
                self.output_width() + if per_head { self.heads } else { 0 }
            }
        }
    }

    /// Rows of the matrix of queries, keys and values, where it is one; otherwise 0.
    pub(crate) fn fused_rows(&self) -> usize {
        if self.extras.fused {
            self.query_rows() + self.key_width() + self.value_width()
        } else {
            0
        }
    }

    /// Elements of all queries of a position.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// True if it keeps keys and values of its last positions only.
    pub(crate) fn keeps_window(&self) -> bool {
        self.window.is_some() && self.key_values == KeyValues::Own
    }

    /// True if it computes keys and values.
    pub(crate) fn has_keys(&self) -> bool {
        !matches!(self.key_values, KeyValues::Of(_))
    }

    /// True if it has a matrix of values.
    pub(crate) fn has_values(&self) -> bool {
        self.has_keys() && !self.extras.values_are_keys
    }

    /// The layer whose keys and values a layer sees.
    pub(crate) fn keys_of(&self, layer: usize) -> usize {
        match self.key_values {
            KeyValues::Own | KeyValues::Lent => layer,
            KeyValues::Of(earlier) => earlier,
        }
    }

    /// Elements of a key and a value that it caches, of all heads of a position: none if it sees those
    /// of another layer.
    pub(crate) fn cached_widths(&self) -> [usize; 2] {
        if self.has_keys() { [self.key_width(), self.value_width()] } else { [0; 2] }
    }

    /// Elements of all keys of a position.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of all values of a position.
    pub fn value_width(&self) -> usize {
        self.kv_heads * self.value_dim
    }

    /// Elements of the outputs of all heads of a position.
    pub fn output_width(&self) -> usize {
        self.heads * self.value_dim
    }
}
