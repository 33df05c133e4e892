//! The types of numbers in checkpoints.

use std::fmt;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use sws_kernels::Encoding;
use sws_kernels::GgufBlocks;

/// The type of a tensor's numbers in a checkpoint, spelled as in safetensors files and manifests.
#[expect(non_camel_case_types, reason = "the spelling in files")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dtype {
    /// Truth value in a byte.
    BOOL,
    /// e2m1, two in a byte.
    F4,
    /// e2m3, four in three bytes.
    F6_E2M3,
    /// e3m2, four in three bytes.
    F6_E3M2,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// e5m2.
    F8_E5M2,
    /// e4m3, without infinities.
    F8_E4M3,
    /// A power of two.
    F8_E8M0,
    /// e4m3 without infinities and negative zero.
    F8_E4M3FNUZ,
    /// e5m2 without infinities and negative zero.
    F8_E5M2FNUZ,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 16 bits.
    U16,
    /// Half precision.
    F16,
    /// The upper half of [`F32`](Dtype::F32).
    BF16,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Single precision.
    F32,
    /// Complex, two of [`F32`](Dtype::F32).
    C64,
    /// Double precision.
    F64,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// Blocks of 32 or 256 numbers along a row with their scales; this and all below in GGUF files
    /// only.
    Q4_0,
    /// See [`GgufBlocks::Q4_1`].
    Q4_1,
    /// See [`GgufBlocks::Q5_0`].
    Q5_0,
    /// See [`GgufBlocks::Q5_1`].
    Q5_1,
    /// See [`GgufBlocks::Q8_0`].
    Q8_0,
    /// See [`GgufBlocks::Q2K`].
    Q2_K,
    /// See [`GgufBlocks::Q3K`].
    Q3_K,
    /// See [`GgufBlocks::Q4K`].
    Q4_K,
    /// See [`GgufBlocks::Q5K`].
    Q5_K,
    /// See [`GgufBlocks::Q6K`].
    Q6_K,
    /// See [`GgufBlocks::Iq4Nl`].
    IQ4_NL,
    /// See [`GgufBlocks::Iq4Xs`].
    IQ4_XS,
    /// See [`GgufBlocks::Iq1S`].
    IQ1_S,
    /// See [`GgufBlocks::Iq1M`].
    IQ1_M,
    /// See [`GgufBlocks::Iq2Xxs`].
    IQ2_XXS,
    /// See [`GgufBlocks::Iq2Xs`].
    IQ2_XS,
    /// See [`GgufBlocks::Iq2S`].
    IQ2_S,
    /// See [`GgufBlocks::Iq3Xxs`].
    IQ3_XXS,
    /// See [`GgufBlocks::Iq3S`].
    IQ3_S,
    /// See [`GgufBlocks::Tq1_0`].
    TQ1_0,
    /// See [`GgufBlocks::Tq2_0`].
    TQ2_0,
    /// See [`GgufBlocks::Mxfp4`].
    MXFP4,
    /// See [`GgufBlocks::Nvfp4`].
    NVFP4,
}

impl Dtype {
    /// The encoding of a tensor of this type by itself, without scales in another tensor; `None` if
    /// no kernel supports it.
    pub(crate) fn encoding(self) -> Option<Encoding> {
        match self {
            Dtype::F32 => Some(Encoding::F32),
            Dtype::F16 => Some(Encoding::F16),
            Dtype::BF16 => Some(Encoding::Bf16),
            _ => self.blocks().map(Encoding::Gguf),
        }
    }

    /// The block format of a type whose numbers are stored in blocks with scales.
    pub(crate) const fn blocks(self) -> Option<GgufBlocks> {
        match self {
            Dtype::Q4_0 => Some(GgufBlocks::Q4_0),
            Dtype::Q4_1 => Some(GgufBlocks::Q4_1),
            Dtype::Q5_0 => Some(GgufBlocks::Q5_0),
            Dtype::Q5_1 => Some(GgufBlocks::Q5_1),
            Dtype::Q8_0 => Some(GgufBlocks::Q8_0),
            Dtype::Q2_K => Some(GgufBlocks::Q2K),
            Dtype::Q3_K => Some(GgufBlocks::Q3K),
            Dtype::Q4_K => Some(GgufBlocks::Q4K),
            Dtype::Q5_K => Some(GgufBlocks::Q5K),
            Dtype::Q6_K => Some(GgufBlocks::Q6K),
            Dtype::IQ4_NL => Some(GgufBlocks::Iq4Nl),
            Dtype::IQ4_XS => Some(GgufBlocks::Iq4Xs),
            Dtype::IQ1_S => Some(GgufBlocks::Iq1S),
            Dtype::IQ1_M => Some(GgufBlocks::Iq1M),
            Dtype::IQ2_XXS => Some(GgufBlocks::Iq2Xxs),
            Dtype::IQ2_XS => Some(GgufBlocks::Iq2Xs),
            Dtype::IQ2_S => Some(GgufBlocks::Iq2S),
            Dtype::IQ3_XXS => Some(GgufBlocks::Iq3Xxs),
            Dtype::IQ3_S => Some(GgufBlocks::Iq3S),
            Dtype::TQ1_0 => Some(GgufBlocks::Tq1_0),
            Dtype::TQ2_0 => Some(GgufBlocks::Tq2_0),
            Dtype::MXFP4 => Some(GgufBlocks::Mxfp4),
            Dtype::NVFP4 => Some(GgufBlocks::Nvfp4),
            _ => None,
        }
    }

    /// Bits of a number; for a type with blocks, bits of a code.
    pub const fn bits(self) -> u64 {
        use Dtype::*;
        match self {
            IQ1_S | IQ1_M | TQ1_0 => 1,
            Q2_K | IQ2_XXS | IQ2_XS | IQ2_S | TQ2_0 => 2,
            Q3_K | IQ3_XXS | IQ3_S => 3,
            F4 | Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS | MXFP4 | NVFP4 => 4,
            Q5_0 | Q5_1 | Q5_K => 5,
            F6_E2M3 | F6_E3M2 | Q6_K => 6,
            BOOL | U8 | I8 | F8_E5M2 | F8_E4M3 | F8_E8M0 | F8_E4M3FNUZ | F8_E5M2FNUZ | Q8_0 => 8,
            I16 | U16 | F16 | BF16 => 16,
            I32 | U32 | F32 => 32,
            C64 | F64 | I64 | U64 => 64,
        }
    }

    /// Length of a tensor in bytes; `None` if it overflows or is not a whole number. An empty
    /// tensor does not excuse absurd dimensions: the product of its other dimensions must not
    /// overflow either.
    pub fn byte_len(self, shape: &[u64]) -> Option<u64> {
        let mut nonzero = shape.iter().filter(|&&dim| dim > 0);
        let elements = nonzero.try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
        if let Some(blocks) = self.blocks() {
            let block = blocks.cols() as u64;
            let bytes = blocks.bytes() as u64;
            let whole = shape.last().is_some_and(|cols| cols.is_multiple_of(block));
            let len = (elements / block).checked_mul(bytes)?;
            return whole.then_some(if shape.contains(&0) { 0 } else { len });
        }
        let bits = elements.checked_mul(self.bits())?;
        if shape.contains(&0) {
            return Some(0);
        }
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

/// Reads a type that safetensors files can have.
pub(crate) fn of_safetensors<'de, D: Deserializer<'de>>(from: D) -> Result<Dtype, D::Error> {
    match Dtype::deserialize(from)? {
        dtype if dtype.blocks().is_some() => {
            Err(D::Error::custom(format!("the type {dtype} is none of the format's")))
        }
        dtype => Ok(dtype),
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
