//! Encoding of a checkpoint's numbers, and decoding back to them.
//!
//! Rows are encoded in independent blocks, so several threads can work on one tensor:
//! [`Encoder::encode`] is a pure function of a block's bytes, and [`TensorTally`] joins what spans blocks
//! (patches, the error of a lossy encoding) in their order.

mod counts;
mod error;
mod restore;
mod round;
mod rows;

use super::dispatch::encode_rounded;
use super::facts::Made;
use super::parts::TABLE_LEN;
use super::{Encoding, Fp8Scales, OffsetWriter, SourceDtype, bf11, bf12, fp7, nested};

pub use super::bf11::encode::ExponentTiers;
pub use super::bf12::encode::ExponentTable;
pub use counts::ExponentCounts;
pub use error::ErrorSums;
pub(super) use error::{ErrorLanes, magnitude};
pub(super) use round::{SHIFT, Small, round_to_bf16, round_to_f16};
pub use rows::EncodedRows;

/// An error in encoding numbers, or in restoring them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum EncodeError {
    /// The encoding would silently change the numbers, or cannot take them.
    #[error("{from:?} weights can not be kept in {to}; use {} or a lossy encoding", from.encoding())]
    NotFrom {
        /// The type of the given numbers.
        from: SourceDtype,
        to: Encoding,
    },
    /// The encoding is read where a file has it, and never made.
    #[error("weights are not turned into {0}, which is only read; choose another encoding")]
    OnlyRead(Encoding),
    /// A weight for which the lossy encoding has no code.
    #[error(
        "the weight at row {row}, column {col} is infinite or NaN and {encoding} has no code for it"
    )]
    NotFinite {
        encoding: Encoding,
        /// The row, counted from the first of the block.
        row: usize,
        col: usize,
    },
    /// The bytes are not whole rows.
    #[error("{found} bytes are not whole rows of {row} bytes")]
    NotRows {
        /// Number of bytes given.
        found: usize,
        /// Bytes of one row.
        row: usize,
    },
    /// A weight that the narrower type cannot hold exactly.
    #[error("the weight at row {row}, column {col} can not be written as {to:?} without loss")]
    NotExact { to: SourceDtype, row: usize, col: usize },
    /// More patches than a u32 can count.
    #[error("a matrix with more than 4294967295 bytes of patches; keep it in bf16")]
    TooManyEscapes,
}

/// Encodes the rows of one tensor.
#[derive(Clone, Debug)]
pub struct Encoder {
    encoding: Encoding,
    source: SourceDtype,
    cols: usize,
    /// For bf12, bf11 and fp7, the code of each exponent.
    codes: [u8; 256],
    table: Option<[u8; TABLE_LEN]>,
}

impl Encoder {
    /// An encoder for rows of `cols` numbers. bf12, bf11 and fp7 need exponent
    /// tables; see [`Encoder::counted`].
    pub fn new(encoding: Encoding, source: SourceDtype, cols: usize) -> Result<Self, EncodeError> {
        let takes = match encoding.facts().made {
            Made::OnlyRead => return Err(EncodeError::OnlyRead(encoding)),
            Made::FromNumbers => source != SourceDtype::E4m3,
            Made::From(numbers) => source == numbers,
            Made::Counted(_) => false,
        };
        if !takes {
            return Err(EncodeError::NotFrom { from: source, to: encoding });
        }
        Ok(Encoder { encoding, source, cols, codes: [0; 256], table: None })
    }

    /// An encoder from bf16 to bf12, with the exponent table of the whole tensor.
    pub fn bf12(cols: usize, table: ExponentTable) -> Self {
        Encoder {
            encoding: Encoding::Bf12,
            source: SourceDtype::Bf16,
            cols,
            codes: table.codes(),
            table: Some(table.bytes()),
        }
    }

    /// An encoder from bf16 to bf11, with the exponents of the whole tensor.
    pub fn bf11(cols: usize, tiers: ExponentTiers) -> Self {
        Encoder {
            encoding: Encoding::Bf11,
            source: SourceDtype::Bf16,
            cols,
            codes: tiers.codes(),
            table: Some(tiers.bytes()),
        }
    }

    /// An encoder from codes of e4m3 to fp7, with the exponents of the whole tensor.
    pub fn fp7(scales: Fp8Scales, cols: usize, tiers: ExponentTiers) -> Self {
        Encoder {
            encoding: Encoding::Fp7(scales),
            source: SourceDtype::E4m3,
            cols,
            codes: tiers.codes(),
            table: Some(tiers.bytes()),
        }
    }

    /// An encoder to bf12, bf11 or fp7 with the most frequent exponents, and [`Encoder::new`] from bf16 to
    /// all other encodings.
    pub fn counted(
        encoding: Encoding,
        cols: usize,
        histogram: &ExponentCounts,
    ) -> Result<Self, EncodeError> {
        match encoding {
            Encoding::Bf12 => Ok(Self::bf12(cols, ExponentTable::from_histogram(histogram))),
            Encoding::Bf11 => Ok(Self::bf11(cols, ExponentTiers::from_histogram(histogram))),
            Encoding::Fp7(scales) => {
                Ok(Self::fp7(scales, cols, ExponentTiers::from_histogram(histogram)))
            }
            _ => Self::new(encoding, SourceDtype::Bf16, cols),
        }
    }

    /// The encoding of the result.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The bytes of the part that belongs to no row and is known beforehand: the table of bf12,
    /// bf11 or fp7.
    pub fn table(&self) -> Option<[u8; TABLE_LEN]> {
        self.table
    }

    /// Encodes a block of rows, replacing the content of `out`. Every block but the last must have
    /// a multiple of [`Encoding::row_multiple`] rows.
    pub fn encode(&self, rows: &[u8], out: &mut EncodedRows) -> Result<(), EncodeError> {
        out.parts.iter_mut().for_each(Vec::clear);
        out.escapes.clear();
        out.exponents.clear();
        out.error = ErrorSums::default();
        if rows.is_empty() {
            // Without rows, the number of columns does not matter.
            return Ok(());
        }
        let row = self.cols.saturating_mul(self.source.size());
        if row == 0 || !rows.len().is_multiple_of(row) {
            return Err(EncodeError::NotRows { found: rows.len(), row });
        }
        match self.encoding {
            e if e.numbers() == Some(self.source) => out.parts[0].extend_from_slice(rows),
            Encoding::Bf12 => bf12::encode::encode(&self.codes, self.cols, rows, out),
            Encoding::Bf11 => bf11::encode::encode(&self.codes, self.cols, rows, out),
            Encoding::Nested => nested::encode::encode(self.cols, rows, out),
            Encoding::Fp7(_) => fp7::encode::encode(&self.codes, self.cols, rows, out),
            _ => {
                let mut wide = std::mem::take(&mut out.wide);
                self.source.widen(rows, &mut wide);
                let done = self.encode_wide(&wide, out);
                out.wide = wide;
                done?;
            }
        }
        Ok(())
    }

    fn encode_wide(&self, wide: &[f32], out: &mut EncodedRows) -> Result<(), EncodeError> {
        let cols = self.cols;
        if self.encoding == Encoding::F32 {
            out.parts[0].extend(wide.iter().flat_map(|w| w.to_le_bytes()));
            return Ok(());
        }
        // The maximum is checked first, because a search that may end early takes the weights one
        // by one.
        if !magnitude(wide).is_finite() {
            let at = wide.iter().position(|w| !w.is_finite()).unwrap_or_default();
            let row = at / cols;
            let col = at % cols;
            return Err(EncodeError::NotFinite { encoding: self.encoding, row, col });
        }
        encode_rounded(self.encoding, wide, cols, out);
        Ok(())
    }
}

/// Joins what spans the blocks of a tensor. Blocks must be pushed in the order of their rows.
#[derive(Clone, Debug)]
pub struct TensorTally {
    writer: OffsetWriter,
    offsets: Vec<u8>,
    patches: Vec<u8>,
    /// The error so far.
    pub error: ErrorSums,
}

impl TensorTally {
    /// A tally of no rows.
    pub fn new(encoder: &Encoder) -> Self {
        let offsets = encoder.encoding.offsets(encoder.cols as u64);
        let mut writer = OffsetWriter::new(offsets);
        let offsets = writer.push(0).to_vec();
        TensorTally { writer, offsets, patches: Vec::new(), error: ErrorSums::default() }
    }

    /// Adds the next block.
    pub fn push(&mut self, block: &EncodedRows) -> Result<(), EncodeError> {
        let mut end = self.patches.len() as u32;
        for n in &block.escapes {
            end = end.checked_add(*n).ok_or(EncodeError::TooManyEscapes)?;
            self.offsets.extend_from_slice(self.writer.push(end));
        }
        self.patches.extend_from_slice(&block.exponents);
        self.error.add(&block.error);
        Ok(())
    }

    /// Bytes of patches so far, without offsets.
    pub fn escapes(&self) -> usize {
        self.patches.len()
    }

    /// The patches behind their offsets, once all rows are pushed.
    pub fn patches(&self) -> Vec<u8> {
        [&self.offsets[..], &self.patches].concat()
    }
}
