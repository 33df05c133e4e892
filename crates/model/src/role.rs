//! What a tensor does in its piece.

/// What a tensor does in its piece. Layer code asks for these; families say what they are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "their names say it")]
pub enum Role {
    Embedding,
    Head,
    FinalNorm,
    /// The norm before what mixes positions.
    MixerNorm,
    /// The norm before the feed-forward block.
    FfnNorm,
    Query,
    QueryBias,
    QueryNorm,
    Key,
    KeyBias,
    KeyNorm,
    Value,
    ValueBias,
    Output,
    OutputBias,
    /// A row of it for each routed expert.
    Router,
    /// One row: how much of the shared expert a token takes.
    SharedGate,
    Gate,
    GateBias,
    Up,
    UpBias,
    Down,
    DownBias,
}

impl Role {
    /// Whether it multiplies activations, rather than standing beside them.
    pub const fn is_matrix(self) -> bool {
        matches!(
            self,
            Role::Embedding
                | Role::Head
                | Role::Query
                | Role::Key
                | Role::Value
                | Role::Output
                | Role::Router
                | Role::SharedGate
                | Role::Gate
                | Role::Up
                | Role::Down
        )
    }
}
