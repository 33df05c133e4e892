//! Working memory of feed-forward blocks.

use sws_kernels::PackedInput;

/// A gated MLP, or the experts that are computed together.
#[derive(Debug, Default)]
pub(crate) struct MlpWork {
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    pub(crate) packed: Vec<PackedInput>,
    /// A bias of an expert.
    pub(crate) bias: Vec<f32>,
}

#[derive(Debug, Default)]
pub(crate) struct ExpertWork {
    /// Start in `rows` of the rows of each expert in `Routed::distinct`, followed by the end.
    pub(crate) starts: Vec<usize>,
    /// Indices into `Routed::choices`, by expert, then by token, without repeated choices.
    pub(crate) rows: Vec<usize>,
    /// Flag for each expert of `Routed::distinct`: true once it has been computed.
    pub(crate) done: Vec<bool>,
    /// The outputs, in the order of `rows`: [tokens · top_k, hidden].
    pub(crate) outputs: Vec<f32>,
    /// Indices of each token's rows in `rows`: [tokens, top_k], ascending.
    pub(crate) by_token: Vec<usize>,
    /// Number of entries of `by_token` for each token.
    pub(crate) found: Vec<usize>,
    pub(crate) inputs: Vec<PackedInput>,
    /// Projections that experts read: [tokens, elements], the same packed, and the number of
    /// elements.
    pub(crate) latent: Vec<f32>,
    pub(crate) packed: PackedInput,
    pub(crate) latent_width: usize,
    /// The output of the shared expert, and its gate for each token.
    pub(crate) shared: Vec<f32>,
    pub(crate) shared_gate: Vec<f32>,
    /// The sum of experts that is added at the end of the next layer: [tokens, hidden].
    pub(crate) later: Vec<f32>,
    /// Factor of the weights of experts, if shared experts are weighted.
    pub(crate) factor: f32,
}
