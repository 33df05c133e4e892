//! The reads of residual streams, and of states kept from earlier layers.

use sws_format::PieceKind;

use super::TensorSpec;
use crate::role::Role;
use crate::spec::{KeptStates, LayerSpec, ModelSpec, NormGates};

/// A branch of a layer, in models with several residual streams or kept states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// The mixer.
    Mixer,
    /// The feed-forward block.
    Ffn,
}

/// A branch of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Branch<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) layer: usize,
    pub(crate) site: Site,
}

impl Site {
    /// The piece with the weights by which the branch reads and writes streams. The weights of
    /// experts are stored with their router, so that forecasts can query it.
    pub(crate) const fn piece(self) -> PieceKind {
        match self {
            Site::Mixer => PieceKind::Attention,
            Site::Ffn => PieceKind::Router,
        }
    }

    /// The roles of the matrix for stream weights, the bias of its products, and their factors.
    pub(crate) const fn roles(self) -> [Role; 3] {
        match self {
            Site::Mixer => [Role::MixerStreams, Role::MixerStreamsBase, Role::MixerStreamsScale],
            Site::Ffn => [Role::FfnStreams, Role::FfnStreamsBase, Role::FfnStreamsScale],
        }
    }

    /// The roles of the norm of kept states, and of the row that computes the logits of their mix.
    pub(crate) const fn mix(self) -> [Role; 2] {
        match self {
            Site::Mixer => [Role::MixerMixNorm, Role::MixerMix],
            Site::Ffn => [Role::FfnMixNorm, Role::FfnMix],
        }
    }

    /// Number of states kept from earlier layers, or from this layer, when the branch reads them.
    pub(crate) const fn kept(self, layer: usize, every: usize) -> usize {
        match self {
            Site::Mixer => layer.div_ceil(every),
            Site::Ffn => layer / every + 1,
        }
    }

    /// The reads of the gates of the normed state before the branch.
    pub(super) fn gates_of(self, layer: &LayerSpec, hidden: usize) -> Vec<TensorSpec> {
        let Some(rank) = layer.norm_gates.of(self) else { return Vec::new() };
        let [_, down, up] = self.gates();
        vec![TensorSpec::matrix(down, rank, hidden), TensorSpec::matrix(up, hidden, rank)]
    }

    /// The roles of the norm of streams, and of the matrices to and from the latent of gates.
    pub(crate) const fn gates(self) -> [Role; 3] {
        match self {
            Site::Mixer => [Role::MixerStreamsNorm, Role::MixerStreamsDown, Role::MixerStreamsUp],
            Site::Ffn => [Role::FfnStreamsNorm, Role::FfnStreamsDown, Role::FfnStreamsUp],
        }
    }

    /// The role of the norm of the branch's input.
    pub(crate) const fn norm(self) -> Role {
        match self {
            Site::Mixer => Role::MixerNorm,
            Site::Ffn => Role::FfnNorm,
        }
    }
}

impl Branch<'_> {
    /// Number of mixes of kept states that the branch reads; 0 if it reads the state as it is.
    pub(crate) fn mixes(self) -> usize {
        let Branch { spec, layer, site } = self;
        match (spec.kept, site) {
            (None, _) => 0,
            (Some(KeptStates { normed: Some(_), .. }), Site::Mixer) if layer == 0 => 0,
            (_, Site::Mixer) if spec.layers[layer].inputs_apart() => 3,
            _ => 1,
        }
    }

    /// The reads of the branch's stream weights; none in models with a single state.
    pub(super) fn reads(self) -> Vec<TensorSpec> {
        let Branch { spec: model, site, .. } = self;
        let hidden = model.hidden;
        if let Some(kept) = model.kept {
            let [norm, row] = site.mix();
            let norm = kept.normed.is_none().then_some(TensorSpec::vector(norm, hidden));
            let rows = self.mixes();
            let row = (rows > 0).then_some(TensorSpec { role: row, rows, cols: hidden });
            return norm.into_iter().chain(row).collect();
        }
        let Some(streams) = model.streams else { return Vec::new() };
        let [matrix, base, scale] = site.roles();
        if let Some(rank) = model.stream_gates() {
            let [norm, down, up] = site.gates();
            let width = model.state_width();
            return vec![
                TensorSpec::vector(norm, width),
                TensorSpec::matrix(down, rank, width),
                TensorSpec::matrix(matrix, streams.weights(), width),
                TensorSpec::matrix(up, width, rank),
            ];
        }
        vec![
            TensorSpec::matrix(matrix, streams.weights(), model.state_width()),
            TensorSpec::vector(base, streams.weights()),
            TensorSpec::vector(scale, streams.scales()),
        ]
    }
}

impl NormGates {
    /// Elements of the latent of the gates before a branch, if it has gates.
    pub(crate) const fn of(self, site: Site) -> Option<usize> {
        match site {
            Site::Mixer => self.mixer,
            Site::Ffn => self.ffn,
        }
    }
}
