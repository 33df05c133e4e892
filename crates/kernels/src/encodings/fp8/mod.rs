//! fp8: codes of e4m3, and their scales in a part of their own.

pub(super) mod decode;
pub(super) mod encode;
pub(super) mod reference;

use super::facts::{Facts, Made, Scales};
use super::{Fp8Scales, MatrixPart, SourceDtype};

impl Fp8Scales {
    /// True for scales that are powers of two.
    const fn is_powers(self) -> bool {
        matches!(self, Fp8Scales::SquaresE8m0 | Fp8Scales::Thirtytwos)
    }

    /// Rows that share scales.
    pub(super) const fn rows(self) -> usize {
        if self.is_squares() { 128 } else { 1 }
    }

    /// The first part from `part` on that is not filled with zeros where weights need no values.
    pub(super) const fn powers_from(self, part: usize) -> Option<usize> {
        if self.is_powers() { Some(part) } else { None }
    }

    /// The name of the encoding with codes of a byte each, and its part with the scales.
    const fn named(self) -> (&'static str, MatrixPart) {
        /// A row has one unit, however long.
        const ROW: u64 = u64::MAX;
        match self {
            Fp8Scales::Squares => ("fp8", MatrixPart::squares("_scale_inv", 4)),
            Fp8Scales::SquaresBf16 => ("fp8_bf16", MatrixPart::squares("_scale_inv", 2)),
            Fp8Scales::SquaresE8m0 => ("fp8_e8m0", MatrixPart::squares("_scale", 1)),
            Fp8Scales::Rows => ("fp8_rows", MatrixPart::rows_of("_scale", ROW, 4)),
            Fp8Scales::RowsBf16 => ("fp8_rows_bf16", MatrixPart::rows_of("_scale", ROW, 2)),
            Fp8Scales::Whole => ("fp8_whole", MatrixPart::shared("_scale", 4)),
            Fp8Scales::WholeBf16 => ("fp8_whole_bf16", MatrixPart::shared("_scale", 2)),
            Fp8Scales::Thirtytwos => ("mxfp8", MatrixPart::rows_of("_scale", 32, 1)),
        }
    }

    /// The part with the scales.
    pub(super) const fn part(self) -> MatrixPart {
        self.named().1
    }
}

/// The parts of each kind.
static PARTS: [[MatrixPart; 2]; Fp8Scales::ALL.len()] = {
    let mut all = [[MatrixPart::rows_of("", 1, 1); 2]; Fp8Scales::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        all[i][1] = Fp8Scales::ALL[i].part();
        i += 1;
    }
    all
};

/// The facts of each kind. The one of DeepSeek V3 is made, too.
pub(super) static FACTS: [Facts; Fp8Scales::ALL.len()] = {
    let mut all = [Facts::new("", &[]); Fp8Scales::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        let kind = Fp8Scales::ALL[i];
        all[i] = Facts {
            row_multiple: kind.rows(),
            made: match kind {
                Fp8Scales::Squares => Made::FromNumbers,
                _ => Made::OnlyRead,
            },
            numbers: Some(SourceDtype::E4m3),
            scales: Scales::OfE4m3 { part: 1, kind },
            powers: kind.powers_from(0),
            ..Facts::new(kind.named().0, &PARTS[i])
        };
        i += 1;
    }
    all
};
