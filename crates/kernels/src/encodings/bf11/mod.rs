//! bf11: signs and mantissas of bf16, planes of codes of two bits for the three most frequent exponents, and
//! patches with those of two more tiers and all others.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod decode;
pub(super) mod encode;
#[cfg(target_arch = "x86_64")]
mod indexes;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(super) mod reference;
pub(super) mod simd;

use super::facts::{Facts, Made, Patches};
use super::{MatrixPart, SourceDtype};
use crate::scalar::BLOCK;

/// Bytes of a whole block: signs and mantissas, and two planes.
pub(super) const BF11_BLOCK: usize = BLOCK + BLOCK / 4;

/// Patches in two tiers and bytes.
pub(super) const PATCHES: Patches = Patches { typical: 9, most: 3, in_tiers: true };

pub(super) const FACTS: Facts = Facts {
    made: Made::Counted(SourceDtype::Bf16),
    is_lossy: false,
    patches: Some(PATCHES),
    ..Facts::new(
        "bf11",
        &[MatrixPart::planes(&[8, 1, 1]), MatrixPart::TABLE, MatrixPart::patches(PATCHES.in_tiers)],
    )
};
