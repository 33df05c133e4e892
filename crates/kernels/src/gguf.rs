//! The block formats of GGUF files.

/// Format of a matrix whose rows are runs of blocks: codes, together with the scales that they
/// share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GgufBlocks {
    /// Four bits and a scale for 32 weights.
    Q4_0,
    /// Four bits, a scale and a minimum for 32 weights.
    Q4_1,
    /// Five bits and a scale for 32 weights.
    Q5_0,
    /// Five bits, a scale and a minimum for 32 weights.
    Q5_1,
    /// Signed bytes and a scale for 32 weights.
    Q8_0,
    /// Two bits; scales and minima of four bits for 16 weights.
    Q2K,
    /// Three bits; scales of six bits for 16 weights.
    Q3K,
    /// Four bits; scales and minima of six bits for 32 weights.
    Q4K,
    /// Five bits; scales and minima of six bits for 32 weights.
    Q5K,
    /// Six bits; scales of eight bits for 16 weights.
    Q6K,
    /// Sixteen uneven values and a scale for 32 weights.
    Iq4Nl,
    /// Sixteen uneven values; scales of six bits for 32 weights.
    Iq4Xs,
    /// e2m1 in blocks of 32 with an e8m0 scale, in another order than
    /// [`Encoding::Mxfp4`](crate::Encoding::Mxfp4).
    Mxfp4,
}

impl GgufBlocks {
    /// Every format, in the order in which tables list them.
    pub const ALL: [GgufBlocks; 13] = [
        GgufBlocks::Q4_0,
        GgufBlocks::Q4_1,
        GgufBlocks::Q5_0,
        GgufBlocks::Q5_1,
        GgufBlocks::Q8_0,
        GgufBlocks::Q2K,
        GgufBlocks::Q3K,
        GgufBlocks::Q4K,
        GgufBlocks::Q5K,
        GgufBlocks::Q6K,
        GgufBlocks::Iq4Nl,
        GgufBlocks::Iq4Xs,
        GgufBlocks::Mxfp4,
    ];

    /// The name used on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            GgufBlocks::Q4_0 => "q4_0",
            GgufBlocks::Q4_1 => "q4_1",
            GgufBlocks::Q5_0 => "q5_0",
            GgufBlocks::Q5_1 => "q5_1",
            GgufBlocks::Q8_0 => "q8_0",
            GgufBlocks::Q2K => "q2_k",
            GgufBlocks::Q3K => "q3_k",
            GgufBlocks::Q4K => "q4_k",
            GgufBlocks::Q5K => "q5_k",
            GgufBlocks::Q6K => "q6_k",
            GgufBlocks::Iq4Nl => "iq4_nl",
            GgufBlocks::Iq4Xs => "iq4_xs",
            GgufBlocks::Mxfp4 => "mxfp4_gguf",
        }
    }

    /// Columns of a block.
    pub const fn cols(self) -> usize {
        match self {
            GgufBlocks::Q4_0
            | GgufBlocks::Q4_1
            | GgufBlocks::Q5_0
            | GgufBlocks::Q5_1
            | GgufBlocks::Q8_0
            | GgufBlocks::Iq4Nl
            | GgufBlocks::Mxfp4 => 32,
            GgufBlocks::Q2K
            | GgufBlocks::Q3K
            | GgufBlocks::Q4K
            | GgufBlocks::Q5K
            | GgufBlocks::Q6K
            | GgufBlocks::Iq4Xs => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            GgufBlocks::Q4_0 | GgufBlocks::Iq4Nl => 18,
            GgufBlocks::Q4_1 => 20,
            GgufBlocks::Q5_0 => 22,
            GgufBlocks::Q5_1 => 24,
            GgufBlocks::Q8_0 => 34,
            GgufBlocks::Q2K => 84,
            GgufBlocks::Q3K => 110,
            GgufBlocks::Q4K => 144,
            GgufBlocks::Q5K => 176,
            GgufBlocks::Q6K => 210,
            GgufBlocks::Iq4Xs => 136,
            GgufBlocks::Mxfp4 => 17,
        }
    }

    /// Offsets in a block of the f16 numbers that scale its weights; none for powers of two.
    pub const fn scales(self) -> &'static [usize] {
        match self {
            GgufBlocks::Q4_0
            | GgufBlocks::Q5_0
            | GgufBlocks::Q8_0
            | GgufBlocks::Iq4Nl
            | GgufBlocks::Iq4Xs => &[0],
            GgufBlocks::Q4_1 | GgufBlocks::Q5_1 | GgufBlocks::Q4K | GgufBlocks::Q5K => &[0, 2],
            GgufBlocks::Q2K => &[80, 82],
            GgufBlocks::Q3K => &[108],
            GgufBlocks::Q6K => &[208],
            GgufBlocks::Mxfp4 => &[],
        }
    }
}
