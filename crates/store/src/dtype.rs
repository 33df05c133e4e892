//! The types of numbers in checkpoints.

use std::fmt;

use serde::{Deserialize, Serialize};

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
}

impl Dtype {
    /// Bits of a number.
    pub(crate) const fn bits(self) -> u64 {
        use Dtype::*;
        match self {
            F4 => 4,
            F6_E2M3 | F6_E3M2 => 6,
            BOOL | U8 | I8 | F8_E5M2 | F8_E4M3 | F8_E8M0 | F8_E4M3FNUZ | F8_E5M2FNUZ => 8,
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
        let bits = elements.checked_mul(self.bits())?;
        if shape.contains(&0) {
            return Some(0);
        }
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
