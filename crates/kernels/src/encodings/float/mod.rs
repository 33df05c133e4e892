//! Plain numbers: f32, f16 and bf16.

pub(super) mod decode;
pub(super) mod reference;

use super::facts::{Facts, Made};
use super::{MatrixPart, SourceDtype};

pub(super) const F32: Facts = Facts {
    made: Made::FromNumbers,
    numbers: Some(SourceDtype::F32),
    is_lossy: false,
    ..Facts::new("f32", &[MatrixPart::rows_of("", 1, 4)])
};

pub(super) const F16: Facts = Facts {
    made: Made::From(SourceDtype::F16),
    numbers: Some(SourceDtype::F16),
    is_lossy: false,
    ..Facts::new("f16", HALF)
};

pub(super) const BF16: Facts = Facts {
    made: Made::From(SourceDtype::Bf16),
    numbers: Some(SourceDtype::Bf16),
    is_lossy: false,
    ..Facts::new("bf16", HALF)
};

const HALF: &[MatrixPart] = &[MatrixPart::rows_of("", 1, 2)];
