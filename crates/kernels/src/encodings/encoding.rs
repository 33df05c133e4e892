//! The encodings, and the kinds of scales, groups and blocks that some of them have.

/// Storage format of the numbers of a matrix.
///
/// `docs/format.md` draws the bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// bf16 with its exponent packed into four bits: lossless, 12 bits a weight.
    Bf12,
    /// bf16 with its exponent packed into two bits where it is frequent: lossless, 10.7 to 11 bits a
    /// weight.
    Bf11,
    /// bf16 in two planes: four bits a weight that are a [`Top`](Encoding::Top), and what they lack.
    /// Lossless, about 11 bits a weight.
    Nested,
    /// Sign, exponent and the first bit of the mantissa of a bf16, as far as four bits go: lossy.
    Top,
    /// Signed bytes in groups of 64 with a bf16 scale: lossy.
    Q8,
    /// Four-bit codes in groups of 64 with a bf16 scale: lossy.
    Q4,
    /// Codes of e4m3 with scales, as DeepSeek, Qwen and GLM publish.
    Fp8(Fp8Scales),
    /// Codes of e4m3 with their exponents packed into two bits where they are frequent: lossless, 6.7
    /// to 6.9 bits a weight.
    Fp7(Fp8Scales),
    /// e2m1 in blocks of 32 with an e8m0 scale, as gpt-oss publishes.
    Mxfp4,
    /// Codes of four bits with a scale for each group of columns, as GPTQ, AWQ and compressed-tensors
    /// publish.
    Int4(Int4Groups),
    /// e2m1 with an e4m3 scale for 16 weights, and an f32 number of the matrix.
    Nvfp4(Nvfp4Scale),
    /// Blocks of codes and their scales, as in GGUF files.
    Gguf(GgufBlocks),
}

impl Encoding {
    /// Every encoding, in the order in which tables list them.
    pub const ALL: [Encoding; 60] = [
        Encoding::F32,
        Encoding::F16,
        Encoding::Bf16,
        Encoding::Bf12,
        Encoding::Bf11,
        Encoding::Nested,
        Encoding::Top,
        Encoding::Q8,
        Encoding::Q4,
        Encoding::Fp8(Fp8Scales::Squares),
        Encoding::Mxfp4,
        Encoding::Gguf(GgufBlocks::Q8_0),
        Encoding::Gguf(GgufBlocks::Q4_0),
        Encoding::Gguf(GgufBlocks::Q4_1),
        Encoding::Gguf(GgufBlocks::Q5_0),
        Encoding::Gguf(GgufBlocks::Q5_1),
        Encoding::Gguf(GgufBlocks::Q2K),
        Encoding::Gguf(GgufBlocks::Q3K),
        Encoding::Gguf(GgufBlocks::Q4K),
        Encoding::Gguf(GgufBlocks::Q5K),
        Encoding::Gguf(GgufBlocks::Q6K),
        Encoding::Gguf(GgufBlocks::Iq4Nl),
        Encoding::Gguf(GgufBlocks::Iq4Xs),
        Encoding::Gguf(GgufBlocks::Iq1S),
        Encoding::Gguf(GgufBlocks::Iq1M),
        Encoding::Gguf(GgufBlocks::Iq2Xxs),
        Encoding::Gguf(GgufBlocks::Iq2Xs),
        Encoding::Gguf(GgufBlocks::Iq2S),
        Encoding::Gguf(GgufBlocks::Iq3Xxs),
        Encoding::Gguf(GgufBlocks::Iq3S),
        Encoding::Gguf(GgufBlocks::Tq1_0),
        Encoding::Gguf(GgufBlocks::Tq2_0),
        Encoding::Gguf(GgufBlocks::Mxfp4),
        Encoding::Gguf(GgufBlocks::Nvfp4),
        Encoding::Fp8(Fp8Scales::SquaresBf16),
        Encoding::Fp8(Fp8Scales::SquaresE8m0),
        Encoding::Fp8(Fp8Scales::Rows),
        Encoding::Fp8(Fp8Scales::RowsBf16),
        Encoding::Fp8(Fp8Scales::Whole),
        Encoding::Fp8(Fp8Scales::WholeBf16),
        Encoding::Fp8(Fp8Scales::Thirtytwos),
        Encoding::Int4(Int4Groups::Symmetric32),
        Encoding::Int4(Int4Groups::Symmetric128),
        Encoding::Int4(Int4Groups::Zeros(ZerosGroup::Of32)),
        Encoding::Int4(Int4Groups::Zeros(ZerosGroup::Of64)),
        Encoding::Int4(Int4Groups::Zeros(ZerosGroup::Of128)),
        Encoding::Int4(Int4Groups::ActOrder(ZerosGroup::Of32)),
        Encoding::Int4(Int4Groups::ActOrder(ZerosGroup::Of64)),
        Encoding::Int4(Int4Groups::ActOrder(ZerosGroup::Of128)),
        Encoding::Nvfp4(Nvfp4Scale::Times),
        Encoding::Nvfp4(Nvfp4Scale::Divided),
        Encoding::Nvfp4(Nvfp4Scale::OfBlocks),
        Encoding::Fp7(Fp8Scales::Squares),
        Encoding::Fp7(Fp8Scales::SquaresBf16),
        Encoding::Fp7(Fp8Scales::SquaresE8m0),
        Encoding::Fp7(Fp8Scales::Rows),
        Encoding::Fp7(Fp8Scales::RowsBf16),
        Encoding::Fp7(Fp8Scales::Whole),
        Encoding::Fp7(Fp8Scales::WholeBf16),
        Encoding::Fp7(Fp8Scales::Thirtytwos),
    ];
}

/// Scales of a matrix of e4m3 codes. Each kind has an encoding as published, and one in which the exponents
/// of the codes are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Scales {
    /// An f32 for each block of 128×128.
    Squares,
    /// A bf16 for each block of 128×128.
    SquaresBf16,
    /// An e8m0 for each block of 128×128.
    SquaresE8m0,
    /// An f32 for each row.
    Rows,
    /// A bf16 for each row.
    RowsBf16,
    /// One f32.
    Whole,
    /// One bf16.
    WholeBf16,
    /// An e8m0 for 32 weights.
    Thirtytwos,
}

impl Fp8Scales {
    /// Every kind, in the order in which tables list them.
    pub const ALL: [Fp8Scales; 8] = [
        Fp8Scales::Squares,
        Fp8Scales::SquaresBf16,
        Fp8Scales::SquaresE8m0,
        Fp8Scales::Rows,
        Fp8Scales::RowsBf16,
        Fp8Scales::Whole,
        Fp8Scales::WholeBf16,
        Fp8Scales::Thirtytwos,
    ];

    /// True for one scale for each block of 128×128.
    pub const fn is_squares(self) -> bool {
        matches!(self, Fp8Scales::Squares | Fp8Scales::SquaresBf16 | Fp8Scales::SquaresE8m0)
    }
}

/// Groups of columns of four-bit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Int4Groups {
    /// Codes less 8, with a bf16 scale for 32 weights.
    Symmetric32,
    /// Codes less 8, with a bf16 scale for 128 weights.
    Symmetric128,
    /// Codes less a zero point, with a scale and a zero point for each group.
    Zeros(ZerosGroup),
    /// The same with as many groups, in which columns lie in any order: act-order.
    ActOrder(ZerosGroup),
}

/// Columns that a scale with a zero point counts for: every so many in a row, or, with act-order,
/// on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZerosGroup {
    /// 32 columns.
    Of32,
    /// 64 columns.
    Of64,
    /// 128 columns.
    Of128,
}

impl ZerosGroup {
    /// Every one.
    pub const ALL: [ZerosGroup; 3] = [ZerosGroup::Of32, ZerosGroup::Of64, ZerosGroup::Of128];
}

/// What the number of an nvfp4 matrix does to its scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nvfp4Scale {
    /// It is a factor.
    Times,
    /// It divides them.
    Divided,
    /// It is a factor of the scales in [blocks](GgufBlocks::Nvfp4).
    OfBlocks,
}

/// Format of a matrix whose rows are runs of blocks: codes, together with the scales that they
/// share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// One of 2048 codebook entries for 8 weights, shifted; scales of three bits for 32 weights.
    Iq1S,
    /// The same, with shifts for 8 weights and scales for 16.
    Iq1M,
    /// One of 256 codebook entries and seven signs for 8 weights; scales of four bits for 32 weights.
    Iq2Xxs,
    /// One of 512 codebook entries and seven signs for 8 weights; scales of four bits for 16 weights.
    Iq2Xs,
    /// One of 1024 codebook entries and eight signs for 8 weights; scales of four bits for 16 weights.
    Iq2S,
    /// One of 256 codebook entries for 4 weights, seven signs for 8; scales of four bits for 32 weights.
    Iq3Xxs,
    /// One of 512 codebook entries for 4 weights, eight signs for 8; scales of four bits for 32 weights.
    Iq3S,
    /// -1, 0 or 1, five of them in a byte, and a scale for 256 weights.
    Tq1_0,
    /// Two bits and a scale for 256 weights.
    Tq2_0,
    /// e2m1 in blocks of 32 with an e8m0 scale, in another order than
    /// [`Encoding::Mxfp4`].
    Mxfp4,
    /// e2m1 with an e4m3 scale without a sign for 16 weights, in another order than
    /// [`Encoding::Nvfp4`].
    Nvfp4,
}

impl GgufBlocks {
    /// Every format, in the order in which tables list them.
    pub const ALL: [GgufBlocks; 23] = [
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
        GgufBlocks::Iq1S,
        GgufBlocks::Iq1M,
        GgufBlocks::Iq2Xxs,
        GgufBlocks::Iq2Xs,
        GgufBlocks::Iq2S,
        GgufBlocks::Iq3Xxs,
        GgufBlocks::Iq3S,
        GgufBlocks::Tq1_0,
        GgufBlocks::Tq2_0,
        GgufBlocks::Mxfp4,
        GgufBlocks::Nvfp4,
    ];
}
