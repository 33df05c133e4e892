//! Roles of tensors in their pieces.

/// Role of a tensor in its piece. Families map tensor names to roles, and layers request tensors by
/// role. Roles are declared in the order of computation, in which shards store the tensors of a
/// piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Role {
    Embedding,
    /// The norm of embeddings. It lies with those of the first layer.
    EmbeddingNorm,
    /// Rows that tokens choose: one for each token, or others for n-grams.
    Table,
    /// From the embedding to what it gives to all layers. It lies with the first.
    LayerInputs,
    /// The norm of that of each layer.
    LayerInputsNorm,
    /// Whole numbers of 64 bits by which n-grams find their rows: factors of tokens, and of each head
    /// the number of its rows and that of the first.
    NgramMultipliers,
    NgramSizes,
    NgramOffsets,
    /// From the rows of a token to a key for each stream.
    NgramKey,
    /// From the rows of a token to their value.
    NgramValue,
    NgramKeyNorm,
    NgramQueryNorm,
    NgramConvNorm,
    /// [elements of all streams, taps]
    NgramConv,
    /// The norms of streams before their gates are made.
    MixerStreamsNorm,
    /// To the latent of gates of streams.
    MixerStreamsDown,
    /// To the weights by which the mixer reads and is added to streams.
    MixerStreams,
    MixerStreamsBase,
    MixerStreamsScale,
    /// From the latent of gates of streams.
    MixerStreamsUp,
    /// The norm of states before the logits by which the mixer reads a mix of them.
    MixerMixNorm,
    /// The row that makes these logits.
    MixerMix,
    /// The norm before the mixer.
    MixerNorm,
    MixerNormBias,
    /// The convolution of its output.
    MixerConv,
    /// The norm of its output.
    MixerPostNorm,
    Query,
    /// To the numbers that make what is added to scores by distances.
    Distance,
    /// To the latent query.
    QueryDown,
    /// To the latent of keys and values, and to the part of a key that is rotated.
    KvDown,
    /// To the rows that entries are pooled from.
    Pool,
    /// To the logits of their weights.
    PoolGate,
    /// The same of an indexer's entries.
    IndexPool,
    IndexPoolGate,
    /// To the key of an indexer.
    IndexKey,
    /// To the weights of an indexer's heads.
    IndexWeights,
    QueryDownNorm,
    /// From the latent query.
    QueryUp,
    /// From the latent query, or the hidden state, to the queries of an indexer.
    IndexQuery,
    /// Queries and the key of an indexer in one matrix.
    IndexMixed,
    KvDownNorm,
    /// Added to the logits: [positions of an entry, elements].
    PoolBias,
    PoolNorm,
    IndexPoolBias,
    IndexPoolNorm,
    IndexKeyNorm,
    IndexKeyNormBias,
    /// One number per head of latent attention.
    LatentSinks,
    /// From the latent: for each head the rows of its keys, then those of its values.
    KvUp,
    /// For each head, from the plain part of its query to the space of latents.
    KeyUp,
    /// From the latent: for each head the rows of its values.
    ValueUp,
    Key,
    Value,
    /// Queries, keys and values in one matrix.
    Mixed,
    /// The same and the gates, by key heads.
    MixedGate,
    OutputGate,
    /// The share of a correction that is made.
    Beta,
    /// The decays of states before their bias and rate.
    Decay,
    /// To the latent of decays.
    DecayDown,
    /// To the latent of gates.
    OutputGateDown,
    /// From the latent of decays.
    DecayUp,
    /// From the latent of gates.
    OutputGateUp,
    /// Both, by key heads.
    BetaDecay,
    MixedBias,
    /// Of a short convolution: [channels, taps].
    Conv,
    QueryConv,
    KeyConv,
    ValueConv,
    ConvBias,
    DecayRate,
    DecayBias,
    /// The share of an input that is added to the output, one number per head.
    Skip,
    MixedNorm,
    QueryBias,
    KeyBias,
    ValueBias,
    QueryNorm,
    KeyNorm,
    /// Of the queries of an indexer of blocks.
    BlockQueryNorm,
    /// Of its keys.
    BlockKeyNorm,
    /// What they are multiplied with: [numbers of a head, distances]
    DistanceRows,
    /// One number per head.
    Sinks,
    /// To the outputs of groups of heads.
    OutputDown,
    Output,
    OutputBias,
    FfnStreamsNorm,
    FfnStreamsDown,
    /// To the weights by which the feed-forward block reads and is added to streams.
    FfnStreams,
    FfnStreamsBase,
    FfnStreamsScale,
    /// The norm of states and the row, of the feed-forward block.
    FfnMixNorm,
    FfnMix,
    FfnStreamsUp,
    /// The norm before the feed-forward block.
    FfnNorm,
    FfnNormBias,
    /// The norm before the router, where it has one of its own.
    RouterNorm,
    /// One row per routed expert.
    Router,
    /// Added to the logits.
    RouterBias,
    /// Added to the scores by which experts are chosen, but not to their weights.
    RouterCorrection,
    /// Multiplied by the weights of the experts.
    RouterFactors,
    /// The experts of each token, whole numbers of 64 bits.
    ExpertTable,
    /// One number, which multiplies the weights of experts.
    RouterScale,
    /// To the latent that routed experts read.
    ExpertsDown,
    Gate,
    Up,
    /// Gate and up in one matrix.
    GateUp,
    GateBias,
    UpBias,
    GateUpBias,
    Down,
    DownBias,
    /// One number, which multiplies the output of a dense block.
    MlpScale,
    /// The norm of the sum of the outputs of routed experts, before it leaves their latent.
    LatentNorm,
    /// From the sum of the outputs of routed experts.
    ExpertsUp,
    /// One row: the gate that scales the shared expert's output for each token.
    SharedGate,
    /// The norm of the shared expert's output, where it has one of its own.
    SharedPostNorm,
    /// The norm before the routed experts, where they have one of their own.
    ExpertsNorm,
    /// The convolution of the output of the feed-forward block.
    FfnConv,
    /// The norm of their sum.
    ExpertsPostNorm,
    /// The norm of the output of the feed-forward block.
    FfnPostNorm,
    /// To the gates of a layer's own input.
    LayerInputGate,
    /// From the gated input.
    LayerInputUp,
    /// The norm of what is added to the hidden state.
    LayerInputNorm,
    /// One number, which multiplies the hidden state.
    StateScale,
    /// The rows that make weights of the streams before the final norm.
    HeadStreams,
    HeadStreamsBase,
    HeadStreamsScale,
    /// The norm of states and the row, of the final norm.
    HeadMixNorm,
    HeadMix,
    FinalNorm,
    FinalNormBias,
    HeadStreamsDown,
    HeadStreamsUp,
    Head,
    /// One number per token. It lies in the piece of the last norm.
    HeadBias,
}

impl Role {
    /// True for a tensor that makes keys or values.
    pub(crate) const fn is_of_keys(self) -> bool {
        use Role::{Key, KeyBias, KeyNorm, Value, ValueBias};
        matches!(self, Key | KeyBias | KeyNorm | Value | ValueBias)
    }

    /// True for a tensor that multiplies activations; the others are added to them or scale them.
    pub const fn is_matrix(self) -> bool {
        match self {
            Role::Embedding
            | Role::Table
            | Role::LayerInputs
            | Role::LayerInputGate
            | Role::LayerInputUp
            | Role::NgramKey
            | Role::NgramValue
            | Role::MixerStreamsDown
            | Role::MixerStreamsUp
            | Role::FfnStreamsDown
            | Role::FfnStreamsUp
            | Role::HeadStreamsDown
            | Role::HeadStreamsUp
            | Role::IndexMixed
            | Role::Query
            | Role::Distance
            | Role::QueryDown
            | Role::KvDown
            | Role::MixerStreams
            | Role::FfnStreams
            | Role::Pool
            | Role::PoolGate
            | Role::IndexPool
            | Role::IndexPoolGate
            | Role::OutputDown
            | Role::IndexKey
            | Role::IndexWeights
            | Role::QueryUp
            | Role::IndexQuery
            | Role::KvUp
            | Role::KeyUp
            | Role::ValueUp
            | Role::Key
            | Role::Value
            | Role::Mixed
            | Role::MixedGate
            | Role::OutputGate
            | Role::Beta
            | Role::Decay
            | Role::DecayDown
            | Role::OutputGateDown
            | Role::DecayUp
            | Role::OutputGateUp
            | Role::BetaDecay
            | Role::Output
            | Role::Router
            | Role::Gate
            | Role::Up
            | Role::GateUp
            | Role::Down
            | Role::ExpertsDown
            | Role::ExpertsUp
            | Role::SharedGate
            | Role::Head => true,
            Role::MixerNorm
            | Role::EmbeddingNorm
            | Role::DistanceRows
            | Role::MixerConv
            | Role::FfnConv
            | Role::MlpScale
            | Role::RouterScale
            | Role::LayerInputsNorm
            | Role::LayerInputNorm
            | Role::NgramMultipliers
            | Role::NgramSizes
            | Role::NgramOffsets
            | Role::NgramKeyNorm
            | Role::NgramQueryNorm
            | Role::NgramConvNorm
            | Role::NgramConv
            | Role::MixerStreamsNorm
            | Role::FfnStreamsNorm
            | Role::MixerStreamsBase
            | Role::MixerStreamsScale
            | Role::FfnStreamsBase
            | Role::FfnStreamsScale
            | Role::HeadStreams
            | Role::HeadStreamsBase
            | Role::HeadStreamsScale
            | Role::MixerMixNorm
            | Role::MixerMix
            | Role::FfnMixNorm
            | Role::FfnMix
            | Role::HeadMixNorm
            | Role::HeadMix
            | Role::LatentNorm
            | Role::PoolBias
            | Role::PoolNorm
            | Role::IndexPoolBias
            | Role::IndexPoolNorm
            | Role::ExpertTable
            | Role::MixerNormBias
            | Role::FfnNormBias
            | Role::FinalNormBias
            | Role::HeadBias
            | Role::MixerPostNorm
            | Role::QueryDownNorm
            | Role::KvDownNorm
            | Role::MixedBias
            | Role::Conv
            | Role::QueryConv
            | Role::KeyConv
            | Role::ValueConv
            | Role::ConvBias
            | Role::DecayRate
            | Role::DecayBias
            | Role::Skip
            | Role::MixedNorm
            | Role::IndexKeyNorm
            | Role::IndexKeyNormBias
            | Role::QueryBias
            | Role::KeyBias
            | Role::ValueBias
            | Role::QueryNorm
            | Role::KeyNorm
            | Role::BlockQueryNorm
            | Role::BlockKeyNorm
            | Role::Sinks
            | Role::LatentSinks
            | Role::OutputBias
            | Role::FfnNorm
            | Role::RouterBias
            | Role::RouterCorrection
            | Role::GateBias
            | Role::UpBias
            | Role::GateUpBias
            | Role::DownBias
            | Role::SharedPostNorm
            | Role::ExpertsNorm
            | Role::ExpertsPostNorm
            | Role::FfnPostNorm
            | Role::StateScale
            | Role::RouterNorm
            | Role::RouterFactors
            | Role::FinalNorm => false,
        }
    }

    /// True for whole numbers of 64 bits, which are kept as the bits of twice as many floats.
    pub const fn is_whole(self) -> bool {
        matches!(
            self,
            Role::ExpertTable | Role::NgramMultipliers | Role::NgramSizes | Role::NgramOffsets
        )
    }

    /// True for whole numbers so large that their halves may be the bits of NaN.
    pub const fn has_any_bits(self) -> bool {
        self.is_whole() && !matches!(self, Role::ExpertTable)
    }
}
