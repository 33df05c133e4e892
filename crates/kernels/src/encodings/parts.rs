//! Lengths of the parts of an encoded matrix, and the rows that their bytes belong to.

use std::ops::Range;

use super::Offsets;

/// One of the runs of bytes that make up an encoded matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixPart {
    /// Suffix appended to the tensor's name; empty for the part that keeps the name.
    pub suffix: &'static str,
    pub(super) cut: PartCut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartCut {
    /// Each group of `rows` rows (the last may be smaller) has `count` units of `bytes` bytes,
    /// where `count` is `cols` over `cols_per_unit`, rounded up.
    Rows { rows: u64, cols_per_unit: u64, bytes: u64 },
    /// Each block of 64 columns of a row (the last may be smaller) has planes of so many bits for each
    /// column, each in whole bytes.
    Planes { bits: &'static [u64] },
    /// This many bytes that all rows share: a table of exponents, or a scale.
    Shared { bytes: u64 },
    /// This many bytes for each column, which all rows share.
    Columns { bytes: u64 },
    /// Patches, in tiers or not.
    Patches { in_tiers: bool },
}

/// Bytes of the table of exponents of a bf12, bf11 or fp7 matrix.
pub(crate) const TABLE_LEN: usize = 16;

/// Length of a part in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartLen {
    /// Exactly this many bytes.
    Exact(u64),
    /// At least this many bytes, and patches behind them; the total is known only once the matrix is encoded.
    AtLeast(u64),
}

/// The portion of a part that a range of rows needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartRows {
    /// These bytes of the part.
    Bytes(Range<u64>),
    /// The whole part.
    Whole,
}

impl MatrixPart {
    /// Bytes for every so many columns of each row.
    pub(super) const fn rows_of(
        suffix: &'static str,
        cols_per_unit: u64,
        bytes: u64,
    ) -> MatrixPart {
        MatrixPart { suffix, cut: PartCut::Rows { rows: 1, cols_per_unit, bytes } }
    }

    /// Bytes for each block of 128×128.
    pub(super) const fn squares(suffix: &'static str, bytes: u64) -> MatrixPart {
        MatrixPart { suffix, cut: PartCut::Rows { rows: 128, cols_per_unit: 128, bytes } }
    }

    /// Bytes that all rows share.
    pub(super) const fn shared(suffix: &'static str, bytes: u64) -> MatrixPart {
        MatrixPart { suffix, cut: PartCut::Shared { bytes } }
    }

    /// Codes in planes.
    pub(super) const fn planes(bits: &'static [u64]) -> MatrixPart {
        MatrixPart { suffix: ".codes", cut: PartCut::Planes { bits } }
    }

    /// The table of the exponents that have codes.
    pub(super) const TABLE: MatrixPart = MatrixPart::shared(".table", TABLE_LEN as u64);

    /// Patches, in tiers or not.
    pub(super) const fn patches(in_tiers: bool) -> MatrixPart {
        MatrixPart { suffix: ".patches", cut: PartCut::Patches { in_tiers } }
    }

    /// The length of this part in a matrix of this shape; `None` if it exceeds 2⁶⁴.
    pub fn len(&self, rows: u64, cols: u64) -> Option<PartLen> {
        match self.cut {
            PartCut::Shared { bytes } => Some(PartLen::Exact(bytes)),
            PartCut::Columns { bytes } => Some(PartLen::Exact(cols.checked_mul(bytes)?)),
            PartCut::Patches { in_tiers } => {
                Some(PartLen::AtLeast(Offsets::of(in_tiers, cols).len(rows)?))
            }
            PartCut::Rows { .. } | PartCut::Planes { .. } => {
                Some(PartLen::Exact(self.step_bytes(cols)?.checked_mul(self.steps(rows))?))
            }
        }
    }

    /// The portion of this part that `rows` need; `None` if an offset exceeds 2⁶⁴.
    pub fn rows(&self, rows: Range<u64>, cols: u64) -> Option<PartRows> {
        if self.is_whole() {
            return Some(PartRows::Whole);
        }
        let step = self.step_bytes(cols)?;
        let first = rows.start / self.step_rows();
        let end = self.steps(rows.end).max(first);
        Some(PartRows::Bytes(step.checked_mul(first)?..step.checked_mul(end)?))
    }

    /// True if any range of rows needs all of this part.
    pub fn is_whole(&self) -> bool {
        matches!(
            self.cut,
            PartCut::Shared { .. } | PartCut::Columns { .. } | PartCut::Patches { .. }
        )
    }

    /// Number of rows that share the part's smallest unit.
    pub fn step_rows(&self) -> u64 {
        match self.cut {
            PartCut::Rows { rows, .. } => rows,
            _ => 1,
        }
    }

    fn steps(&self, rows: u64) -> u64 {
        rows.div_ceil(self.step_rows())
    }

    /// Bytes of one row, or of one group of rows that share a unit.
    fn step_bytes(&self, cols: u64) -> Option<u64> {
        match self.cut {
            PartCut::Rows { cols_per_unit, bytes, .. } => {
                cols.div_ceil(cols_per_unit).checked_mul(bytes)
            }
            PartCut::Planes { bits } => bits.iter().try_fold(0u64, |sum, bits| {
                let whole = (cols / 64).checked_mul(8 * bits)?;
                sum.checked_add(whole)?.checked_add((cols % 64 * bits).div_ceil(8))
            }),
            PartCut::Shared { .. } | PartCut::Columns { .. } | PartCut::Patches { .. } => Some(0),
        }
    }
}
