//! N-gram tables, whose rows are selected by the last few tokens.

/// An n-gram table. Each residual stream gets a value computed from the selected rows before the
/// mixer, through a gate of its own, and a convolution of the values of earlier tokens.
///
/// The rows depend only on tokens, so all rows of a pass are known before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramSpec {
    /// Number of tokens in the longest n-gram. There are rows for each length from 2 on.
    pub size: usize,
    /// Number of rows selected for each length.
    pub heads: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Number of values that the convolution sees, `size` tokens apart.
    pub taps: usize,
    /// The token that ends a text. N-grams do not extend across it, and it replaces all earlier
    /// tokens.
    pub end: u32,
    /// Rows of each part of the table.
    pub parts: Vec<usize>,
    /// The numbers that determine the rows of a token; `None` if they are tensors of the table.
    pub numbers: Option<NgramNumbers>,
}

/// Numbers that determine the rows of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramNumbers {
    /// The factor of each token of an n-gram, the last one first.
    pub multipliers: Vec<i64>,
    /// Number of rows of each head.
    pub sizes: Vec<i64>,
    /// Number of the first row of each head.
    pub offsets: Vec<i64>,
}

impl NgramSpec {
    /// Number of rows that a token selects.
    pub fn rows(&self) -> usize {
        (self.size - 1) * self.heads
    }

    /// Number of elements in the rows of a token.
    pub fn width(&self) -> usize {
        self.rows() * self.dim
    }

    /// Rows of the table.
    pub fn table_rows(&self) -> usize {
        self.parts.iter().sum()
    }

    /// Number of remembered values, for streams of `width` elements in all: inputs of the
    /// convolution, then the last tokens.
    pub(crate) fn past(&self, width: usize) -> usize {
        self.conv_past(width) + self.size - 1
    }

    /// Number of remembered inputs of the convolution.
    pub(crate) fn conv_past(&self, width: usize) -> usize {
        (self.taps - 1) * self.size * width
    }
}
