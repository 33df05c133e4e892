//! nvfp4: codes of e2m1 with an e4m3 scale for 16 columns, and an f32 number of the matrix.

pub(super) mod coded;
pub(super) mod reference;

use super::MatrixPart;
use super::facts::{Facts, Scales};
use crate::scalar::Coding;

/// The facts of each kind.
pub(super) static FACTS: [Facts; 2] = [
    facts("nvfp4", &[PAIRS, SCALES, MatrixPart::shared("_scale_2", 4)]),
    Facts {
        powers: Some(0),
        ..facts("nvfp4_divided", &[PAIRS, SCALES, MatrixPart::shared("_global_scale", 4)])
    },
];

const PAIRS: MatrixPart = MatrixPart::rows_of("", 2, 1);
const SCALES: MatrixPart = MatrixPart::rows_of("_scale", 16, 1);

const fn facts(name: &'static str, parts: &'static [MatrixPart]) -> Facts {
    Facts {
        scales: Scales::ByRows,
        coding: Some(Coding::neighbours(16, Some(12))),
        ..Facts::new(name, parts)
    }
}
