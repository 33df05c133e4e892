//! bf12: signs and mantissas of bf16, codes of four bits for the fifteen most frequent exponents, and patches
//! with the others.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod decode;
pub(super) mod encode;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(super) mod reference;
pub(super) mod simd;

use super::facts::{Facts, Made, Patches};
use super::{MatrixPart, SourceDtype};

const PATCHES: Patches = Patches { typical: 1024, most: 32, in_tiers: false };

pub(super) const FACTS: Facts = Facts {
    made: Made::Counted(SourceDtype::Bf16),
    is_lossy: false,
    patches: Some(PATCHES),
    ..Facts::new(
        "bf12",
        &[MatrixPart::planes(&[8, 4]), MatrixPart::TABLE, MatrixPart::patches(PATCHES.in_tiers)],
    )
};
