//! A borrowed, validated view of an encoded matrix.

use std::ops::Range;

use super::facts::Scales;
use super::parts::TABLE_LEN;
use super::{Encoding, Fp8Scales, PartLen, PartRows};

/// An encoded matrix, or a block of its rows, in borrowed bytes.
///
/// The bytes may be at any address and may have any value. Lengths are checked when the view is
/// made; anything else that is wrong gives defined numbers, never an access out of bounds.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    encoding: Encoding,
    rows: usize,
    cols: usize,
    /// Offset of this view's first row in the parts that are not split at every row.
    first_row: usize,
    /// Bytes of the offsets before the patches, which are those of all rows.
    offsets_len: usize,
    /// Bytes per row of the parts that are split at every row. Stored because a division per row
    /// costs too much when rows are short.
    steps: [usize; 2],
    parts: [&'a [u8]; Encoding::MOST_PARTS],
}

/// An error in the bytes or the shape of a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MatrixError {
    /// The number of parts does not match the encoding.
    #[error("a {encoding} matrix has {expected} parts, not {found}")]
    PartCount {
        encoding: Encoding,
        /// Number of parts of the encoding.
        expected: usize,
        /// Number of parts given.
        found: usize,
    },
    /// A part has the wrong length.
    #[error(
        "the {} of a {encoding} matrix of {rows} x {cols} have {found} bytes instead of {expected}",
        if suffix.is_empty() { "weights" } else { suffix.trim_start_matches(['.', '_']) }
    )]
    PartLength {
        encoding: Encoding,
        /// Rows of the matrix or block.
        rows: usize,
        cols: usize,
        /// Suffix of the part.
        suffix: &'static str,
        /// Required length; for patches the minimum.
        expected: u64,
        found: usize,
    },
    /// The shape is larger than any memory.
    #[error("a {encoding} matrix of {rows} x {cols} is larger than any memory")]
    TooLarge { encoding: Encoding, rows: usize, cols: usize },
    /// The requested rows are not in the matrix.
    #[error("rows {start} to {end} are not in a matrix of {rows} rows")]
    NoSuchRows {
        start: usize,
        /// The row after the last one requested.
        end: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// The patches of a row do not match its codes.
    #[error("row {row} needs patches of {codes} bytes and has {patches}")]
    Patches {
        row: usize,
        /// Bytes of the patches that its codes need.
        codes: usize,
        /// Bytes of its patches.
        patches: usize,
    },
}

impl<'a> Matrix<'a> {
    /// Views a whole matrix, given its parts in the order of [`Encoding::parts`].
    pub fn new(
        encoding: Encoding,
        rows: usize,
        cols: usize,
        parts: &[&'a [u8]],
    ) -> Result<Self, MatrixError> {
        Self::block(encoding, rows, cols, 0..rows, parts)
    }

    /// Views the rows `range` of a matrix of `rows × cols`. Each part is given as
    /// [`MatrixPart::rows`](crate::MatrixPart::rows) says: the bytes of these rows, or the whole part.
    pub fn block(
        encoding: Encoding,
        rows: usize,
        cols: usize,
        range: Range<usize>,
        parts: &[&'a [u8]],
    ) -> Result<Self, MatrixError> {
        let kinds = encoding.parts();
        if kinds.len() != parts.len() {
            return Err(MatrixError::PartCount {
                encoding,
                expected: kinds.len(),
                found: parts.len(),
            });
        }
        if range.start > range.end || range.end > rows {
            return Err(MatrixError::NoSuchRows { start: range.start, end: range.end, rows });
        }
        let too_large = MatrixError::TooLarge { encoding, rows, cols };
        // The decoded f32 matrix must be addressable too, or index arithmetic could wrap.
        let padded = cols.checked_next_multiple_of(64).map(|cols| cols.max(1));
        let decoded = padded.and_then(|cols| rows.max(1).checked_mul(cols)?.checked_mul(4));
        if decoded.is_none_or(|n| n > isize::MAX as usize) {
            return Err(too_large);
        }
        let mut held: [&[u8]; Encoding::MOST_PARTS] = [&[]; Encoding::MOST_PARTS];
        for ((kind, part), held) in kinds.iter().zip(parts).zip(&mut held) {
            let found = part.len();
            let wide = range.start as u64..range.end as u64;
            let (expected, fits) = match kind.rows(wide, cols as u64) {
                Some(PartRows::Bytes(bytes)) => {
                    let n = bytes.end - bytes.start;
                    (n, n == found as u64)
                }
                Some(PartRows::Whole) => match kind.len(rows as u64, cols as u64) {
                    Some(PartLen::Exact(n)) => (n, n == found as u64),
                    Some(PartLen::AtLeast(n)) => (n, n <= found as u64),
                    None => return Err(too_large),
                },
                None => return Err(too_large),
            };
            if !fits {
                return Err(MatrixError::PartLength {
                    encoding,
                    rows: range.len(),
                    cols,
                    suffix: kind.suffix,
                    expected,
                    found,
                });
            }
            *held = part;
        }
        let first_row = match encoding.has_patches() {
            true => range.start,
            false => range.start % encoding.row_multiple(),
        };
        // `Part::len` has computed it above.
        let offsets = encoding.offsets(cols as u64).len(rows as u64);
        let offsets_len = if encoding.has_patches() { offsets.unwrap_or(0) as usize } else { 0 };
        let steps = [0, 1].map(|part: usize| held[part].len() / range.len().max(1));
        let rows = range.len();
        Ok(Matrix { encoding, rows, cols, first_row, offsets_len, steps, parts: held })
    }

    /// Views a block of these rows, which shares tables and patches with the whole.
    ///
    /// # Panics
    ///
    /// If the rows are not in the matrix.
    pub fn rows(&self, range: Range<usize>) -> Matrix<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {self:?}");
        let mut cut = *self;
        cut.rows = range.len();
        for (kind, part) in self.encoding.parts().iter().zip(&mut cut.parts) {
            let skip = match kind.step_rows() {
                0 | 1 => 0,
                rows => self.first_row % rows as usize,
            };
            let wide = (skip + range.start) as u64..(skip + range.end) as u64;
            // `block` has computed the length of all rows, so that of fewer cannot overflow.
            if let Some(PartRows::Bytes(bytes)) = kind.rows(wide, self.cols as u64) {
                *part = &part[bytes.start as usize..bytes.end as usize];
            }
        }
        let from = self.first_row + range.start;
        cut.first_row = match self.encoding.has_patches() {
            true => from,
            false => from % self.encoding.row_multiple(),
        };
        cut
    }

    /// The encoding of the matrix.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The number of rows in view.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes read when every weight in view is used once.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|p| p.len()).sum()
    }

    pub(crate) fn part(&self, index: usize) -> &'a [u8] {
        self.parts[index]
    }

    /// The bytes of one row in a part that is split at every row.
    #[inline(always)]
    pub(crate) fn row_bytes(&self, part: usize, row: usize) -> &'a [u8] {
        let step = self.steps[part];
        &self.parts[part][row * step..][..step]
    }

    /// The bytes of the scales that a row needs: those of the blocks that it crosses, its own, or
    /// those of all rows. The encoding is a constant when a kernel is compiled.
    #[inline(always)]
    pub(crate) fn scales(&self, encoding: Encoding, row: usize) -> &'a [u8] {
        let Scales::OfE4m3 { part, kind } = encoding.facts().scales else {
            return self.row_bytes(1, row);
        };
        let of = |row: usize, step: usize| &self.parts[part][row * step..][..step];
        let square = |bytes: usize| {
            let first = self.first_row % encoding.row_multiple();
            of((first + row) / 128, bytes * self.cols.div_ceil(128))
        };
        match kind {
            Fp8Scales::Squares => square(4),
            Fp8Scales::SquaresBf16 => square(2),
            Fp8Scales::SquaresE8m0 => square(1),
            Fp8Scales::Rows => of(row, 4),
            Fp8Scales::RowsBf16 => of(row, 2),
            Fp8Scales::Thirtytwos => of(row, self.cols.div_ceil(32)),
            Fp8Scales::Whole | Fp8Scales::WholeBf16 => self.parts[part],
        }
    }

    /// The exponents of a bf12 matrix. That of an escape is 255 until it is patched.
    pub(crate) fn exponents(&self) -> [u8; TABLE_LEN] {
        let mut table = [255; TABLE_LEN];
        table[..15].copy_from_slice(&self.parts[1][..15]);
        table
    }

    /// The exponents of the three tiers of a bf11 or fp7 matrix.
    pub(crate) fn tiers(&self) -> [u8; 9] {
        std::array::from_fn(|i| self.parts[1][i])
    }

    /// The patches of a row in view. Wrong offsets are clamped to the bytes that exist.
    ///
    /// # Panics
    ///
    /// If the row does not exist, or the encoding has no patches.
    pub(crate) fn escapes(&self, row: usize) -> &'a [u8] {
        self.escapes_of(self.encoding, row)
    }

    /// The same, where the encoding is a constant: each row that is multiplied asks for them.
    #[inline(always)]
    fn escapes_of(&self, encoding: Encoding, row: usize) -> &'a [u8] {
        let start = self.offset(encoding, row);
        let end = self.offset(encoding, row + 1);
        let list = &self.parts[2][self.offsets_len..];
        let start = start.min(list.len());
        &list[start..end.clamp(start, list.len())]
    }

    /// The bytes from which a decoder takes the patches of a row: its own in bf12, and also those of
    /// the rows behind it in bf11, nested and fp7, which need no end; empty for other encodings. The encoding
    /// is a constant when a kernel is compiled.
    #[inline(always)]
    pub(crate) fn patches(&self, encoding: Encoding, row: usize) -> &'a [u8] {
        match encoding.facts().patches {
            Some(patches) if patches.in_tiers => {
                let list = &self.parts[2][self.offsets_len..];
                &list[self.offset(encoding, row).min(list.len())..]
            }
            Some(_) => self.escapes_of(encoding, row),
            None => &[],
        }
    }

    #[inline(always)]
    fn offset(&self, encoding: Encoding, row: usize) -> usize {
        let offsets = encoding.offsets(self.cols as u64);
        offsets.get(&self.parts[2][..self.offsets_len], self.first_row + row)
    }
}
