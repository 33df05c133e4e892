//! The types of numbers in checkpoints.

use std::fmt;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

/// Elements of a block of `Q8_0`, and its bytes.
const Q8_0_BLOCK: (u64, u64) = (32, 34);

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
    /// Signed, 8 bits, in blocks of 32 along a row that share a scale; in GGUF files only.
    Q8_0,
}

impl Dtype {
    /// Bits of a number, without those of a scale that it shares with others.
    pub(crate) const fn bits(self) -> u64 {
        use Dtype::*;
        match self {
            F4 => 4,
            F6_E2M3 | F6_E3M2 => 6,
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
        if self == Dtype::Q8_0 {
            let (block, bytes) = Q8_0_BLOCK;
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
        Dtype::Q8_0 => Err(D::Error::custom("the type Q8_0 is none of the format's")),
        dtype => Ok(dtype),
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
