//! Ways in which weights that are small whole numbers are summed as codes.

use super::SPAN_COLS;

/// How the weights of an encoding are summed as codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coding {
    pub(crate) fours: Fours,
    /// Columns that share a scale: 16 or 32.
    pub(crate) run: usize,
    /// What codes exceed the numbers by, which scales are multiplied with. None if runs have minima.
    pub(crate) less: Option<u8>,
}

/// The columns of a four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fours {
    /// Neighbours: `4i` to `4i + 3` of a unit.
    Neighbours,
    /// `i`, `16 + i`, `32 + i` and `48 + i` of a unit.
    Apart,
}

impl Fours {
    /// The column of a unit that is number `k` of its four `i`.
    pub(crate) const fn col(self, i: usize, k: usize) -> usize {
        match self {
            Fours::Neighbours => 4 * i + k,
            Fours::Apart => 16 * k + i,
        }
    }

    /// Bits from the code of one column of a four to that of the next, which kernels find in one number
    /// of 32 bits and convert where they are. Activations are divided by the power of two.
    pub(crate) const fn bits(self) -> usize {
        match self {
            Fours::Neighbours => 8,
            Fours::Apart => 4,
        }
    }
}

impl Coding {
    /// That of codes whose fours are neighbours.
    pub(crate) const fn neighbours(run: usize, less: Option<u8>) -> Coding {
        Coding { fours: Fours::Neighbours, run, less }
    }

    /// Runs of a span.
    pub(crate) const fn runs(self) -> usize {
        SPAN_COLS / self.run
    }

    /// What the folded sum of minima is multiplied by.
    pub(crate) const fn factor(self) -> f32 {
        match self.less {
            Some(less) => -(less as f32),
            None => 1.0,
        }
    }
}

/// How codes are multiplied with rounded activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeForm {
    /// What codes exceed the numbers by.
    pub(crate) less: u8,
    /// The largest code.
    pub(crate) most: u8,
    /// True if codes are signed bytes.
    pub(crate) signed: bool,
    /// True if runs have minima.
    pub(crate) minima: bool,
    /// True if whole numbers scale runs of 16 columns.
    pub(crate) runs: bool,
}

impl CodeForm {
    /// Codes of four bits that are the numbers.
    pub(crate) const NIBBLES: CodeForm =
        CodeForm { less: 0, most: 15, signed: false, minima: false, runs: false };

    /// Signed bytes, of magnitudes up to 128.
    pub(crate) const BYTES: CodeForm = CodeForm { signed: true, most: 128, ..CodeForm::NIBBLES };

    /// Codes of [twice e2m1 and 12](super::E2M1_CODES).
    pub(crate) const E2M1: CodeForm = CodeForm { less: 12, most: 24, ..CodeForm::NIBBLES };
}
