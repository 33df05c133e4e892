//! Mixers that remember all earlier tokens in a fixed number of values.

use sws_kernels::functional::{Activation, Recurrence};

use super::Mixer;
use crate::role::Role;

/// A gated delta net. Queries, keys and values of all heads go through a short convolution; queries
/// and keys then have the length 1. A head keeps a matrix, which decays and is corrected with every
/// token; its outputs are normed and gated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaSpec {
    /// Heads.
    pub heads: usize,
    /// Heads of queries and keys; `heads` is a multiple of this.
    pub key_heads: usize,
    /// Elements of a query and a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Number of tokens that the convolution sees.
    pub taps: usize,
    /// Eps of the norm of a head's outputs.
    pub eps: f32,
    /// The matrices that compute the inputs.
    pub inputs: DeltaInputs,
    /// The function of a gate and an output.
    pub gate: Activation,
    /// Bound of the exponents of decays, below zero.
    pub bound: Option<f32>,
    /// Number of stored rates of decay. The first ones belong to the heads; the others are ignored.
    pub rates: usize,
    /// True if the rates themselves are stored, and not their logarithms; their sign does not
    /// matter (GGUF).
    pub powers: bool,
}

/// The matrices that compute the inputs of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaInputs {
    /// One matrix for all queries, keys and values, and one each for gates, corrections and decays.
    Separate,
    /// One matrix for all inputs except corrections and decays, which have another. Both matrices
    /// group the rows by key heads, with those of the heads that share a key head.
    ByKeyHead,
    /// Like `Separate`, in files of llama.cpp. A head uses the queries and keys of the head with
    /// its number modulo `key_heads`, whereas neighbours share them otherwise.
    Tiled,
    /// One matrix for all queries, keys and values, one for gates, and one for corrections and
    /// decays, which groups the rows by key heads.
    Pairs,
    /// One matrix each for queries, keys, values, gates, corrections and decays, and one
    /// convolution each for the first three. Every element of a key has its own decay.
    Apart,
    /// Like `Apart`, with decays computed from a latent.
    PerElement {
        /// Elements of the latent.
        rank: usize,
        /// True if gates are computed from another latent of that size.
        gate_latent: bool,
    },
}

/// A short convolution of each element of the hidden state, whose inputs and outputs are multiplied
/// by gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvSpec {
    /// Elements of the hidden state.
    pub channels: usize,
    /// Number of tokens that the convolution sees.
    pub taps: usize,
    /// True if the convolution and both matrices have biases.
    pub bias: bool,
}

/// A state space (Mamba 2). One matrix computes gates, inputs, keys, queries and the step of each
/// head; inputs, keys and queries go through a short convolution. A head keeps a matrix, which
/// decays with the step, and to which the input times step and key is added; a share of the input
/// is added to its output. Outputs are gated, then normed in groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpaceSpec {
    /// Heads.
    pub heads: usize,
    /// Groups of heads that share a key and a query, and a norm.
    pub groups: usize,
    /// Elements of a query and a key.
    pub key_dim: usize,
    /// Elements of an input and an output of a head.
    pub head_dim: usize,
    /// Number of tokens that the convolution sees.
    pub taps: usize,
    /// True if the convolution has a bias.
    pub conv_bias: bool,
    /// True if the first and the last matrix have biases.
    pub bias: bool,
    /// Eps of the norm of outputs.
    pub eps: f32,
    /// True if rates of decay are stored as negative numbers, and not as logarithms (GGUF).
    pub powers: bool,
}

/// The size of the state of a layer that remembers all earlier tokens in a fixed number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentSize {
    /// Inputs of the last few tokens, for a short convolution.
    pub(crate) past: usize,
    /// Sums over all tokens.
    pub(crate) sums: usize,
}

impl RecurrentSize {
    /// The size for a layer that remembers nothing.
    pub(crate) const NONE: RecurrentSize = RecurrentSize { past: 0, sums: 0 };

    /// Bytes of the state, at most.
    pub(crate) fn bytes(self) -> u64 {
        ((self.past + self.sums) * size_of::<f32>()) as u64
    }
}

impl DeltaSpec {
    /// Elements of all keys of a position.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all values of a position.
    pub fn value_width(&self) -> usize {
        self.heads * self.value_dim
    }

    /// Elements of a position that go through the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Number of decays per position.
    pub fn decays(&self) -> usize {
        self.heads * if self.decay_per_key() { self.key_dim } else { 1 }
    }

    /// The convolutions, each with the elements that go through it.
    pub(crate) fn convs(&self) -> impl Iterator<Item = (Role, usize)> + use<> {
        let keys = self.key_width();
        let values = self.value_width();
        let apart = [(Role::QueryConv, keys), (Role::KeyConv, keys), (Role::ValueConv, values)];
        let (convs, count) = match self.decay_per_key() {
            true => (apart, 3),
            false => ([(Role::Conv, self.channels()); 3], 1),
        };
        convs.into_iter().take(count)
    }

    /// The recurrence of the heads.
    pub(crate) fn recurrence(&self) -> Recurrence {
        let &DeltaSpec { heads, key_heads, key_dim, value_dim, .. } = self;
        let decay_per_key = self.decay_per_key();
        let delta = true;
        let tiled = self.inputs == DeltaInputs::Tiled;
        Recurrence { heads, key_heads, key_dim, value_dim, decay_per_key, delta, tiled }
    }

    /// True if each element of a key has a decay, and queries, keys and values have separate
    /// matrices.
    pub(crate) fn decay_per_key(&self) -> bool {
        matches!(self.inputs, DeltaInputs::Apart | DeltaInputs::PerElement { .. })
    }
}

impl StateSpaceSpec {
    /// Elements of all inputs of a position.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all keys of a position.
    pub fn key_width(&self) -> usize {
        self.groups * self.key_dim
    }

    /// Elements of a position that go through the convolution: inputs, keys, queries.
    pub fn channels(&self) -> usize {
        self.width() + 2 * self.key_width()
    }

    /// Number of rows of the first matrix: gates, channels of the convolution, and steps.
    pub fn rows(&self) -> usize {
        self.width() + self.channels() + self.heads
    }

    /// The recurrence of the heads.
    pub(crate) fn recurrence(&self) -> Recurrence {
        let &StateSpaceSpec { heads, groups: key_heads, key_dim, head_dim: value_dim, .. } = self;
        let decay_per_key = false;
        let delta = false;
        let tiled = false;
        Recurrence { heads, key_heads, key_dim, value_dim, decay_per_key, delta, tiled }
    }
}

impl Mixer {
    /// The size of a sequence's state, if it does not depend on the number of positions.
    pub(crate) fn memory(&self) -> Option<RecurrentSize> {
        let memory =
            |taps: usize, channels, sums| RecurrentSize { past: (taps - 1) * channels, sums };
        match self {
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::Compressed(_) => None,
            Mixer::Delta(spec) => {
                Some(memory(spec.taps, spec.channels(), spec.recurrence().state_len()))
            }
            Mixer::Conv(spec) => Some(memory(spec.taps, spec.channels, 0)),
            Mixer::StateSpace(spec) => {
                Some(memory(spec.taps, spec.channels(), spec.recurrence().state_len()))
            }
            Mixer::None => Some(memory(1, 0, 0)),
        }
    }
}
