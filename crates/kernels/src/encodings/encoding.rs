//! Names of the encodings, and the way to their facts.

use std::fmt;
use std::str::FromStr;

use super::facts::Facts;
use super::{
    Fp8Scales, GgufBlocks, Int4Groups, Nvfp4Scale, ZerosGroup, bf11, bf12, float, fp7, fp8, gguf,
    int4, mxfp4, nested, nvfp4, q,
};

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
    pub const ALL: [Encoding; 56] = [
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
        Encoding::Gguf(GgufBlocks::Mxfp4),
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
        Encoding::Fp7(Fp8Scales::Squares),
        Encoding::Fp7(Fp8Scales::SquaresBf16),
        Encoding::Fp7(Fp8Scales::SquaresE8m0),
        Encoding::Fp7(Fp8Scales::Rows),
        Encoding::Fp7(Fp8Scales::RowsBf16),
        Encoding::Fp7(Fp8Scales::Whole),
        Encoding::Fp7(Fp8Scales::WholeBf16),
        Encoding::Fp7(Fp8Scales::Thirtytwos),
    ];

    /// What is known of it.
    #[inline(always)]
    pub(super) const fn facts(self) -> &'static Facts {
        match self {
            Encoding::F32 => &float::F32,
            Encoding::F16 => &float::F16,
            Encoding::Bf16 => &float::BF16,
            Encoding::Bf12 => &bf12::FACTS,
            Encoding::Bf11 => &bf11::FACTS,
            Encoding::Nested => &nested::NESTED,
            Encoding::Top => &nested::TOP,
            Encoding::Q8 => &q::Q8,
            Encoding::Q4 => &q::Q4,
            Encoding::Fp8(scales) => &fp8::FACTS[scales as usize],
            Encoding::Fp7(scales) => &fp7::FACTS[scales as usize],
            Encoding::Mxfp4 => &mxfp4::FACTS,
            Encoding::Int4(groups) => int4::facts(groups),
            Encoding::Nvfp4(scale) => &nvfp4::FACTS[scale as usize],
            Encoding::Gguf(blocks) => &gguf::FACTS[blocks as usize],
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an encoding; choose one of f32, f16, bf16, bf12, bf11, nested, q8, q4, fp8, mxfp4, q8_0"
)]
pub struct UnknownEncoding(pub String);

impl FromStr for Encoding {
    type Err = UnknownEncoding;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Encoding::ALL
            .into_iter()
            .find(|e| e.name() == word)
            .ok_or_else(|| UnknownEncoding(word.to_owned()))
    }
}
