//! What a tensor does in its piece.

/// What a tensor does in its piece: families map their names to roles, layers ask for roles. Declared in
/// the order of computing, in which shards store the tensors of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Role {
    Embedding,
    /// The norm before what mixes positions.
    MixerNorm,
    Query,
    Key,
    Value,
    QueryBias,
    KeyBias,
    ValueBias,
    QueryNorm,
    KeyNorm,
    Output,
    OutputBias,
    /// The norm before the feed-forward block.
    FfnNorm,
    /// A row of it for each routed expert.
    Router,
    Gate,
    Up,
    GateBias,
    UpBias,
    Down,
    DownBias,
    /// One row: how much of the shared expert a token takes.
    SharedGate,
    FinalNorm,
    Head,
}

impl Role {
    /// True for a tensor that multiplies activations; the others are added to them or scale them.
    pub const fn is_matrix(self) -> bool {
        match self {
            Role::Embedding
            | Role::Query
            | Role::Key
            | Role::Value
            | Role::Output
            | Role::Router
            | Role::Gate
            | Role::Up
            | Role::Down
            | Role::SharedGate
            | Role::Head => true,
            Role::MixerNorm
            | Role::QueryBias
            | Role::KeyBias
            | Role::ValueBias
            | Role::QueryNorm
            | Role::KeyNorm
            | Role::OutputBias
            | Role::FfnNorm
            | Role::GateBias
            | Role::UpBias
            | Role::DownBias
            | Role::FinalNorm => false,
        }
    }
}
