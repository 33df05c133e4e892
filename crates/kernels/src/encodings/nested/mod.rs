//! nested: bf16 as a copy of four bits a weight, the top, and the rest that it lacks.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod decode;
pub(super) mod encode;
pub(super) mod reference;
pub(super) mod simd;

use super::facts::{Facts, Made, Scales};
use super::{MatrixPart, SourceDtype, bf11};
use crate::scalar::BLOCK;

/// Bytes of the rest of a block: the lower four of six bits of each mantissa, then the upper two.
const REST_BLOCK: usize = BLOCK / 2 + BLOCK / 4;
/// Bytes of the top of a block: a code of four bits for each column, then the largest exponent of
/// each half.
const TOP_BLOCK: usize = BLOCK / 2 + 2;

/// The distances of exponents from the largest of their half that have codes in three tiers.
const DISTANCES: [u8; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

pub(super) const NESTED: Facts = Facts {
    made: Made::From(SourceDtype::Bf16),
    is_lossy: false,
    patches: Some(bf11::PATCHES),
    scales: Scales::ByRows,
    ..Facts::new(
        "nested",
        &[
            MatrixPart::rows_of(".rest", BLOCK as u64, REST_BLOCK as u64),
            TOP_PART,
            MatrixPart::patches(bf11::PATCHES.in_tiers),
        ],
    )
};

pub(super) const TOP: Facts = Facts { powers: Some(0), ..Facts::new("top", &[TOP_PART]) };

const TOP_PART: MatrixPart = MatrixPart::rows_of(".top", BLOCK as u64, TOP_BLOCK as u64);
