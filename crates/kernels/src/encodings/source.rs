//! Number types of checkpoints.

use super::{Encoding, Fp8Scales};
use crate::scalar::{bf16_to_f32, e4m3_to_f32, f16_to_f32};

/// Number type of a tensor in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceDtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Codes of e4m3, whose scales are kept elsewhere.
    E4m3,
}

impl SourceDtype {
    /// Bytes of one number.
    pub const fn size(self) -> usize {
        match self {
            SourceDtype::F32 => 4,
            SourceDtype::F16 | SourceDtype::Bf16 => 2,
            SourceDtype::E4m3 => 1,
        }
    }

    /// The encoding that keeps these numbers unchanged.
    pub const fn encoding(self) -> Encoding {
        match self {
            SourceDtype::F32 => Encoding::F32,
            SourceDtype::F16 => Encoding::F16,
            SourceDtype::Bf16 => Encoding::Bf16,
            SourceDtype::E4m3 => Encoding::Fp8(Fp8Scales::Squares),
        }
    }

    /// Widens to f32 exactly, NaN payloads included.
    pub(super) fn widen(self, bytes: &[u8], out: &mut Vec<f32>) {
        out.clear();
        match self {
            SourceDtype::F32 => {
                out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
            }
            SourceDtype::F16 => {
                out.extend(bytes.as_chunks().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b))))
            }
            SourceDtype::Bf16 => {
                out.extend(bytes.as_chunks().0.iter().map(|b| bf16_to_f32(u16::from_le_bytes(*b))))
            }
            SourceDtype::E4m3 => out.extend(bytes.iter().map(|code| e4m3_to_f32(*code))),
        }
    }
}
