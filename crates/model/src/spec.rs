//! What a model computes, layer by layer, in terms that name no family.

use crate::config::{Config, ConfigError};
use crate::families;
use crate::rope::Rope;

/// What a `config.json` says about the arithmetic of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The family, as `config.json` spells it.
    pub model_type: String,
    /// Elements of the hidden state.
    pub hidden: usize,
    /// Rows of the embedding, and logits.
    pub vocab: usize,
    /// The most positions that the model was made for.
    pub context: usize,
    /// Whether the embedding is also the head.
    pub tied: bool,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<Rope>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// The norm before the head.
    pub final_norm: Norm,
}

/// One layer: a mixer of positions, then a feed-forward block, each on a normed copy of the hidden
/// state and added to it.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The norms before both.
    pub norm: Norm,
    /// What mixes positions.
    pub mixer: Mixer,
    /// What follows.
    pub ffn: Ffn,
}

/// How a hidden state is normed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// By the root mean square.
    Rms {
        /// Added to the mean of squares.
        eps: f32,
    },
}

/// What lets a position see those before it.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention with grouped heads.
    Attention(AttentionSpec),
}

/// Attention with grouped heads.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output has one.
    pub output_bias: bool,
    /// How queries and keys are normed.
    pub qk_norm: QkNorm,
    /// Queries, keys and values are clamped to ± this.
    pub clip: Option<f32>,
    /// How many of the last keys a query sees, itself included; None: all.
    pub window: Option<usize>,
    /// What the products of queries and keys are multiplied by.
    pub scale: f32,
    /// Index into [`ModelSpec::ropes`].
    pub rope: Option<usize>,
}

/// How queries and keys are normed before the rotary embedding, with the eps of the layer's norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    None,
    /// Each head alone, all with the same weights.
    PerHead,
    /// All heads of a position together.
    FullWidth,
}

/// The feed-forward block of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// One gated MLP for every token.
    Dense(MlpSpec),
    /// Some of many.
    Moe(MoeSpec),
}

/// A gated MLP: down(silu(gate(x)) · up(x)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpSpec {
    /// Rows of gate and up.
    pub width: usize,
    /// Whether all three have biases.
    pub bias: bool,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// Routed experts.
    pub experts: usize,
    /// How many of them a token uses.
    pub top_k: usize,
    /// Rows of an expert's gate and up.
    pub width: usize,
    /// How they are chosen and weighted.
    pub router: Router,
    /// What every token uses besides.
    pub shared: Option<SharedSpec>,
}

/// How experts are chosen from the router's logits, and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Router {
    /// The largest of the softmax over all experts.
    Softmax {
        /// Whether the weights of the chosen are divided by their sum.
        renormalise: bool,
    },
}

/// A shared expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSpec {
    /// Rows of its gate and up.
    pub width: usize,
    /// Whether its output is multiplied by the sigmoid of one more router row.
    pub gated: bool,
}

impl ModelSpec {
    /// Reads a `config.json`, in the spelling of transformers 4 or 5.
    pub fn parse(config_json: &[u8]) -> Result<ModelSpec, ConfigError> {
        let config = Config::parse(config_json)?;
        (families::of(&config)?.spec)(&config)
    }

    /// The most experts that a token uses in any layer; 0 for a dense model.
    pub fn max_top_k(&self) -> usize {
        self.moes().map(|moe| moe.top_k).max().unwrap_or(0)
    }

    /// The layers with experts.
    pub fn moes(&self) -> impl Iterator<Item = &MoeSpec> {
        self.layers.iter().filter_map(LayerSpec::moe)
    }
}

impl LayerSpec {
    /// Its experts; none of a dense layer.
    pub fn moe(&self) -> Option<&MoeSpec> {
        match &self.ffn {
            Ffn::Moe(moe) => Some(moe),
            Ffn::Dense(_) => None,
        }
    }
}

impl AttentionSpec {
    /// Elements of all queries of a position.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all keys of a position.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
