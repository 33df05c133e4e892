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
    /// Variants that only one or two families have.
    pub extras: AttentionExtras,
}

/// Variants of attention that only one or two families have; none by default. They are applied in
/// the order of declaration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionExtras {
    /// True if one matrix computes all queries, then all keys, then all values (Ling).
    pub fused: bool,
    /// True if values are the products of keys, before their norms (Gemma 4).
    pub values_are_keys: bool,
    /// True if keys and values have inputs of their own (Inkling 2).
    pub inputs_apart: bool,
    /// The convolutions of keys and of values, before the norms; `None` without convolutions
    /// (Inkling).
    pub conv: Option<AddedConv>,
    /// True if the values of each head are normed, without weights (Gemma 4).
    pub value_norm: bool,
    /// The factor applied to values (MiMo).
    pub value_scale: Option<f32>,
    /// True if rotated pairs are neighbours in the matrices and biases of queries and keys. Their
    /// products are rearranged into halves (GGUF).
    pub paired_rows: bool,
    /// Bound to which queries, keys and values are clamped: ± this (OLMoE).
    pub clip: Option<f32>,
    /// The growth of queries (Llama 4, Mistral, Inkling).
    pub temperature: Option<Temperature>,
    /// True if windows begin at multiples of their size (Llama 4).
    pub aligned: bool,
    /// The selection of the positions that a query sees; None means all (MiniMax M3, Qwen4).
    pub blocks: Option<BlocksSpec>,
    /// Numbers added to scores by the distance between a query and a key (Inkling).
    pub distances: Option<DistanceSpec>,
    /// True if a matrix computes the sinks of each token (Inkling 2).
    pub token_sinks: bool,
    /// True if the outputs of each head are normed, without weights, before their gates (Muse Spark).
    pub output_norm: bool,
    /// Cap of scores, which become cap · tanh(score / cap) (Gemma 2).
    pub soft_cap: Option<f32>,
}

/// Distance biases, which are added to scores. The bias of a query and a distance is the product of
/// a few factors, which a matrix computes from the normed state for each head, and a column of
/// another matrix. Biases grow as queries do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistanceSpec {
    /// Number of factors per head.
    pub rank: usize,
    /// Number of distances, from 0. Keys further away have no bias.
    pub extent: usize,
}

/// A convolution over the last values, whose result is added to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedConv {
    /// Number of values that it sees.
    pub taps: usize,
    /// True if the sum is divided by the root of the number of its terms: one and `taps`, or twice as
    /// many with weights of tokens.
    pub divided: bool,
    /// True if a matrix computes further weights for each token and head, which are added to those of
    /// elements. These then lie tap by tap, from the last value back.
    pub of_tokens: bool,
}

/// The keys and values that the queries of a layer see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValues {
    /// The layer's own.
    Own,
    /// The layer's own, which later layers use, too. These layers run after a whole batch was
    /// stored, so all positions are kept, whatever the window.
    Lent,
    /// Those of this earlier layer, with heads of the same shape. The layer has no matrix that computes them.
    Of(usize),
}

/// Blocks of positions that queries see: the best by the scores of an indexer, larger scores first,
/// then lower blocks. Each head of the indexer selects for equally many consecutive query heads.
/// Blocks begin at multiples of their size.
///
/// The score of a block is the largest product of the head's query and a key among the positions
/// that the query sees. An indexer has one key per position. Its queries and keys are normed and
/// rotated like those of the layer.
///
/// In another variant a whole block has one key: the mean of the keys of its positions, then
/// normed, and rotated like its first position. Its score is the sum of the positive products with
/// the queries of all heads, which select together. A query sees the best blocks, and the positions
/// after the last whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksSpec {
    /// Heads of the indexer, a divisor of the layer's heads.
    pub heads: usize,
    /// Elements of its queries and keys.
    pub dim: usize,
    /// Positions of a block.
    pub size: usize,
    /// The largest number of blocks that a query sees.
    pub most: usize,
    /// Number of last blocks, including the query's own, that it sees whatever their scores.
    pub last: usize,
    /// True if whole blocks have one key.
    pub pooled: bool,
    /// True if one matrix computes queries and keys of positions.
    pub mixed: bool,
}

/// The origin of the gates of an attention's outputs, and their function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttentionGate {
    /// The matrix of queries. For each head it has the rows of the query, followed by as many for
    /// the gate, whose sigmoid is used.
    WithQueries,
    /// A matrix of its own.
    Own {
        /// True if it has a row for each head, false if one for each element of a value.
        per_head: bool,
        /// The function of a gate and an output.
        activation: Activation,
    },
}

/// Growth of queries with their position: they are multiplied by 1 + scale · ln(1 + ⌊(first +
/// position) / length⌋), or by 1 + scale · ln(max((first + position) / length, 1)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// The scale of the logarithm.
    pub scale: f64,
    /// Positions until the next step.
    pub length: f64,
    /// The number that the first position counts as.
    pub first: usize,
    /// True if queries grow without steps.
    pub smooth: bool,
}

/// Norms of queries and keys, of the same kind as the layer's norm. They come before the rotary
/// embedding unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    /// No norm.
    None,
    /// Each head separately, all with the same weights.
    PerHead,
    /// Each head separately, after the rotary embedding.
    PerRotatedHead,
    /// Each head separately, without weights.
    Unweighted,
    /// All heads of a position together.
    FullWidth,
    /// No norm: each head is scaled down to a length, if it is longer. Queries and the factors of
    /// distance biases are first multiplied by weights of each head.
    Limited {
        /// The length of queries and keys.
        length: f32,
        /// That of the factors of distance biases.
        of_distances: f32,
    },
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

    /// Number of lists of positions for a query: one for each head of the indexer, or one for all
    /// heads.
    pub fn lists(&self) -> usize {
        if self.pooled { 1 } else { self.heads }
    }

    /// Number of keys of the indexer for this many positions.
    pub(crate) fn keys(&self, positions: usize) -> usize {
        if self.pooled { (positions / self.size).max(1) } else { positions }
    }

    /// Elements of all queries of a position.
    pub fn width(&self) -> usize {
        self.heads * self.dim
    }
}

impl AddedConv {
    /// A convolution whose result is added, and no more.
    pub(crate) const fn of(taps: usize) -> AddedConv {
        AddedConv { taps, divided: false, of_tokens: false }
    }

    /// The root of the number of terms, if the sum is divided by it.
    pub(crate) fn divisor(self) -> Option<f32> {
        let terms = 1 + self.taps * if self.of_tokens { 2 } else { 1 };
        self.divided.then(|| (terms as f32).sqrt())
    }
}

impl AttentionSpec {
    /// Number of further weights of the convolutions of keys, or of values, that a matrix computes
    /// for each token; 0 without such a matrix.
    pub(crate) fn token_taps(&self) -> usize {
        let of_tokens = self.extras.conv.filter(|conv| conv.of_tokens);
        of_tokens.map_or(0, |conv| self.kv_heads * conv.taps)
    }

    /// Rows of the matrix of queries.
    pub(crate) fn query_rows(&self) -> usize {
        match self.gate {
            None | Some(AttentionGate::Own { .. }) => self.q_width(),
            Some(AttentionGate::WithQueries) => 2 * self.q_width(),
        }
    }

    /// Rows of the matrix of gates, if there is a separate one.
    pub(crate) fn gate_rows(&self) -> Option<usize> {
        match self.gate {
            None | Some(AttentionGate::WithQueries) => None,
            Some(AttentionGate::Own { per_head: true, .. }) => Some(self.heads),
            Some(AttentionGate::Own { per_head: false, .. }) => Some(self.output_width()),
        }
    }

    /// Elements per position in the buffer for gates: queries with their gates, or gates in the
    /// form in which they are multiplied. The product of a matrix with one row per head follows.
    pub(crate) fn gate_room(&self) -> usize {
        match self.gate {
            None => 0,
            Some(AttentionGate::WithQueries) => self.query_rows(),
            Some(AttentionGate::Own { per_head, .. }) => {
                self.output_width() + if per_head { self.heads } else { 0 }
            }
        }
    }

    /// Rows of the common matrix of queries, keys and values; 0 without such a matrix.
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

    /// True if the layer keeps only the keys and values of its last positions.
    pub(crate) fn keeps_window(&self) -> bool {
        self.window.is_some() && self.key_values == KeyValues::Own
    }

    /// True if the layer computes keys and values.
    pub(crate) fn has_keys(&self) -> bool {
        !matches!(self.key_values, KeyValues::Of(_))
    }

    /// True if the layer has a matrix of values.
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

    /// Elements of the cached keys and values of all heads of a position; none if the layer uses
    /// those of another layer.
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
