//! The computation of a model, layer by layer, independent of its family.

mod attention;
mod compressed;
mod experts;
mod ffn;
mod inputs;
mod latent;
mod ngrams;
mod recurrent;

use sws_kernels::functional::Streams;
use sws_store::Configuration;

use crate::config::{FamilyConfig, InvalidConfig};
use crate::families;
use crate::layer_state::RecurrentSize;
use crate::rope::Rope;
pub use attention::{
    AttentionExtras, AttentionGate, AttentionSpec, BlocksSpec, DistanceSpec, KeyValues, QkNorm,
    Temperature,
};
pub use compressed::{CompressedSpec, PoolIndexer, PoolSpec};
pub(crate) use experts::MAX_GROUPS;
pub use experts::{
    ExpertGroups, GroupMeasure, MoeSpec, RankedRouter, Renormalise, Router, RouterScores,
};
pub use ffn::{Ffn, GateUp, MlpSpec, SharedSpec};
pub use inputs::LayerInputs;
pub use latent::{IndexerSpec, LatentGates, LatentSpec, SparseSpec};
pub use ngrams::NgramSpec;
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
    /// What branches and the head read of several streams.
    pub stream_reads: StreamReads,
    /// Before the mixer of every so-manieth layer, the first included, the state is kept, and begins
    /// anew as the mixer's branch. All branches and the final norm read a mix of the state and of
    /// those kept. None if there is no other state.
    pub kept_every: Option<usize>,
    /// The factor applied to embeddings.
    pub embedding_scale: f32,
    /// True if embeddings are normed.
    pub embedding_norm: bool,
    /// What tokens give to each layer besides their embedding; None if they give nothing.
    pub layer_inputs: Option<LayerInputs>,
    /// The final norm and the head.
    pub head: HeadSpec,
}

/// The final norm, and the head, which makes logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadSpec {
    /// The norm before it.
    pub norm: Norm,
    /// Its rows, and of these the tokens that it predicts: the others are never drawn.
    pub rows: [usize; 2],
    /// True if it has a bias.
    pub bias: bool,
    /// The factor applied to its products.
    pub scale: f32,
    /// Logits, scaled, become cap · tanh(logit / cap).
    pub cap: Option<f32>,
}

/// What branches and the head read of several streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamReads {
    /// Sums by one weight for each stream.
    Weights,
    /// The same, but the head reads the mean.
    WeightsThenMean,
    /// The mean of the streams, normed, times a gate for each element of each, which is not normed
    /// again. Gates are made from latents of this many elements.
    Gates(usize),
}

/// One layer: a mixer of positions, then a feed-forward block, each on a normed copy of the hidden
/// state. Their outputs, the layer's branches, are added to it. A layer may lack one of the two.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The norms before both.
    pub norm: Norm,
    /// The way in which branches are added.
    pub residual: Residual,
    /// What n-grams of tokens add to the state before the mixer, whose state has a fixed size.
    pub ngrams: Option<NgramSpec>,
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
    /// True if the output of a dense feed-forward block is multiplied by a number.
    pub scaled_mlp: bool,
    /// Values that the convolution of each branch sees, which is added to the branch; None without.
    pub conv: Option<usize>,
}

impl Default for Residual {
    /// As in most families: branches are added as they are, one after the other.
    fn default() -> Residual {
        let post_norms = false;
        let parallel = false;
        let split = false;
        let scaled_state = false;
        let scaled_mlp = false;
        let conv = None;
        Residual { post_norms, scale: 1.0, parallel, split, scaled_state, scaled_mlp, conv }
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

impl ModelSpec {
    /// Reads a configuration, in the spelling of transformers 4 or 5.
    pub fn of(config: &Configuration) -> Result<ModelSpec, InvalidConfig> {
        FamilyConfig::read(config, |config| (families::of(config)?.family.spec)(config))
    }

    /// Reads a `config.json`.
    pub fn parse(config_json: &[u8]) -> Result<ModelSpec, InvalidConfig> {
        ModelSpec::of(&Configuration::from_json("config.json", config_json)?)
    }

    /// The model type with which the model is published: that of the model around it, if there is one.
    pub fn published_type(&self) -> &str {
        self.wrapper.as_deref().unwrap_or(&self.model_type)
    }

    /// Elements of the hidden state of a token, with all its streams, or those kept.
    pub fn state_width(&self) -> usize {
        self.states() * self.hidden
    }

    /// Streams of a token, or its state and those kept of it; otherwise 1.
    pub fn states(&self) -> usize {
        let kept = self.kept_every.map_or(0, |every| self.layers.len().div_ceil(every));
        self.streams.map_or(1 + kept, |streams| streams.count)
    }

    /// Elements of the latents from which gates of streams are made, if branches read streams by gates.
    pub fn stream_gates(&self) -> Option<usize> {
        match self.stream_reads {
            StreamReads::Weights | StreamReads::WeightsThenMean => None,
            StreamReads::Gates(rank) => Some(rank),
        }
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

    /// Numbers that the convolutions of keys, of values, of the mixer and of the feed-forward block
    /// remember.
    pub(crate) fn convs(&self, hidden: usize) -> [usize; 4] {
        let [keys, values] = match &self.mixer {
            Mixer::Attention(spec) => {
                let past = spec.extras.conv.map_or(0, |taps| taps - 1);
                [spec.key_width(), spec.value_width()].map(|width| past * width)
            }
            _ => [0; 2],
        };
        let branch = self.residual.conv.map_or(0, |taps| (taps - 1) * hidden);
        [keys, values, branch, branch]
    }

    /// The size of the state of a sequence, if it is the same for any number of positions; of
    /// residual streams that have `width` elements together.
    pub(crate) fn memory(&self, width: usize) -> Option<RecurrentSize> {
        let RecurrentSize { past, sums } = self.mixer.memory()?;
        let more = self.ngrams.as_ref().map_or(0, |ngrams| ngrams.past(width));
        Some(RecurrentSize { past: past + more, sums })
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
