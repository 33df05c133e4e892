//! From a checkpoint's numbers to encoded rows, and back.
//!
//! Rows are encoded in blocks that know nothing of each other, so several threads can work on
//! one tensor: [`Encoder::encode`] is a pure function of a block's bytes, and [`Tally`] puts what
//! spans blocks (the patches of bf12, the error of a lossy encoding) together in their order.

mod bf12;
mod decode;
mod error;
mod mx;
mod quant;

use crate::Encoding;
use crate::reference::{bf16_to_f32, f16_to_f32};

pub use bf12::{ExponentTable, Histogram};
pub use error::ErrorSums;

/// How a checkpoint stores a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl Source {
    /// The bytes of one number.
    pub const fn size(self) -> usize {
        match self {
            Source::F32 => 4,
            Source::F16 | Source::Bf16 => 2,
        }
    }

    /// The name of the encoding that keeps these numbers as they are.
    pub const fn encoding(self) -> Encoding {
        match self {
            Source::F32 => Encoding::F32,
            Source::F16 => Encoding::F16,
            Source::Bf16 => Encoding::Bf16,
        }
    }

    /// Widens to f32, exactly, NaN payloads included.
    fn widen(self, bytes: &[u8], out: &mut Vec<f32>) {
        out.clear();
        match self {
            Source::F32 => {
                out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
            }
            Source::F16 => {
                out.extend(bytes.as_chunks().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b))))
            }
            Source::Bf16 => {
                out.extend(bytes.as_chunks().0.iter().map(|b| bf16_to_f32(u16::from_le_bytes(*b))))
            }
        }
    }
}

/// Why numbers can not be encoded, or not be had back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The encoding would silently change the numbers, or has no way to take them.
    #[error("{from:?} weights can not be kept in {to}; use {} or a lossy encoding", from.encoding())]
    NotFrom {
        /// What there is.
        from: Source,
        /// What was asked for.
        to: Encoding,
    },
    /// A lossy encoding has no code for it.
    #[error(
        "the weight at row {row}, column {col} is infinite or NaN and {encoding} has no code for it"
    )]
    NotFinite {
        /// The encoding.
        encoding: Encoding,
        /// The row, counted from the first of the block.
        row: usize,
        /// The column.
        col: usize,
    },
    /// Bytes that are not whole rows.
    #[error("{found} bytes are not whole rows of {row} bytes")]
    NotRows {
        /// How many bytes there were.
        found: usize,
        /// The bytes of one row.
        row: usize,
    },
    /// A weight that the narrower type can not hold.
    #[error("the weight at row {row}, column {col} can not be written as {to:?} without loss")]
    NotExact {
        /// The type asked for.
        to: Source,
        /// The row.
        row: usize,
        /// The column.
        col: usize,
    },
    /// More escapes than a u32 counts.
    #[error("a matrix with more than 4294967295 bf12 escapes; keep it in bf16")]
    TooManyEscapes,
}

/// Turns rows of one tensor into one encoding.
#[derive(Clone, Debug)]
pub struct Encoder {
    encoding: Encoding,
    source: Source,
    cols: usize,
    /// For bf12, the code of each exponent.
    codes: [u8; 256],
    table: Option<ExponentTable>,
}

/// One encoded block of rows. Reuse it: its buffers are kept.
#[derive(Clone, Debug, Default)]
pub struct EncodedRows {
    /// These rows' bytes of each part that is cut by rows, in the order of [`Encoding::parts`].
    pub parts: [Vec<u8>; 2],
    /// bf12: how many escapes each row has.
    pub escapes: Vec<u32>,
    /// bf12: their exponents.
    pub exponents: Vec<u8>,
    /// What a lossy encoding lost.
    pub error: ErrorSums,
    wide: Vec<f32>,
}

impl Encoder {
    /// An encoder for rows of `cols` numbers. bf12 needs the table of its exponents, see
    /// [`Encoder::bf12`].
    pub fn new(encoding: Encoding, source: Source, cols: usize) -> Result<Self, EncodeError> {
        let takes = match encoding {
            Encoding::F32 => true,
            Encoding::F16 => source == Source::F16,
            Encoding::Bf16 => source == Source::Bf16,
            Encoding::Bf12 => false,
            Encoding::Q8 | Encoding::Q4 | Encoding::Fp8 | Encoding::Mxfp4 => true,
        };
        if !takes {
            return Err(EncodeError::NotFrom { from: source, to: encoding });
        }
        Ok(Encoder { encoding, source, cols, codes: [0; 256], table: None })
    }

    /// An encoder from bf16 to bf12, with the table of the whole tensor.
    pub fn bf12(cols: usize, table: ExponentTable) -> Self {
        Encoder {
            encoding: Encoding::Bf12,
            source: Source::Bf16,
            cols,
            codes: table.codes(),
            table: Some(table),
        }
    }

    /// What it encodes to.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The bytes of the parts that do not belong to any row and are known beforehand: the table
    /// of bf12.
    pub fn table(&self) -> Option<[u8; 16]> {
        self.table.as_ref().map(ExponentTable::bytes)
    }

    /// Encodes a block of rows, replacing what `out` held. Every block but the last has a
    /// multiple of [`Encoding::row_multiple`] rows.
    pub fn encode(&self, rows: &[u8], out: &mut EncodedRows) -> Result<(), EncodeError> {
        out.parts.iter_mut().for_each(Vec::clear);
        out.escapes.clear();
        out.exponents.clear();
        out.error = ErrorSums::default();
        if rows.is_empty() {
            // Whatever number of columns they do not have.
            return Ok(());
        }
        let row = self.cols.saturating_mul(self.source.size());
        if row == 0 || !rows.len().is_multiple_of(row) {
            return Err(EncodeError::NotRows { found: rows.len(), row });
        }
        match self.encoding {
            e if e == self.source.encoding() => out.parts[0].extend_from_slice(rows),
            Encoding::Bf12 => bf12::encode(&self.codes, self.cols, rows, out),
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
        // Asked of all before it is asked of each: a search that may end early takes them one by one.
        if !error::magnitude(wide).is_finite() {
            let at = wide.iter().position(|w| !w.is_finite()).unwrap_or_default();
            let (row, col) = (at / cols, at % cols);
            return Err(EncodeError::NotFinite { encoding: self.encoding, row, col });
        }
        match self.encoding {
            Encoding::Q8 => wide.chunks(cols).for_each(|row| quant::q8_row(row, out)),
            Encoding::Q4 => wide.chunks(cols).for_each(|row| quant::q4_row(row, out)),
            Encoding::Fp8 => wide.chunks(128 * cols).for_each(|rows| mx::fp8(rows, cols, out)),
            Encoding::Mxfp4 => wide.chunks(cols).for_each(|row| mx::mxfp4_row(row, out)),
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 | Encoding::Bf12 => {
                unreachable!("not a lossy encoding")
            }
        }
        Ok(())
    }
}

/// What spans the blocks of a tensor. Push them in the order of their rows.
#[derive(Clone, Debug)]
pub struct Tally {
    offsets: Vec<u32>,
    exponents: Vec<u8>,
    /// The error so far.
    pub error: ErrorSums,
}

impl Default for Tally {
    fn default() -> Self {
        Tally { offsets: vec![0], exponents: Vec::new(), error: ErrorSums::default() }
    }
}

impl Tally {
    /// Adds the next block.
    pub fn push(&mut self, block: &EncodedRows) -> Result<(), EncodeError> {
        let mut end = self.offsets[self.offsets.len() - 1];
        for n in &block.escapes {
            end = end.checked_add(*n).ok_or(EncodeError::TooManyEscapes)?;
            self.offsets.push(end);
        }
        self.exponents.extend_from_slice(&block.exponents);
        self.error.add(&block.error);
        Ok(())
    }

    /// Escapes so far: the memory this holds, one byte each.
    pub fn escapes(&self) -> usize {
        self.exponents.len()
    }

    /// The patches of bf12, when all rows were pushed.
    pub fn patches(&self) -> Vec<u8> {
        let offsets = self.offsets.iter().flat_map(|o| o.to_le_bytes());
        offsets.chain(self.exponents.iter().copied()).collect()
    }
}
