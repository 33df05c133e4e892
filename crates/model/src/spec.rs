//! The computation of a model, layer by layer, independent of its family.

mod attention;
mod compressed;
mod experts;
mod ffn;
mod inputs;
mod latent;
mod looped;
mod ngrams;
mod recurrent;

use sws_kernels::functional::Streams;

use crate::rope::Rope;
pub use attention::{
    AddedConv, AttentionExtras, AttentionGate, AttentionSpec, BlocksSpec, DistanceSpec, KeyValues,
    QkNorm, Temperature,
};
pub use compressed::{CompressedSpec, PoolIndexer, PoolSpec};
pub(crate) use experts::MAX_GROUPS;
pub use experts::{
    ExpertGroups, GroupMeasure, LatentNorm, MoeSpec, RankedRouter, Renormalise, Router,
    RouterScores,
};
pub use ffn::{GateUp, MlpSpec, SharedSpec};
pub use inputs::LayerInputs;
pub use latent::{IndexerSpec, LatentGates, LatentSpec, SparseSpec};
pub use looped::LoopSpec;
pub use ngrams::{NgramNumbers, NgramSpec};
pub(crate) use recurrent::RecurrentSize;
pub use recurrent::{ConvSpec, DeltaInputs, DeltaSpec, StateSpaceSpec};

/// The computation of a model, as its configuration describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The family, as the configuration spells it.
    pub model_type: String,
    /// The model type of the multimodal model that this language model is part of, if there is one.
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
    /// True if weights change the angles of the first of them: by factors whose logarithms they have.
    pub learned_angles: bool,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// Layers that a pass visits several times; `None` if it visits each once.
    pub looped: Option<LoopSpec>,
    /// The residual streams that form the hidden state of a token; `None` if there is only one.
    /// Each begins as the embedding. Every branch reads a mix of the streams, and is added to each
    /// of them.
    pub streams: Option<Streams>,
    /// Inputs that branches and the head read from several streams.
    pub stream_reads: StreamReads,
    /// States kept from earlier layers; `None` if none are kept.
    pub kept: Option<KeptStates>,
    /// The factor applied to embeddings.
    pub embedding_scale: f32,
    /// The norm of embeddings, if they are normed.
    pub embedding_norm: Option<Norm>,
    /// Per-layer inputs, which tokens add to each layer besides their embedding; `None` if there
    /// are none.
    pub layer_inputs: Option<LayerInputs>,
    /// The final norm and the head.
    pub head: HeadSpec,
}

/// States kept from earlier layers. Before the mixer of some layers the state is kept, and the new
/// state begins as the mixer's branch. All branches and the final norm read a mix of the state and
/// the kept states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptStates {
    /// Number of layers from one kept state to the next, beginning with the first layer.
    pub every: usize,
    /// The number added to the mean of squares, if mixes are of normed states. Norms have no weights
    /// then, and the mixer of the first layer reads its state as it is. Otherwise mixes are of the
    /// states, and the norms before the logits of their shares have weights.
    pub normed: Option<f32>,
}

/// The final norm, and the head, which computes logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadSpec {
    /// The norm before the head.
    pub norm: Norm,
    /// Number of rows of the head, and number of tokens that it predicts. The other rows are never
    /// sampled.
    pub rows: [usize; 2],
    /// True if the head has a bias.
    pub bias: bool,
    /// The factor applied to the products of the head.
    pub scale: f32,
    /// Logits, scaled, become cap · tanh(logit / cap).
    pub cap: Option<f32>,
}

/// Inputs that branches and the head read from several streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamReads {
    /// Weighted sums, with one weight for each stream.
    Weights,
    /// Weighted sums, except that the head reads the mean.
    WeightsThenMean,
    /// The mean of the streams, each normed and multiplied by gates for all of its elements. It is
    /// not normed again. Gates are computed from latents with this number of elements.
    Gates(usize),
}

/// One layer: a mixer of positions, then a feed-forward block, each on a normed copy of the hidden
/// state. Both outputs, the layer's branches, are added to the hidden state. A layer may lack one
/// of the two.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The norms before mixer and feed-forward block.
    pub norm: Norm,
    /// The gates of the normed states.
    pub norm_gates: NormGates,
    /// The way in which branches are added.
    pub residual: Residual,
    /// Values that n-grams of tokens add to the state before the mixer.
    pub ngrams: Option<NgramSpec>,
    /// The mixer of positions.
    pub mixer: Mixer,
    /// The feed-forward block.
    pub ffn: Ffn,
}

/// Gates by which the normed states before mixer and feed-forward block are multiplied: one for each
/// element, computed from a latent of the normed state with this many elements. `None` without
/// gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormGates {
    /// Before the mixer.
    pub mixer: Option<usize>,
    /// Before the feed-forward block.
    pub ffn: Option<usize>,
}

/// The way in which a layer's branches are added to the hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// The norm of the mixer's output.
    pub after_mixer: Option<Norm>,
    /// The norm of the output of the feed-forward block.
    pub after_ffn: Option<Norm>,
    /// The divisor of the gates of state and branch, which are then added up in shares: with the
    /// sigmoid b of a gate, b parts of the branch and √((1 - b)(1 + b)) of the state, at least √0.001.
    /// `None` if the branch is added to the state as it is.
    pub shares: Option<f32>,
    /// The factor applied to each branch.
    pub scale: f32,
    /// True if the feed-forward block reads the same normed state as the mixer.
    pub parallel: bool,
    /// True if the router, the experts and the shared expert each read the state through a norm of
    /// their own. The sum of the experts and the output of the shared one are then normed before
    /// they are added up, and the norm of the router is divided by the root of the state's length.
    pub split: bool,
    /// True if the hidden state is multiplied by a number at the end of the layer.
    pub scaled_state: bool,
    /// True if the output of a dense feed-forward block is multiplied by a number.
    pub scaled_mlp: bool,
    /// The convolution of each branch; `None` without convolutions.
    pub conv: Option<AddedConv>,
}

impl Default for Residual {
    /// The residual of most families: branches are added as they are, one after the other.
    fn default() -> Residual {
        Residual {
            after_mixer: None,
            after_ffn: None,
            shares: None,
            scale: 1.0,
            parallel: false,
            split: false,
            scaled_state: false,
            scaled_mlp: false,
            conv: None,
        }
    }
}

/// The kind of norm applied to a hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square.
    Rms {
        /// Number added to the mean of squares.
        eps: f32,
        /// True if the factor is one plus the weights, which then lie around zero.
        one_plus: bool,
    },
    /// Root mean square, without weights.
    Unweighted {
        /// Number added to the mean of squares.
        eps: f32,
    },
    /// Root mean square, without weights, of the state multiplied by one plus the weights.
    OfScaled {
        /// Number added to the mean of squares.
        eps: f32,
    },
    /// Division by the standard deviation, after the mean is subtracted.
    Layer {
        /// Number added to the variance.
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
    /// No mixer: each position by itself.
    None,
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

impl ModelSpec {
    /// The model type with which the model is published: that of the model around it, if there is one.
    pub fn published_type(&self) -> &str {
        self.wrapper.as_deref().unwrap_or(&self.model_type)
    }

    /// Number of elements in the hidden state of a token, including all streams or kept states.
    pub fn state_width(&self) -> usize {
        self.states() * self.hidden
    }

    /// Number of streams of a token, or of its state, the kept states and those of an earlier round;
    /// otherwise 1.
    pub fn states(&self) -> usize {
        let kept = self.kept_before(self.layers.len());
        let earlier = self.looped.map_or(0, |of| self.kept_in(of));
        self.streams.map_or(1 + kept + earlier, |streams| streams.count)
    }

    /// Number of states kept before a layer.
    pub(crate) fn kept_before(&self, layer: usize) -> usize {
        self.kept.map_or(0, |kept| layer.div_ceil(kept.every))
    }

    /// Number of elements in the latents of stream gates, if branches read streams through gates.
    pub fn stream_gates(&self) -> Option<usize> {
        match self.stream_reads {
            StreamReads::Weights | StreamReads::WeightsThenMean => None,
            StreamReads::Gates(rank) => Some(rank),
        }
    }

    /// The largest latent of gates of streams or of normed states, if there are any.
    pub(crate) fn widest_gates(&self) -> Option<usize> {
        let own = |layer: &LayerSpec| layer.norm_gates.mixer.max(layer.norm_gates.ffn);
        self.stream_gates().or(self.layers.iter().filter_map(own).max())
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

    /// True if keys and values have inputs of their own.
    pub(crate) fn inputs_apart(&self) -> bool {
        matches!(&self.mixer, Mixer::Attention(spec) if spec.extras.inputs_apart)
    }

    /// Number of values that the convolutions of keys, of values, of the mixer and of the
    /// feed-forward block remember.
    pub(crate) fn convs(&self, hidden: usize) -> [usize; 4] {
        let [keys, values] = match &self.mixer {
            Mixer::Attention(spec) => {
                let past = spec.extras.conv.map_or(0, |conv| conv.taps - 1);
                [spec.key_width(), spec.value_width()].map(|width| past * width)
            }
            _ => [0; 2],
        };
        let branch = self.residual.conv.map_or(0, |conv| (conv.taps - 1) * hidden);
        [keys, values, branch, branch]
    }

    /// The size of a sequence's state, if it does not depend on the number of positions. `width` is
    /// the number of elements of all residual streams.
    pub(crate) fn memory(&self, width: usize) -> Option<RecurrentSize> {
        let RecurrentSize { past, sums } = self.mixer.memory()?;
        let more = self.ngrams.as_ref().map_or(0, |ngrams| ngrams.past(width));
        Some(RecurrentSize { past: past + more, sums })
    }
}

impl Residual {
    /// This residual, with the same norm of both branches.
    pub(crate) const fn normed(self, by: Norm) -> Residual {
        Residual { after_mixer: Some(by), after_ffn: Some(by), ..self }
    }
}

impl Norm {
    /// This norm, with factors of one plus the weights.
    pub const fn one_plus(self) -> Norm {
        match self {
            Norm::Rms { eps, .. } => Norm::Rms { eps, one_plus: true },
            Norm::Unweighted { .. } | Norm::OfScaled { .. } | Norm::Layer { .. } => self,
        }
    }

    /// True if norms of the hidden state have biases.
    pub const fn has_bias(self) -> bool {
        matches!(self, Norm::Layer { bias: true, .. })
    }

    /// True if norms have weights.
    pub const fn has_weight(self) -> bool {
        !matches!(self, Norm::Unweighted { .. })
    }

    /// The number added to the mean of squares.
    pub const fn eps(self) -> f32 {
        match self {
            Norm::Rms { eps, .. }
            | Norm::Unweighted { eps }
            | Norm::OfScaled { eps }
            | Norm::Layer { eps, .. } => eps,
        }
    }
}
