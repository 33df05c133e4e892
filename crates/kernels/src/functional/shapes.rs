//! What functions take besides rows: shapes, and weights by their meaning.

use super::elementary::exp;
use super::lanes::LANES;
use crate::Strided;

/// Factor that a norm applies to its normalised row.
#[derive(Clone, Copy, Debug)]
pub enum NormWeight<'a> {
    /// None.
    None,
    /// `w`, as long as a row.
    Plain(&'a [f32]),
    /// `1 + w`, as Gemma and Qwen3-Next store it.
    OnePlus(&'a [f32]),
}

impl NormWeight<'_> {
    pub(super) fn fits(self, width: usize) -> bool {
        match self {
            NormWeight::None => true,
            NormWeight::Plain(w) | NormWeight::OnePlus(w) => w.len() == width,
        }
    }
}

/// Pairing of the elements that rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// Element i with i + pairs ("rotate_half").
    HalfSplit,
    /// Element 2i with 2i + 1.
    Interleaved,
}

/// Layout of the input of [`rope`](super::rope): `x` is [tokens, heads, head_dim], and in each head the
/// `2 · pairs` elements from `offset` on are rotated.
#[derive(Clone, Copy, Debug)]
pub struct RopeShape {
    /// Heads in a token's row.
    pub heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
    /// The first element of a head that is rotated.
    pub offset: usize,
    /// Pairing of the elements.
    pub pairs: RopePairs,
}

/// The vectors by which states are weighed, each as long as a state.
#[derive(Clone, Copy, Debug)]
pub struct StateWeights<'a> {
    /// Factors of a normed state.
    pub norm: &'a [f32],
    /// Multiplied with the result, to the logit of the state.
    pub row: &'a [f32],
    /// Added to the mean of squares.
    pub eps: f32,
}

/// Residual streams of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// Number of streams, up to [`MAX_STREAMS`].
    pub count: usize,
    /// The weights of writing.
    pub writing: StreamWriting,
    /// Added to weights of reading and mixing, and to the sums that divide.
    pub eps: f32,
}

/// The way in which a branch is added to streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamWriting {
    /// Streams are mixed.
    Mixed {
        /// Number of times that rows and columns of the matrix of mixing are divided by their sums.
        iterations: usize,
    },
    /// Streams stay as they are. The epsilon is added to weights of writing, too.
    Apart {
        /// The largest weight of writing, where others have 2.
        magnitude: f32,
    },
    /// The same with a largest weight of 2 and no epsilon. What a branch reads is made otherwise:
    /// there are weights of writing alone.
    Alone,
}

/// The largest number of streams.
pub const MAX_STREAMS: usize = 16;

impl Streams {
    /// Number of weights of a token.
    pub const fn weights(&self) -> usize {
        match self.writing {
            StreamWriting::Mixed { .. } => (2 + self.count) * self.count,
            StreamWriting::Apart { .. } => 2 * self.count,
            StreamWriting::Alone => self.count,
        }
    }

    /// Number of factors of their products.
    pub const fn scales(&self) -> usize {
        match self.writing {
            StreamWriting::Mixed { .. } => 3,
            StreamWriting::Apart { .. } => 2,
            StreamWriting::Alone => 1,
        }
    }

    /// The weights of writing among those of a token; None if streams are mixed, too.
    #[inline(always)]
    pub(super) fn writes<'x>(&self, weights: &'x [f32]) -> Option<&'x [f32]> {
        match self.writing {
            StreamWriting::Mixed { .. } => None,
            StreamWriting::Apart { .. } => Some(&weights[self.count..][..self.count]),
            StreamWriting::Alone => Some(&weights[..self.count]),
        }
    }
}

/// What turns products of streams into weights.
#[derive(Clone, Copy, Debug)]
pub struct StreamBias<'a> {
    /// Factors of the products for reading, writing and mixing.
    pub scale: &'a [f32],
    /// Added to each product after that.
    pub base: &'a [f32],
}

/// The mix of streams that goes to the head.
#[derive(Clone, Copy, Debug)]
pub struct StreamHead<'a> {
    /// A row of weights for each stream: [count, count · width].
    pub rows: &'a [f32],
    /// The factor of the products.
    pub scale: f32,
    /// Added to each of them after that.
    pub base: &'a [f32],
    /// Added to the mean of squares of all streams.
    pub norm_eps: f32,
    /// Added to the weights.
    pub eps: f32,
}

/// The largest number of taps of a convolution.
pub const MAX_TAPS: usize = 8;

/// The shape of a layer whose heads each keep a matrix S [`key_dim`, `value_dim`].
///
/// For each token, S is multiplied by the decay; then S += k ⊗ u, where u is the value to write;
/// then the output is Sᵀ q. With `delta`, only what S does not already return for k is written:
/// u = β (v − Sᵀ k); without, u = β v. Sums go over k in ascending order, fused.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence {
    /// Heads.
    pub heads: usize,
    /// Heads of queries and keys; `heads` is a multiple of this.
    pub key_heads: usize,
    /// Elements of a query and a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// True if each element of a key has its own decay; otherwise one is for the whole head.
    pub decay_per_key: bool,
    /// True for the delta rule.
    pub delta: bool,
    /// True if a head has the queries and keys of the head with its number modulo `key_heads`;
    /// otherwise neighbours share them.
    pub tiled: bool,
}

/// The inputs of a [`Recurrence`] for some tokens.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceInputs<'a> {
    /// Number of tokens.
    pub tokens: usize,
    /// Queries: [tokens, key heads, key elements].
    pub q: Strided<&'a [f32]>,
    /// Keys, the same.
    pub k: Strided<&'a [f32]>,
    /// Values: [tokens, heads, value elements].
    pub v: Strided<&'a [f32]>,
    /// Factors of the state: [tokens, heads], or [tokens, heads, key elements].
    pub decay: &'a [f32],
    /// β: [tokens, heads].
    pub beta: &'a [f32],
}

impl Recurrence {
    /// Runs of 32 columns of a head; the last is padded with zeros.
    pub fn blocks(&self) -> usize {
        self.value_dim.div_ceil(LANES)
    }

    /// Numbers of the state: [heads, blocks, key elements, 32].
    pub fn state_len(&self) -> usize {
        self.heads * self.blocks() * self.key_dim * LANES
    }

    /// Numbers of the outputs of some tokens: [heads, blocks, tokens, 32].
    pub fn output_len(&self, tokens: usize) -> usize {
        self.heads * self.blocks() * tokens * LANES
    }

    /// The head of queries and keys that a head has.
    #[inline(always)]
    pub(super) fn key_head(&self, head: usize) -> usize {
        if self.tiled { head % self.key_heads } else { head / (self.heads / self.key_heads) }
    }

    /// The decays of a token and a head: one, or one for each element of a key.
    pub(super) fn decays<'a>(&self, all: &'a [f32], token: usize, head: usize) -> &'a [f32] {
        let each = if self.decay_per_key { self.key_dim } else { 1 };
        &all[(token * self.heads + head) * each..][..each]
    }
}

impl<'a> RecurrenceInputs<'a> {
    /// The query and the key of a token for a head.
    #[inline(always)]
    pub(super) fn query_and_key(
        &self,
        spec: &Recurrence,
        token: usize,
        head: usize,
    ) -> [&'a [f32]; 2] {
        let from = spec.key_head(head) * spec.key_dim;
        [self.q, self.k].map(
            #[inline(always)]
            |x| &x.numbers[token * x.stride + from..][..spec.key_dim],
        )
    }
}

/// A convolution over the last few tokens, for each channel by itself.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a> {
    /// Number of tokens, the current one included; up to [`MAX_TAPS`].
    pub taps: usize,
    /// Distance between tokens that are seen; 1 if none is left out.
    pub dilation: usize,
    /// [channels, taps], that of the current token last.
    pub weight: &'a [f32],
    /// Added to the sum, one for each channel.
    pub bias: Option<&'a [f32]>,
    /// True if SiLU is applied to the sum.
    pub silu: bool,
}

/// Some tokens of a sequence, as a [`ShortConv`] reads them.
#[derive(Clone, Copy, Debug)]
pub struct ConvInput<'a> {
    /// The inputs of the (taps − 1) · dilation tokens before, oldest first: [tokens, channels].
    pub past: &'a [f32],
    /// [tokens, channels]
    pub x: &'a [f32],
}

impl<'a> ConvInput<'a> {
    /// The row of the token `back` tokens before token `token`.
    #[inline(always)]
    pub(super) fn row(&self, channels: usize, token: usize, back: usize) -> &'a [f32] {
        let past = self.past.len() / channels;
        match token.checked_sub(back) {
            Some(token) => &self.x[token * channels..][..channels],
            None => &self.past[(past + token - back) * channels..][..channels],
        }
    }
}

/// Rates of decays, as checkpoints have them, and what is made of them.
#[derive(Clone, Copy, Debug)]
pub enum Rates<'a> {
    /// The logarithm of each: e^(−e^rate · softplus(x)).
    Logarithms(&'a [f32]),
    /// Each times −1: e^(rate · softplus(x)).
    Negative(&'a [f32]),
    /// The logarithm of each, and a bound below zero: e^(bound · sigmoid(e^rate · x)).
    Bounded(&'a [f32], f32),
}

impl Rates<'_> {
    pub(super) fn len(&self) -> usize {
        let (Rates::Logarithms(all) | Rates::Negative(all) | Rates::Bounded(all, _)) = self;
        all.len()
    }

    /// The factor of a rate: of softplus(x), or of x within a bound.
    #[inline(always)]
    pub(super) fn factor(&self, i: usize) -> f32 {
        match self {
            Rates::Logarithms(all) => -exp(all[i]),
            Rates::Negative(all) => all[i],
            Rates::Bounded(all, _) => exp(all[i]),
        }
    }
}
