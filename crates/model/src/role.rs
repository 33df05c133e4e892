//! Roles of tensors in their pieces: one table, with what is asked of each.

/// Multiplies activations.
const MATRIX: u8 = 1;
/// Is added to activations, or scales them.
const VECTOR: u8 = 0;
/// Makes keys or values.
const OF_KEYS: u8 = 2;
/// Consists of whole numbers of 64 bits, which are kept as the bits of twice as many floats.
const WHOLE: u8 = 4;
/// Consists of numbers so large that their halves may be the bits of NaN.
const ANY_BITS: u8 = 8;

/// Declares the roles, in the order of computation, and the facts of each.
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
    /// The norm of embeddings. It lies with those of the first layer.
    EmbeddingNorm: VECTOR,
    /// Rows that tokens choose: one for each token, or others for n-grams.
    Table: MATRIX,
    /// From the embedding to what it gives to all layers. It lies with the first.
    LayerInputs: MATRIX,
    /// The norm of that of each layer.
    LayerInputsNorm: VECTOR,
    /// Whole numbers of 64 bits by which n-grams find their rows: factors of tokens, and of each head
    /// the number of its rows and that of the first.
    NgramMultipliers: WHOLE | ANY_BITS,
    NgramSizes: WHOLE | ANY_BITS,
    NgramOffsets: WHOLE | ANY_BITS,
    /// From the rows of a token to a key for each stream.
    NgramKey: MATRIX,
    /// From the rows of a token to their value.
    NgramValue: MATRIX,
    NgramKeyNorm: VECTOR,
    NgramQueryNorm: VECTOR,
    NgramConvNorm: VECTOR,
    /// [elements of all streams, taps]
    NgramConv: VECTOR,
    /// The norms of streams before their gates are made.
    MixerStreamsNorm: VECTOR,
    /// To the latent of gates of streams.
    MixerStreamsDown: MATRIX,
    /// To the weights by which the mixer reads and is added to streams.
    MixerStreams: MATRIX,
    MixerStreamsBase: VECTOR,
    MixerStreamsScale: VECTOR,
    /// From the latent of gates of streams.
    MixerStreamsUp: MATRIX,
    /// The norm of states before the logits by which the mixer reads a mix of them.
    MixerMixNorm: VECTOR,
    /// The row that makes these logits.
    MixerMix: VECTOR,
    /// The norm before the mixer.
    MixerNorm: VECTOR,
    MixerNormBias: VECTOR,
    /// The convolution of its output.
    MixerConv: VECTOR,
    /// The norm of its output.
    MixerPostNorm: VECTOR,
    Query: MATRIX,
    /// To the numbers that make what is added to scores by distances.
    Distance: MATRIX,
    /// To the latent query.
    QueryDown: MATRIX,
    /// To the latent of keys and values, and to the part of a key that is rotated.
    KvDown: MATRIX,
    /// To the rows that entries are pooled from.
    Pool: MATRIX,
    /// To the logits of their weights.
    PoolGate: MATRIX,
    /// The same of an indexer's entries.
    IndexPool: MATRIX,
    IndexPoolGate: MATRIX,
    /// To the key of an indexer.
    IndexKey: MATRIX,
    /// To the weights of an indexer's heads.
    IndexWeights: MATRIX,
    QueryDownNorm: VECTOR,
    /// From the latent query.
    QueryUp: MATRIX,
    /// From the latent query, or the hidden state, to the queries of an indexer.
    IndexQuery: MATRIX,
    /// Queries and the key of an indexer in one matrix.
    IndexMixed: MATRIX,
    KvDownNorm: VECTOR,
    /// Added to the logits: [positions of an entry, elements].
    PoolBias: VECTOR,
    PoolNorm: VECTOR,
    IndexPoolBias: VECTOR,
    IndexPoolNorm: VECTOR,
    IndexKeyNorm: VECTOR,
    IndexKeyNormBias: VECTOR,
    /// One number per head of latent attention.
    LatentSinks: VECTOR,
    /// From the latent: for each head the rows of its keys, then those of its values.
    KvUp: MATRIX,
    /// For each head, from the plain part of its query to the space of latents.
    KeyUp: MATRIX,
    /// From the latent: for each head the rows of its values.
    ValueUp: MATRIX,
    Key: MATRIX | OF_KEYS,
    Value: MATRIX | OF_KEYS,
    /// Queries, keys and values in one matrix.
    Mixed: MATRIX,
    /// The same and the gates, by key heads.
    MixedGate: MATRIX,
    OutputGate: MATRIX,
    /// The share of a correction that is made.
    Beta: MATRIX,
    /// The decays of states before their bias and rate.
    Decay: MATRIX,
    /// To the latent of decays.
    DecayDown: MATRIX,
    /// To the latent of gates.
    OutputGateDown: MATRIX,
    /// From the latent of decays.
    DecayUp: MATRIX,
    /// From the latent of gates.
    OutputGateUp: MATRIX,
    /// Both, by key heads.
    BetaDecay: MATRIX,
    MixedBias: VECTOR,
    /// Of a short convolution: [channels, taps].
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
    /// Of the queries of an indexer of blocks.
    BlockQueryNorm: VECTOR,
    /// Of its keys.
    BlockKeyNorm: VECTOR,
    /// What they are multiplied with: [numbers of a head, distances]
    DistanceRows: VECTOR,
    /// One number per head.
    Sinks: VECTOR,
    /// To the outputs of groups of heads.
    OutputDown: MATRIX,
    Output: MATRIX,
    OutputBias: VECTOR,
    FfnStreamsNorm: VECTOR,
    FfnStreamsDown: MATRIX,
    /// To the weights by which the feed-forward block reads and is added to streams.
    FfnStreams: MATRIX,
    FfnStreamsBase: VECTOR,
    FfnStreamsScale: VECTOR,
    /// The norm of states and the row, of the feed-forward block.
    FfnMixNorm: VECTOR,
    FfnMix: VECTOR,
    FfnStreamsUp: MATRIX,
    /// The norm before the feed-forward block.
    FfnNorm: VECTOR,
    FfnNormBias: VECTOR,
    /// The norm before the router, where it has one of its own.
    RouterNorm: VECTOR,
    /// One row per routed expert.
    Router: MATRIX,
    /// Added to the logits.
    RouterBias: VECTOR,
    /// Added to the scores by which experts are chosen, but not to their weights.
    RouterCorrection: VECTOR,
    /// Multiplied by the weights of the experts.
    RouterFactors: VECTOR,
    /// The experts of each token, whole numbers of 64 bits.
    ExpertTable: WHOLE,
    /// One number, which multiplies the weights of experts.
    RouterScale: VECTOR,
    /// To the latent that routed experts read.
    ExpertsDown: MATRIX,
    Gate: MATRIX,
    Up: MATRIX,
    /// Gate and up in one matrix.
    GateUp: MATRIX,
    GateBias: VECTOR,
    UpBias: VECTOR,
    GateUpBias: VECTOR,
    Down: MATRIX,
    DownBias: VECTOR,
    /// One number, which multiplies the output of a dense block.
    MlpScale: VECTOR,
    /// The norm of the sum of the outputs of routed experts, before it leaves their latent.
    LatentNorm: VECTOR,
    /// From the sum of the outputs of routed experts.
    ExpertsUp: MATRIX,
    /// One row: the gate that scales the shared expert's output for each token.
    SharedGate: MATRIX,
    /// The norm of the shared expert's output, where it has one of its own.
    SharedPostNorm: VECTOR,
    /// The norm before the routed experts, where they have one of their own.
    ExpertsNorm: VECTOR,
    /// The convolution of the output of the feed-forward block.
    FfnConv: VECTOR,
    /// The norm of their sum.
    ExpertsPostNorm: VECTOR,
    /// The norm of the output of the feed-forward block.
    FfnPostNorm: VECTOR,
    /// To the gates of a layer's own input.
    LayerInputGate: MATRIX,
    /// From the gated input.
    LayerInputUp: MATRIX,
    /// The norm of what is added to the hidden state.
    LayerInputNorm: VECTOR,
    /// One number, which multiplies the hidden state.
    StateScale: VECTOR,
    /// The rows that make weights of the streams before the final norm.
    HeadStreams: VECTOR,
    HeadStreamsBase: VECTOR,
    HeadStreamsScale: VECTOR,
    /// The norm of states and the row, of the final norm.
    HeadMixNorm: VECTOR,
    HeadMix: VECTOR,
    FinalNorm: VECTOR,
    FinalNormBias: VECTOR,
    HeadStreamsDown: MATRIX,
    HeadStreamsUp: MATRIX,
    Head: MATRIX,
    /// One number per token. It lies in the piece of the last norm.
    HeadBias: VECTOR,
}

impl Role {
    /// True for a tensor that makes keys or values.
    pub(crate) const fn is_of_keys(self) -> bool {
        self.facts() & OF_KEYS != 0
    }

    /// True for a tensor that multiplies activations; the others are added to them or scale them.
    pub const fn is_matrix(self) -> bool {
        self.facts() & MATRIX != 0
    }

    /// True for whole numbers of 64 bits, which are kept as the bits of twice as many floats.
    pub const fn is_whole(self) -> bool {
        self.facts() & WHOLE != 0
    }

    /// True for whole numbers so large that their halves may be the bits of NaN.
    pub const fn has_any_bits(self) -> bool {
        self.facts() & ANY_BITS != 0
    }
}
