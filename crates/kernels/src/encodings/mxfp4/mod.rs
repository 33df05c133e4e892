//! mxfp4: codes of e2m1 in blocks of 32 columns with an e8m0 scale.

pub(super) mod decode;
pub(super) mod encode;
pub(super) mod int8;
pub(super) mod reference;

use super::MatrixPart;
use super::facts::{Facts, Made, Scales};
use crate::scalar::CodeForm;

pub(super) const FACTS: Facts = Facts {
    made: Made::FromNumbers,
    scales: Scales::ByRows,
    form: Some(CodeForm::E2M1),
    powers: Some(0),
    ..Facts::new(
        "mxfp4",
        &[MatrixPart::rows_of("_blocks", 32, 16), MatrixPart::rows_of("_scales", 32, 1)],
    )
};
