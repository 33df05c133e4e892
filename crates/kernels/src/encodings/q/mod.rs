//! q8 and q4: symmetric codes in groups of 64 columns with a bf16 scale.

pub(super) mod coded;
pub(super) mod decode;
pub(super) mod encode;
pub(super) mod int8;
pub(super) mod reference;

use super::MatrixPart;
use super::facts::{Facts, Made, Scales};
use crate::scalar::{CodeForm, Coding, Fours};

const SCALES: MatrixPart = MatrixPart::rows_of(".scales", 64, 2);

pub(super) const Q8: Facts = Facts {
    made: Made::FromNumbers,
    scales: Scales::ByRows,
    form: Some(CodeForm::BYTES),
    ..Facts::new("q8", &[MatrixPart::rows_of(".codes", 1, 1), SCALES])
};

pub(super) const Q4: Facts = Facts {
    made: Made::FromNumbers,
    scales: Scales::ByRows,
    coding: Some(Coding { fours: Fours::Apart, run: 32, less: Some(8) }),
    form: Some(CodeForm { less: 8, ..CodeForm::NIBBLES }),
    ..Facts::new("q4", &[MatrixPart::rows_of(".codes", 2, 1), SCALES])
};
