//! nvfp4: codes of e2m1 with an e4m3 scale for 16 columns, and an f32 number of the matrix.

pub(super) mod coded;
pub(super) mod reference;

use super::facts::{Facts, Scales};
use super::{GgufBlocks, MatrixPart};
use crate::scalar::Coding;

/// The facts of each kind.
pub(super) static FACTS: [Facts; 3] = [
    facts("nvfp4", &[PAIRS, SCALES, MatrixPart::shared("_scale_2", 4)]),
    Facts {
        powers: Some(0),
        ..facts("nvfp4_divided", &[PAIRS, SCALES, MatrixPart::shared("_global_scale", 4)])
    },
    Facts {
        scales: Scales::Within,
        ..facts("nvfp4_gguf_scaled", &[BLOCKS, MatrixPart::shared("_scale_2", 4)])
    },
];

const PAIRS: MatrixPart = MatrixPart::rows_of("", 2, 1);
const SCALES: MatrixPart = MatrixPart::rows_of("_scale", 16, 1);
const BLOCKS: MatrixPart = {
    let blocks = GgufBlocks::Nvfp4;
    MatrixPart::rows_of("", blocks.cols() as u64, blocks.bytes() as u64)
};

const fn facts(name: &'static str, parts: &'static [MatrixPart]) -> Facts {
    Facts {
        scales: Scales::ByRows,
        coding: Some(Coding::neighbours(16, Some(12))),
        ..Facts::new(name, parts)
    }
}
