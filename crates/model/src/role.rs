//! Roles of tensors in their pieces: a single table, with the properties of each role.

/// Property: the tensor multiplies activations.
const MATRIX: u8 = 1;
/// Property: the tensor is added to activations, or scales them.
const VECTOR: u8 = 0;
/// Property: the tensor computes keys or values.
const OF_KEYS: u8 = 2;
/// Property: the tensor consists of 64-bit integers, stored as the bits of twice as many floats.
const WHOLE: u8 = 4;
/// Property: the integers are so large that their halves may be the bits of NaN.
const ANY_BITS: u8 = 8;

/// Declares the roles in the order of computation, with the properties of each.
macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident: $facts:expr,)*) => {
        /// Role of a tensor in its piece. Families map tensor names to roles, and layers request
        /// tensors by role. Roles are declared in the order of computation, in which shards store the
        /// tensors of a piece.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "their names say it")]
        pub enum Role {
            $($(#[$doc])* $role,)*
        }

        impl Role {
            const fn facts(self) -> u8 {
                match self {
                    $(Role::$role => $facts,)*
                }
            }
        }
    };
}

roles! {
    Embedding: MATRIX,
    /// The norm of embeddings, stored with the norms of the first layer.
    EmbeddingNorm: VECTOR,
    /// The logarithms of the factors of angles, stored with the norms of the first layer.
    Angles: VECTOR,
    /// Table whose rows tokens select: one row per token, or several for n-grams.
    Table: MATRIX,
    /// Matrix from the embedding to the per-layer inputs, stored with the first layer.
    LayerInputs: MATRIX,
    /// The norm of each layer's input.
    LayerInputsNorm: VECTOR,
    /// 64-bit integers that determine the rows of n-grams: factors of tokens and, for each head,
    /// the number of its rows and the number of its first row.
    NgramMultipliers: WHOLE | ANY_BITS,
    NgramSizes: WHOLE | ANY_BITS,
    NgramOffsets: WHOLE | ANY_BITS,
    /// Matrix from the rows of a token to a key for each stream.
    NgramKey: MATRIX,
    /// Matrix from the rows of a token to their value.
    NgramValue: MATRIX,
    NgramKeyNorm: VECTOR,
    NgramQueryNorm: VECTOR,
    NgramConvNorm: VECTOR,
    /// [elements of all streams, taps]
    NgramConv: VECTOR,
    /// The norms of streams, before their gates are computed.
    MixerStreamsNorm: VECTOR,
    /// Matrix to the latent of gates of streams, or of the normed state.
    MixerStreamsDown: MATRIX,
    /// Matrix to the weights by which the mixer reads and writes streams.
    MixerStreams: MATRIX,
    MixerStreamsBase: VECTOR,
    MixerStreamsScale: VECTOR,
    /// Matrix from the latent of gates.
    MixerStreamsUp: MATRIX,
    /// The norm of kept states, before the logits of the mix that the mixer reads.
    MixerMixNorm: VECTOR,
    /// The row that computes these logits; three where keys and values have inputs of their own.
    MixerMix: VECTOR,
    /// The rows that compute the logits of messages of earlier rounds to queries and to feed-forward
    /// blocks, two for each layer, and those to keys and to values, stored with the norms of the first
    /// layer.
    Messages: VECTOR,
    KvMessages: VECTOR,
    /// Matrices to the latent of the gates of state and message, and from it to the gates.
    QueryMessageDown: MATRIX,
    QueryMessageForget: MATRIX,
    QueryMessageGain: MATRIX,
    KeyMessageDown: MATRIX,
    KeyMessageForget: MATRIX,
    KeyMessageGain: MATRIX,
    ValueMessageDown: MATRIX,
    ValueMessageForget: MATRIX,
    ValueMessageGain: MATRIX,
    /// The norm before the mixer.
    MixerNorm: VECTOR,
    MixerNormBias: VECTOR,
    /// The norms before the matrices of keys and of values, where these have inputs of their own.
    KeyInputNorm: VECTOR,
    ValueInputNorm: VECTOR,
    /// The convolution of the mixer's output.
    MixerConv: VECTOR,
    /// The norm of the mixer's output.
    MixerPostNorm: VECTOR,
    /// The gates of the shares of state and mixer.
    MixerShares: VECTOR,
    Query: MATRIX,
    /// Matrix to the factors of distance biases.
    Distance: MATRIX,
    /// Matrix to the latent query.
    QueryDown: MATRIX,
    /// Matrix to the latent of keys and values, and to the rotated part of a key.
    KvDown: MATRIX,
    /// Matrix to the rows from which entries are pooled.
    Pool: MATRIX,
    /// Matrix to the logits of the weights of these rows.
    PoolGate: MATRIX,
    /// Matrix to the rows from which an indexer's entries are pooled.
    IndexPool: MATRIX,
    IndexPoolGate: MATRIX,
    /// Matrix to the key of an indexer.
    IndexKey: MATRIX,
    /// Matrix to the weights of an indexer's heads.
    IndexWeights: MATRIX,
    QueryDownNorm: VECTOR,
    /// The norm of the hidden state before the queries of an indexer.
    IndexQueryNorm: VECTOR,
    IndexQueryNormBias: VECTOR,
    /// Matrix from the latent query to queries.
    QueryUp: MATRIX,
    /// Matrix from the latent query, or the hidden state, to the queries of an indexer.
    IndexQuery: MATRIX,
    /// Matrix to the queries and the key of an indexer.
    IndexMixed: MATRIX,
    KvDownNorm: VECTOR,
    /// The norm of the rotated part of a key of latent attention.
    LatentKeyNorm: VECTOR,
    /// The factors of the logarithm of a position by which queries of heads grow, and what is added.
    QueryGrowth: VECTOR,
    QueryGrowthBias: VECTOR,
    /// Bias of the logits of entries: [positions of an entry, elements].
    PoolBias: VECTOR,
    PoolNorm: VECTOR,
    IndexPoolBias: VECTOR,
    IndexPoolNorm: VECTOR,
    IndexKeyNorm: VECTOR,
    IndexKeyNormBias: VECTOR,
    /// The same of the heads of an indexer.
    IndexGrowth: VECTOR,
    IndexGrowthBias: VECTOR,
    /// One number per head of latent attention.
    LatentSinks: VECTOR,
    /// Matrix from the latent: for each head the rows of its keys, then those of its values.
    KvUp: MATRIX,
    /// For each head, a matrix from the plain part of its query to the space of latents.
    KeyUp: MATRIX,
    /// Matrix from the latent: for each head the rows of its values.
    ValueUp: MATRIX,
    Key: MATRIX | OF_KEYS,
    Value: MATRIX | OF_KEYS,
    /// Matrix to queries, keys and values.
    Mixed: MATRIX,
    /// Matrix to queries, keys, values and gates, grouped by key heads.
    MixedGate: MATRIX,
    OutputGate: MATRIX,
    /// Matrix to the sinks of a token, one per head.
    TokenSinks: MATRIX,
    /// Matrices to further weights of the convolutions of keys and of values.
    KeyTaps: MATRIX,
    ValueTaps: MATRIX,
    /// Matrix to the share of each correction that is applied.
    Beta: MATRIX,
    /// Matrix to the decays of states, before their bias and rate.
    Decay: MATRIX,
    /// Matrix to the latent of decays.
    DecayDown: MATRIX,
    /// Matrix to the latent of gates.
    OutputGateDown: MATRIX,
    /// Matrix from the latent of decays.
    DecayUp: MATRIX,
    /// Matrix from the latent of gates.
    OutputGateUp: MATRIX,
    /// Matrix to corrections and decays, grouped by key heads.
    BetaDecay: MATRIX,
    MixedBias: VECTOR,
    /// Weights of a short convolution: [channels, taps].
    Conv: VECTOR,
    QueryConv: VECTOR,
    KeyConv: VECTOR,
    ValueConv: VECTOR,
    ConvBias: VECTOR,
    DecayRate: VECTOR,
    DecayBias: VECTOR,
    /// The share of an input that is added to the output, one number per head.
    Skip: VECTOR,
    MixedNorm: VECTOR,
    QueryBias: VECTOR,
    KeyBias: VECTOR | OF_KEYS,
    ValueBias: VECTOR | OF_KEYS,
    QueryNorm: VECTOR,
    KeyNorm: VECTOR | OF_KEYS,
    /// The norm of the queries of an indexer of blocks.
    BlockQueryNorm: VECTOR,
    /// The norm of the keys of an indexer of blocks.
    BlockKeyNorm: VECTOR,
    /// Weights of the factors of distance biases, for each head.
    DistanceNorm: VECTOR,
    /// Columns that the factors of distance biases are multiplied with: [numbers of a head,
    /// distances]
    DistanceRows: VECTOR,
    /// One number per head.
    Sinks: VECTOR,
    /// Matrix to the outputs of groups of heads.
    OutputDown: MATRIX,
    Output: MATRIX,
    OutputBias: VECTOR,
    FfnStreamsNorm: VECTOR,
    FfnStreamsDown: MATRIX,
    /// Matrix to the weights by which the feed-forward block reads and writes streams.
    FfnStreams: MATRIX,
    FfnStreamsBase: VECTOR,
    FfnStreamsScale: VECTOR,
    /// The norm of kept states, and the row of their mix, for the feed-forward block.
    FfnMixNorm: VECTOR,
    FfnMix: VECTOR,
    FfnMessageDown: MATRIX,
    FfnMessageForget: MATRIX,
    FfnMessageGain: MATRIX,
    FfnStreamsUp: MATRIX,
    /// The norm before the feed-forward block.
    FfnNorm: VECTOR,
    FfnNormBias: VECTOR,
    /// The norm before the router, where it has one of its own.
    RouterNorm: VECTOR,
    /// One row per routed expert.
    Router: MATRIX,
    /// Bias of the router's logits.
    RouterBias: VECTOR,
    /// Correction of the scores by which experts are chosen. It does not affect their weights.
    RouterCorrection: VECTOR,
    /// Factors of the weights of the experts.
    RouterFactors: VECTOR,
    /// The experts of each token, as 64-bit integers.
    ExpertTable: WHOLE,
    /// One number, which multiplies the weights of experts.
    RouterScale: VECTOR,
    /// Matrix to the latent that routed experts read.
    ExpertsDown: MATRIX,
    /// The norm of that latent.
    LatentInputNorm: VECTOR,
    Gate: MATRIX,
    Up: MATRIX,
    /// Matrix to gates and ups.
    GateUp: MATRIX,
    GateBias: VECTOR,
    UpBias: VECTOR,
    GateUpBias: VECTOR,
    Down: MATRIX,
    DownBias: VECTOR,
    /// One number, which multiplies the output of a dense block.
    MlpScale: VECTOR,
    /// The norm of the outputs of routed experts, or of their sum, before it leaves their latent.
    LatentNorm: VECTOR,
    /// Matrix from the sum of the outputs of routed experts in their latent.
    ExpertsUp: MATRIX,
    /// One row: the gate that scales the shared expert's output for each token.
    SharedGate: MATRIX,
    /// The norm of the shared expert's output, where it has one of its own.
    SharedPostNorm: VECTOR,
    /// The norm before the routed experts, where they have one of their own.
    ExpertsNorm: VECTOR,
    /// The convolution of the output of the feed-forward block.
    FfnConv: VECTOR,
    /// The norm of the sum of the routed experts.
    ExpertsPostNorm: VECTOR,
    /// The norm of the output of the feed-forward block.
    FfnPostNorm: VECTOR,
    /// The gates of the shares of state and feed-forward block.
    FfnShares: VECTOR,
    /// Matrix to the gates of a layer's own input.
    LayerInputGate: MATRIX,
    /// Matrix from the gated input.
    LayerInputUp: MATRIX,
    /// The norm of the branch that a layer's own input adds to the hidden state.
    LayerInputNorm: VECTOR,
    /// One number, which multiplies the hidden state.
    StateScale: VECTOR,
    /// The rows that compute the weights of streams before the final norm.
    HeadStreams: VECTOR,
    HeadStreamsBase: VECTOR,
    HeadStreamsScale: VECTOR,
    /// The norm of kept states, and the row of their mix, for the final norm.
    HeadMixNorm: VECTOR,
    HeadMix: VECTOR,
    FinalNorm: VECTOR,
    FinalNormBias: VECTOR,
    HeadStreamsDown: MATRIX,
    HeadStreamsUp: MATRIX,
    Head: MATRIX,
    /// One number per token, stored in the piece of the last norm.
    HeadBias: VECTOR,
}

impl Role {
    /// True for a tensor that computes keys or values.
    pub(crate) const fn is_of_keys(self) -> bool {
        self.facts() & OF_KEYS != 0
    }

    /// True for a tensor that multiplies activations; the others are added to them or scale them.
    pub const fn is_matrix(self) -> bool {
        self.facts() & MATRIX != 0
    }

    /// True for 64-bit integers, stored as the bits of twice as many floats.
    pub const fn is_whole(self) -> bool {
        self.facts() & WHOLE != 0
    }

    /// True for integers so large that their halves may be the bits of NaN.
    pub const fn has_any_bits(self) -> bool {
        self.facts() & ANY_BITS != 0
    }
}
