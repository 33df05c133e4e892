//! Names of the encodings.

use std::fmt;
use std::str::FromStr;

use crate::reference::Coding;
use crate::{Fp8Scales, GgufBlocks, Published};

/// Storage format of the numbers of a matrix.
///
/// `docs/format.md` draws the bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// e4m3 with one f32 scale per 128×128 block, as DeepSeek, Qwen and GLM publish.
    Fp8,
    /// e2m1 in blocks of 32 with an e8m0 scale, as gpt-oss publishes.
    Mxfp4,
    /// Codes of e4m3 with their exponents packed into two bits where they are frequent: lossless, 6.7
    /// to 6.9 bits a weight.
    Fp7(Fp8Scales),
    /// Blocks of codes and their scales, as in GGUF files.
    Gguf(GgufBlocks),
    /// Codes with scales beside them, as other quantised checkpoints publish.
    Published(Published),
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
        Encoding::Fp8,
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
        Encoding::Published(Published::Fp8Bf16),
        Encoding::Published(Published::Fp8E8m0),
        Encoding::Published(Published::Fp8Rows),
        Encoding::Published(Published::Fp8RowsBf16),
        Encoding::Published(Published::Fp8Whole),
        Encoding::Published(Published::Fp8WholeBf16),
        Encoding::Published(Published::Mxfp8),
        Encoding::Published(Published::Int4),
        Encoding::Published(Published::Int4By128),
        Encoding::Published(Published::Int4Zeros32),
        Encoding::Published(Published::Int4Zeros64),
        Encoding::Published(Published::Int4Zeros128),
        Encoding::Published(Published::Int4ActOrder32),
        Encoding::Published(Published::Int4ActOrder64),
        Encoding::Published(Published::Int4ActOrder128),
        Encoding::Published(Published::Nvfp4),
        Encoding::Published(Published::Nvfp4Divided),
        Encoding::Fp7(Fp8Scales::Squares),
        Encoding::Fp7(Fp8Scales::SquaresBf16),
        Encoding::Fp7(Fp8Scales::SquaresE8m0),
        Encoding::Fp7(Fp8Scales::Rows),
        Encoding::Fp7(Fp8Scales::RowsBf16),
        Encoding::Fp7(Fp8Scales::Whole),
        Encoding::Fp7(Fp8Scales::WholeBf16),
        Encoding::Fp7(Fp8Scales::Thirtytwos),
    ];

    /// The version of the [arithmetic](crate::ARITHMETIC) that last changed products with such a matrix.
    /// Its bits are the same in all later ones.
    pub const fn arithmetic(self) -> u32 {
        match Coding::of(self) {
            Some(_) => 2,
            None => 1,
        }
    }

    /// The name used on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::F16 => "f16",
            Encoding::Bf16 => "bf16",
            Encoding::Bf12 => "bf12",
            Encoding::Bf11 => "bf11",
            Encoding::Nested => "nested",
            Encoding::Top => "top",
            Encoding::Q8 => "q8",
            Encoding::Q4 => "q4",
            Encoding::Fp8 => "fp8",
            Encoding::Mxfp4 => "mxfp4",
            Encoding::Fp7(scales) => scales.packed_name(),
            Encoding::Gguf(blocks) => blocks.name(),
            Encoding::Published(layout) => layout.name(),
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
