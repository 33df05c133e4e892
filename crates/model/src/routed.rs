//! Experts that routers choose, and errors of the sources of weights.

/// An error of a source, opaque to the forward pass.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// The experts chosen by a layer's router for the tokens of a batch.
#[derive(Clone, Debug, Default)]
pub struct Routed {
    /// Number of experts per token.
    pub top_k: usize,
    /// The experts of each token, the most probable first: [tokens, top_k].
    pub choices: Vec<u32>,
    /// The weight of each expert's output: [tokens, top_k].
    pub weights: Vec<f32>,
    /// The weight of each token's own input: `[tokens]`; empty where no choice returns it. Such a
    /// choice appears as the first expert of the token once more, with the weight 0.
    pub identity: Vec<f32>,
    /// The weights of shared experts that the router scores: `[tokens, experts]`; empty without them.
    pub shared: Vec<f32>,
    /// The experts that at least one token uses, ascending.
    pub distinct: Vec<u32>,
}
