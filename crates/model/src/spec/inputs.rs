//! Per-layer inputs of tokens.

use sws_kernels::functional::Activation;

/// Per-layer inputs, which tokens add to each layer besides their embedding. An input is the sum of
/// a part of a table row and a normed part of a product of the embedding. At its end a layer adds
/// norm(up(activation(gate(state), input))) to the hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInputs {
    /// Elements of the input of a layer.
    pub width: usize,
    /// Rows of the table, at least one for each token.
    pub rows: usize,
    /// The factor applied to rows.
    pub row_scale: f32,
    /// The factor applied to products, before their norm.
    pub product_scale: f32,
    /// The factor applied to the sum of both.
    pub scale: f32,
    /// The activation of a gate and an element of the input.
    pub activation: Activation,
}
