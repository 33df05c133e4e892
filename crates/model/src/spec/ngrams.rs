//! Tables whose rows are chosen by the last few tokens.

/// Rows of a table that n-grams of tokens choose. Each residual stream gets their value before the
/// mixer, by a gate of its own, and a convolution of the values of earlier tokens.
///
/// The rows of a token follow from the tokens alone, so all of a pass are known before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramSpec {
    /// Tokens of the longest n-gram. There are rows for each length from 2 on.
    pub size: usize,
    /// Rows for each length.
    pub heads: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Values that the convolution sees, `size` tokens apart.
    pub taps: usize,
    /// The token that ends a text. No n-gram reaches over it, and it stands for all tokens before.
    pub end: u32,
    /// Rows of each part of the table.
    pub parts: Vec<usize>,
}

impl NgramSpec {
    /// Rows of a token.
    pub fn rows(&self) -> usize {
        (self.size - 1) * self.heads
    }

    /// Elements of the rows of a token.
    pub fn width(&self) -> usize {
        self.rows() * self.dim
    }

    /// Rows of the table.
    pub fn table_rows(&self) -> usize {
        self.parts.iter().sum()
    }

    /// Numbers that are remembered of streams of `width` elements together: inputs of the
    /// convolution, then the tokens that n-grams begin with.
    pub(crate) fn past(&self, width: usize) -> usize {
        self.conv_past(width) + self.size - 1
    }

    /// Those of the convolution alone.
    pub(crate) fn conv_past(&self, width: usize) -> usize {
        (self.taps - 1) * self.size * width
    }
}
