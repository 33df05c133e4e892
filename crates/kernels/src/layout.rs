//! How many bytes each part of an encoded matrix has, and which of them hold which rows.

use std::ops::Range;

use crate::Encoding;

/// One of the runs of bytes that make up an encoded matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What is appended to the tensor's name; empty for the one that keeps it.
    pub suffix: &'static str,
    cut: Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Every `rows` rows (the last group may be smaller) have `count` units of `bytes`, where
    /// `count` is `cols` over `cols_per_unit`, rounded up.
    Rows { rows: u64, cols_per_unit: u64, bytes: u64 },
    /// The codes of bf12: a byte and a nibble a column.
    Bf12Codes,
    /// The exponents of bf12.
    Table,
    /// The patches of bf12.
    Patches,
}

/// The bytes of the exponent table of a bf12 matrix.
pub(crate) const TABLE_LEN: usize = 16;

/// How long a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartLen {
    /// Exactly so many bytes.
    Exact(u64),
    /// So many bytes and one more for each escape, known only once the matrix is encoded.
    AtLeast(u64),
}

/// What of a part is needed for a range of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartRows {
    /// These bytes of it.
    Bytes(Range<u64>),
    /// All of it.
    Whole,
}

const fn plain(suffix: &'static str, cols_per_unit: u64, bytes: u64) -> Part {
    Part { suffix, cut: Cut::Rows { rows: 1, cols_per_unit, bytes } }
}

impl Encoding {
    /// The parts of a matrix in this encoding, in the order in which they are passed around.
    pub const fn parts(self) -> &'static [Part] {
        const F32: &[Part] = &[plain("", 1, 4)];
        const HALF: &[Part] = &[plain("", 1, 2)];
        const BF12: &[Part] = &[
            Part { suffix: ".codes", cut: Cut::Bf12Codes },
            Part { suffix: ".table", cut: Cut::Table },
            Part { suffix: ".patches", cut: Cut::Patches },
        ];
        const Q8: &[Part] = &[plain(".codes", 1, 1), plain(".scales", 64, 2)];
        const Q4: &[Part] = &[plain(".codes", 2, 1), plain(".scales", 64, 2)];
        const FP8: &[Part] = &[
            plain("", 1, 1),
            Part {
                suffix: "_scale_inv",
                cut: Cut::Rows { rows: 128, cols_per_unit: 128, bytes: 4 },
            },
        ];
        const MXFP4: &[Part] = &[plain("_blocks", 32, 16), plain("_scales", 32, 1)];
        match self {
            Encoding::F32 => F32,
            Encoding::F16 | Encoding::Bf16 => HALF,
            Encoding::Bf12 => BF12,
            Encoding::Q8 => Q8,
            Encoding::Q4 => Q4,
            Encoding::Fp8 => FP8,
            Encoding::Mxfp4 => MXFP4,
        }
    }

    /// Rows are encoded in blocks of a multiple of this many (the last block may be smaller).
    pub const fn row_multiple(self) -> usize {
        match self {
            Encoding::Fp8 => 128,
            _ => 1,
        }
    }

    /// Whether a weight may differ from the one it was made from.
    pub const fn is_lossy(self) -> bool {
        matches!(self, Encoding::Q8 | Encoding::Q4 | Encoding::Fp8 | Encoding::Mxfp4)
    }
}

impl Part {
    /// The length of this part in a matrix of this shape; `None` if it exceeds 2⁶⁴.
    pub fn len(&self, rows: u64, cols: u64) -> Option<PartLen> {
        match self.cut {
            Cut::Table => Some(PartLen::Exact(TABLE_LEN as u64)),
            Cut::Patches => Some(PartLen::AtLeast(rows.checked_add(1)?.checked_mul(4)?)),
            Cut::Rows { .. } | Cut::Bf12Codes => {
                Some(PartLen::Exact(self.step_bytes(cols)?.checked_mul(self.steps(rows))?))
            }
        }
    }

    /// What of this part is needed for these rows; `None` if it exceeds 2⁶⁴.
    pub fn rows(&self, rows: Range<u64>, cols: u64) -> Option<PartRows> {
        if self.is_whole() {
            return Some(PartRows::Whole);
        }
        let step = self.step_bytes(cols)?;
        let first = rows.start / self.step_rows();
        let end = self.steps(rows.end).max(first);
        Some(PartRows::Bytes(step.checked_mul(first)?..step.checked_mul(end)?))
    }

    /// Whether any range of rows needs all of this part.
    pub fn is_whole(&self) -> bool {
        matches!(self.cut, Cut::Table | Cut::Patches)
    }

    /// How many rows share the part's smallest cut.
    pub(crate) fn step_rows(&self) -> u64 {
        match self.cut {
            Cut::Rows { rows, .. } => rows,
            _ => 1,
        }
    }

    fn steps(&self, rows: u64) -> u64 {
        rows.div_ceil(self.step_rows())
    }

    /// The bytes of one row, or of one group of rows where they share.
    fn step_bytes(&self, cols: u64) -> Option<u64> {
        match self.cut {
            Cut::Rows { cols_per_unit, bytes, .. } => {
                cols.div_ceil(cols_per_unit).checked_mul(bytes)
            }
            Cut::Bf12Codes => cols.checked_add(cols.div_ceil(2)),
            Cut::Table | Cut::Patches => Some(0),
        }
    }
}
