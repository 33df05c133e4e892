//! fp7: signs and mantissas of e4m3 in nibbles, planes of codes for exponents and patches as in bf11, and the
//! scales as published.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod decode;
pub(super) mod encode;
pub(super) mod reference;
pub(super) mod simd;

use super::facts::{Facts, Made, Patches, Scales};
use super::{Fp8Scales, MatrixPart, SourceDtype, bf11};
use crate::scalar::BLOCK;

/// Bytes of a whole block: nibbles and two planes.
const FP7_BLOCK: usize = BLOCK / 2 + BLOCK / 4;

/// Place of the nibble that bit `at` of the planes belongs to: halves of whole blocks lie beside each other.
const fn nibble_place(at: usize, n: usize) -> usize {
    if n == BLOCK { 2 * (at % 32) + at / 32 } else { at }
}

const fn name(kind: Fp8Scales) -> &'static str {
    match kind {
        Fp8Scales::Squares => "fp7",
        Fp8Scales::SquaresBf16 => "fp7_bf16",
        Fp8Scales::SquaresE8m0 => "fp7_e8m0",
        Fp8Scales::Rows => "fp7_rows",
        Fp8Scales::RowsBf16 => "fp7_rows_bf16",
        Fp8Scales::Whole => "fp7_whole",
        Fp8Scales::WholeBf16 => "fp7_whole_bf16",
        Fp8Scales::Thirtytwos => "mxfp7",
    }
}

/// Like those of bf11.
const PATCHES: Patches = Patches { most: 5, ..bf11::PATCHES };

/// The parts of each kind: those of bf11, and the scales of the codes.
static PARTS: [[MatrixPart; 4]; Fp8Scales::ALL.len()] = {
    let mut all = [[MatrixPart::TABLE; 4]; Fp8Scales::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = [
            MatrixPart::planes(&[4, 1, 1]),
            MatrixPart::TABLE,
            MatrixPart::patches(PATCHES.in_tiers),
            Fp8Scales::ALL[i].part(),
        ];
        i += 1;
    }
    all
};

/// The facts of each kind.
pub(super) static FACTS: [Facts; Fp8Scales::ALL.len()] = {
    let mut all = [Facts::new("", &[]); Fp8Scales::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        let kind = Fp8Scales::ALL[i];
        all[i] = Facts {
            row_multiple: kind.rows(),
            made: Made::Counted(SourceDtype::E4m3),
            is_lossy: false,
            patches: Some(PATCHES),
            scales: Scales::OfE4m3 { part: 3, kind },
            powers: kind.powers_from(3),
            ..Facts::new(name(kind), &PARTS[i])
        };
        i += 1;
    }
    all
};
