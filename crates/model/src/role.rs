//! Roles of tensors in their pieces.

/// Role of a tensor in its piece. Families map tensor names to roles, and layers request tensors by
/// role. Roles are declared in the order of computation, in which shards store the tensors of a
/// piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Role {
    Embedding,
    /// The norm before the mixer.
    MixerNorm,
    Query,
    Key,
    Value,
    QueryBias,
    KeyBias,
    ValueBias,
    QueryNorm,
    KeyNorm,
    /// One number per head.
    Sinks,
    Output,
    OutputBias,
    /// The norm before the feed-forward block.
    FfnNorm,
    /// One row per routed expert.
    Router,
    RouterBias,
    Gate,
    Up,
    /// Gate and up in one matrix.
    GateUp,
    GateBias,
    UpBias,
    GateUpBias,
    Down,
    DownBias,
    /// One row: the gate that scales the shared expert's output for each token.
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
            | Role::GateUp
            | Role::Down
            | Role::SharedGate
            | Role::Head => true,
            Role::MixerNorm
            | Role::QueryBias
            | Role::KeyBias
            | Role::ValueBias
            | Role::QueryNorm
            | Role::KeyNorm
            | Role::Sinks
            | Role::OutputBias
            | Role::FfnNorm
            | Role::RouterBias
            | Role::GateBias
            | Role::UpBias
            | Role::GateUpBias
            | Role::DownBias
            | Role::FinalNorm => false,
        }
    }
}
