//! The computation of a model, layer by layer, independent of its family.

mod compressed;
mod recurrent;

use sws_kernels::functional::{Activation, RopePairs, Streams};
use sws_store::{Configuration, PieceKind};

use crate::config::{Config, InvalidConfig};
use crate::families;
use crate::role::Role;
use crate::rope::Rope;
pub use compressed::{CompressedSpec, PoolIndexer, PoolSpec};
pub use recurrent::{ConvSpec, DeltaInputs, DeltaSpec, StateSpaceSpec};

/// The arithmetic of a model, as its configuration describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The family, as the configuration spells it.
    pub model_type: String,
    /// The model type of the model that this is the language model of, if it is part of another.
    pub wrapper: Option<String>,
    /// Elements of the hidden state.
    pub hidden: usize,
    /// Rows of the embedding, and logits.
    pub vocab: usize,
    /// The maximum number of positions that the model was made for.
    pub context: usize,
    /// True if the embedding is also the head.
    pub tied: bool,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<Rope>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// The streams that the hidden state of a token consists of; None if it is one. Each begins as
    /// the embedding, and all branches read a mix of them and are added to each.
    pub streams: Option<Streams>,
    /// The factor applied to embeddings.
    pub embedding_scale: f32,
    /// The norm before the head.
    pub final_norm: Norm,
    /// True if the head has a bias.
    pub head_bias: bool,
    /// The factor applied to the products of the head.
    pub logit_scale: f32,
    /// Logits, scaled, become cap · tanh(logit / cap).
    pub logit_cap: Option<f32>,
}

/// One layer: a mixer of positions, then a feed-forward block, each on a normed copy of the hidden
/// state. Their outputs, the layer's branches, are added to it. A layer may lack one of the two.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The norms before both.
    pub norm: Norm,
    /// The way in which branches are added.
    pub residual: Residual,
    /// The mixer of positions.
    pub mixer: Mixer,
    /// The feed-forward block.
    pub ffn: Ffn,
}

/// The way in which a layer's branches are added to the hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// True if each branch is normed, with weights of its own and the kind of the layer's norm.
    pub post_norms: bool,
    /// The factor applied to each branch.
    pub scale: f32,
    /// True if the feed-forward block reads the same normed state as the mixer.
    pub parallel: bool,
    /// True if the router, the experts and the shared expert each read the state through a norm of
    /// their own, and the sum of the experts and the output of the shared one are normed before
    /// they are added up. The norm of the router is multiplied by the inverse of the root of the
    /// state's length.
    pub split: bool,
    /// True if the hidden state is multiplied by a number at the end of the layer.
    pub scaled_state: bool,
}

impl Default for Residual {
    /// As in most families: branches are added as they are, one after the other.
    fn default() -> Residual {
        let (post_norms, parallel, split, scaled_state) = (false, false, false, false);
        Residual { post_norms, scale: 1.0, parallel, split, scaled_state }
    }
}

/// The kind of norm applied to a hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square.
    Rms {
        /// Added to the mean of squares.
        eps: f32,
        /// True if the factor is one plus the weights, which then lie around zero.
        one_plus: bool,
    },
    /// Standard deviation, after the mean is subtracted.
    Layer {
        /// Added to the variance.
        eps: f32,
        /// True if norms of the hidden state have biases.
        bias: bool,
    },
}

/// The part of a layer through which a position sees earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention with grouped heads.
    Attention(AttentionSpec),
    /// Softmax attention whose keys and values are products of one latent vector per position.
    Latent(LatentSpec),
    /// Softmax attention to the last positions, and to entries that stand for several each.
    Compressed(CompressedSpec),
    /// A gated delta net: each head corrects a matrix with every token.
    Delta(DeltaSpec),
    /// A short convolution between two gates.
    Conv(ConvSpec),
    /// A state space: each head adds every token to a matrix that decays.
    StateSpace(StateSpaceSpec),
    /// None: each position by itself.
    None,
}

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
    /// True if the values of each head are normed, without weights.
    pub value_norm: bool,
    /// The factor applied to values.
    pub value_scale: f32,
    /// True if values are the products of keys, before their norms.
    pub values_are_keys: bool,
    /// Queries, keys and values are clamped to ± this.
    pub clip: Option<f32>,
    /// Number of most recent keys that a query sees, itself included; None means all.
    pub window: Option<usize>,
    /// True if windows begin at multiples of their size.
    pub aligned: bool,
    /// The growth of queries.
    pub temperature: Option<Temperature>,
    /// The factor applied to products of queries and keys.
    pub scale: f32,
    /// Index into [`ModelSpec::ropes`].
    pub rope: Option<usize>,
    /// True if the matrices of queries and keys, and their biases, have the elements that a rotary
    /// embedding turns together as neighbours. Their products are brought into halves.
    pub paired_rows: bool,
    /// True if each head has a sink: one more logit of the softmax, without a value.
    pub sinks: bool,
    /// Scores become cap · tanh(score / cap).
    pub soft_cap: Option<f32>,
    /// The gates by which outputs are multiplied.
    pub gate: Option<AttentionGate>,
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

/// Queries that grow with their position: by 1 + scale · ln(1 + ⌊(first + position) / length⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// The scale of the logarithm.
    pub scale: f64,
    /// Positions until the next step.
    pub length: f64,
    /// The number of the first position.
    pub first: usize,
}

/// Multi-head latent attention. A position is remembered by its latent, and by the part of its key
/// that is rotated, which all heads share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of the latent query; None if queries are made of the hidden state by one matrix.
    pub query_rank: Option<usize>,
    /// Elements of the latent of keys and values.
    pub rank: usize,
    /// Elements of a query and a key that are not rotated. They come first.
    pub plain: usize,
    /// Elements of a query and a key that are rotated.
    pub rotated: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Eps of the norms of both latents.
    pub eps: f32,
    /// The factor applied to products of queries and keys.
    pub scale: f32,
    /// The growth of queries.
    pub temperature: Option<Temperature>,
    /// Index into [`ModelSpec::ropes`]; None if nothing is rotated after all.
    pub rope: Option<usize>,
    /// True if keys and values have a matrix each, and that of keys is stored with the rows and
    /// columns of each head exchanged.
    pub split: bool,
    /// The selection of positions that a query sees; None means all.
    pub sparse: Option<SparseSpec>,
}

/// Positions that a query of latent attention sees: the best by the scores of an indexer, larger
/// scores first, then lower positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseSpec {
    /// The largest number of positions. A query that has no more before it, with its own, sees all.
    pub most: usize,
    /// None: the positions selected by the last layer before this one that has an indexer.
    pub indexer: Option<IndexerSpec>,
}

/// An indexer. It scores a position by Σ w · relu(q · k) over its heads, where the queries are made
/// of the latent query, the weights and the one key of a position of the hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexerSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of a query and a key. The first are rotated, as many as in a key of the layer.
    pub dim: usize,
    /// Eps of the norm of keys.
    pub eps: f32,
    /// The pairing of rotated elements.
    pub pairs: RopePairs,
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

/// The feed-forward block of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// One gated MLP for every token.
    Dense(MlpSpec),
    /// A mixture of experts; each token uses a few of them.
    Moe(MoeSpec),
    /// None.
    None,
}

/// A gated MLP: down(activation(gate(x), up(x))).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Number of gates, and of ups.
    pub width: usize,
    /// True if all matrices have biases.
    pub bias: bool,
    /// The activation of a gate and its up.
    pub activation: Activation,
    /// The matrices that compute gates and ups.
    pub gate_up: GateUp,
}

/// The matrices that compute the gates and ups of an MLP. Where they are one, so are their biases.
///
/// A row of a product depends on one row of the matrix alone, so one product that is taken apart
/// has the bits of two, and its matrix is stored, read and encoded as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// One each.
    Separate,
    /// One for both, the rows of all gates before those of all ups.
    Halves,
    /// One for both, the row of each gate before that of its up.
    Interleaved,
    /// One, called ups: their activation has no other factor.
    Ups,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// Number of routed experts.
    pub experts: usize,
    /// Number of routed experts per token.
    pub top_k: usize,
    /// The computation of an expert.
    pub expert: MlpSpec,
    /// The rule by which experts are chosen and weighted.
    pub router: Router,
    /// True if the router's logits have a bias.
    pub router_bias: bool,
    /// True if weights multiply the inputs of experts instead of their outputs.
    pub weighted_inputs: bool,
    /// The expert that every token uses in addition.
    pub shared: Option<SharedSpec>,
    /// Elements of a projection of the normed state, which routed experts read in its place; another
    /// matrix brings the sum of their outputs back. None if they read the state.
    pub latent: Option<usize>,
}

/// The rule that turns the router's logits into a choice of experts and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Router {
    /// The experts with the largest softmax probabilities over all experts.
    Softmax {
        /// True if the weights of the chosen experts are divided by their sum.
        renormalise: bool,
    },
    /// The experts with the largest softmax probabilities, divided by their sum and multiplied by a
    /// number of each expert.
    SoftmaxScaled,
    /// The experts with the largest logits, weighted by the softmax of these logits alone.
    SoftmaxOfChosen,
    /// Two experts, one after the other: that with the largest logit x, weighted by the softmax over
    /// the experts left whose logits y are near it, (x - y) / max(|y|, x) ≤ `reach`.
    Near {
        /// The largest relative distance.
        reach: f32,
    },
    /// The experts with the largest ranks, weighted by their scores.
    Ranked(RankedRouter),
    /// The experts that a table gives for the token, weighted by their scores.
    Table(RankedRouter),
}

/// A choice by ranks. A rank is a score plus the correction, and -inf in a group that is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedRouter {
    /// The function that turns logits into scores.
    pub scores: Scores,
    /// True if each expert has a number that is added to its score.
    pub correction: bool,
    /// The groups from which experts are chosen; None if all experts are one.
    pub groups: Option<Groups>,
    /// The division of the weights of the chosen experts.
    pub renormalise: Renormalise,
    /// The factor by which weights are multiplied in the end.
    pub scale: f32,
}

/// The division of the weights of a token's experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Renormalise {
    /// None.
    None,
    /// By their sum and a small number.
    Sum {
        /// The number.
        plus: f32,
    },
    /// By their sum, or by this number where the sum is smaller.
    AtLeast(f32),
}

/// The function that turns a router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// √(ln(1 + e^logit)) of each logit.
    RootSoftplus,
    /// The sigmoid of each logit, while experts are ranked by the logits themselves.
    SigmoidOfRanks,
}

/// Groups of consecutive experts, all of the same size. Experts are chosen from the best groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups, a divisor of the number of experts.
    pub count: usize,
    /// Number of groups that experts are chosen from.
    pub kept: usize,
    /// The measure of a group.
    pub by: GroupMeasure,
}

/// The measure by which groups of experts are compared. Among equals the first is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMeasure {
    /// The largest score plus correction.
    Best,
    /// The sum of the two largest.
    BestTwo,
}

/// The largest number of groups accepted; it bounds memory on the stack.
pub(crate) const MAX_GROUPS: usize = 256;

/// A shared expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedSpec {
    /// Its computation.
    pub mlp: MlpSpec,
    /// True if its output is multiplied by the sigmoid of a separate router row.
    pub gated: bool,
    /// True if its tensors are those of the MLP in models or layers without experts.
    pub is_mlp: bool,
    /// True if its output and the sum of the routed experts are averaged instead of added up.
    pub averaged: bool,
}

impl ModelSpec {
    /// Reads a configuration, in the spelling of transformers 4 or 5.
    pub fn of(config: &Configuration) -> Result<ModelSpec, InvalidConfig> {
        Config::read(config, |config| (families::of(config)?.family.spec)(config))
    }

    /// Reads a `config.json`.
    pub fn parse(config_json: &[u8]) -> Result<ModelSpec, InvalidConfig> {
        ModelSpec::of(&Configuration::from_json("config.json", config_json)?)
    }

    /// Elements of the hidden state of a token, all its streams.
    pub fn state_width(&self) -> usize {
        self.streams.map_or(1, |streams| streams.count) * self.hidden
    }

    /// The largest number of experts per token in any layer; 0 for a dense model.
    pub fn max_top_k(&self) -> usize {
        self.moes().map(|moe| moe.top_k).max().unwrap_or(0)
    }

    /// The mixtures of experts, one per layer that has one.
    pub fn moes(&self) -> impl Iterator<Item = &MoeSpec> {
        self.layers.iter().filter_map(LayerSpec::moe)
    }
}

impl LayerSpec {
    /// The layer's mixture of experts; None for a dense layer.
    pub fn moe(&self) -> Option<&MoeSpec> {
        match &self.ffn {
            Ffn::Moe(moe) => Some(moe),
            Ffn::Dense(_) | Ffn::None => None,
        }
    }
}

impl Norm {
    /// The same norm with factors of one plus the weights.
    pub const fn one_plus(self) -> Norm {
        match self {
            Norm::Rms { eps, .. } => Norm::Rms { eps, one_plus: true },
            Norm::Layer { .. } => self,
        }
    }

    /// True if norms of the hidden state have biases.
    pub const fn has_bias(self) -> bool {
        matches!(self, Norm::Layer { bias: true, .. })
    }

    /// The number added to the mean of squares.
    pub const fn eps(self) -> f32 {
        let (Norm::Rms { eps, .. } | Norm::Layer { eps, .. }) = self;
        eps
    }
}

impl MlpSpec {
    /// down(silu(gate(x)) · up(x)) with a matrix for each and no biases, as in most families.
    pub const fn silu(width: usize) -> MlpSpec {
        let (activation, gate_up) = (Activation::Silu, GateUp::Separate);
        MlpSpec { width, bias: false, activation, gate_up }
    }

    /// The matrices that compute gates and ups, each with its bias.
    pub(crate) const fn gates(&self) -> &'static [(Role, Role)] {
        match self.gate_up {
            GateUp::Separate => &[(Role::Gate, Role::GateBias), (Role::Up, Role::UpBias)],
            GateUp::Halves | GateUp::Interleaved => &[(Role::GateUp, Role::GateUpBias)],
            GateUp::Ups => &[(Role::Up, Role::UpBias)],
        }
    }

    /// Rows of each of these matrices.
    pub(crate) const fn gate_rows(&self) -> usize {
        match self.gate_up {
            GateUp::Separate | GateUp::Ups => self.width,
            GateUp::Halves | GateUp::Interleaved => 2 * self.width,
        }
    }
}

impl SharedSpec {
    /// A shared expert whose output is added to the sum of the others.
    pub const fn added(mlp: MlpSpec) -> SharedSpec {
        SharedSpec { mlp, gated: false, is_mlp: false, averaged: false }
    }

    /// The piece with its tensors.
    pub(crate) const fn piece(&self) -> PieceKind {
        if self.is_mlp { PieceKind::Mlp } else { PieceKind::SharedExpert }
    }
}

impl RankedRouter {
    /// The sigmoids of the experts with the largest sums of sigmoid and correction, divided by their
    /// sum.
    pub const fn sigmoid() -> RankedRouter {
        RankedRouter {
            scores: Scores::Sigmoid,
            correction: true,
            groups: None,
            renormalise: Renormalise::Sum { plus: 0.0 },
            scale: 1.0,
        }
    }
}

impl MoeSpec {
    /// Experts, of which each token uses `top_k`, and nothing beside them.
    pub const fn of((experts, top_k): (usize, usize), expert: MlpSpec, router: Router) -> MoeSpec {
        MoeSpec {
            experts,
            top_k,
            expert,
            router,
            router_bias: false,
            weighted_inputs: false,
            shared: None,
            latent: None,
        }
    }

    /// True if the router has a correction.
    pub const fn has_correction(&self) -> bool {
        match self.router {
            Router::Softmax { .. }
            | Router::SoftmaxScaled
            | Router::SoftmaxOfChosen
            | Router::Near { .. } => false,
            Router::Ranked(router) => router.correction,
            Router::Table(_) => false,
        }
    }

    /// True if a table gives the experts of every token.
    pub const fn has_table(&self) -> bool {
        matches!(self.router, Router::Table(_))
    }

    /// Rows of that table, in a model with so many tokens.
    pub(crate) fn table_rows(&self, vocab: usize) -> Option<usize> {
        self.has_table().then_some(vocab)
    }
}

impl LatentSpec {
    /// Elements of all queries of a position.
    pub fn query_width(&self) -> usize {
        self.heads * (self.plain + self.rotated)
    }

    /// Elements that are remembered of a position: its latent, then the rotated part of its key.
    pub fn width(&self) -> usize {
        self.rank + self.rotated
    }

    /// Elements of the values of all heads.
    pub fn value_width(&self) -> usize {
        self.heads * self.value_dim
    }

    /// The layer's own indexer.
    pub fn indexer(&self) -> Option<&IndexerSpec> {
        self.sparse.as_ref()?.indexer.as_ref()
    }

    /// Rows of the matrix from the latent to the keys and values of a head.
    pub(crate) fn head_rows(&self) -> usize {
        self.plain + self.value_dim
    }
}

impl IndexerSpec {
    /// Elements of all queries of a position.
    pub fn width(&self) -> usize {
        self.heads * self.dim
    }
}

impl From<AttentionSpec> for Mixer {
    fn from(spec: AttentionSpec) -> Mixer {
        Mixer::Attention(spec)
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

    /// Elements of all queries of a position.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
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
