//! What is known of an encoding without a matrix.

use super::{Fp8Scales, MatrixPart, SourceDtype};
use crate::scalar::{CodeForm, Coding};

/// Facts of an encoding. Its folder has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// The name used on the command line and in manifests.
    pub(super) name: &'static str,
    pub(super) parts: &'static [MatrixPart],
    /// Rows are encoded in blocks of a multiple of this many (the last block may be smaller).
    pub(super) row_multiple: usize,
    /// Numbers that are encoded in it.
    pub(super) made: Made,
    /// The type of the numbers of the first part, if each weight has one.
    pub(super) numbers: Option<SourceDtype>,
    /// True if a decoded weight may differ from the original.
    pub(super) is_lossy: bool,
    /// None if rows have no patches.
    pub(super) patches: Option<Patches>,
    pub(super) scales: Scales,
    /// The part that gives the group of each column, if columns are in groups in any order.
    pub(super) order: Option<usize>,
    /// How weights are summed as codes; `None` if each is decoded to f32 first.
    pub(super) coding: Option<Coding>,
    /// How codes are multiplied with rounded activations, if they are.
    pub(super) form: Option<CodeForm>,
    /// The first of the parts that are not filled with zeros where weights need no values.
    pub(super) powers: Option<usize>,
}

/// Numbers that are encoded in an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// None: it is only read, where a file has it.
    OnlyRead,
    /// All that are not codes.
    FromNumbers,
    /// Those of this type.
    From(SourceDtype),
    /// Those of this type, with a table of the exponents of the whole tensor.
    Counted(SourceDtype),
}

/// Patches of an encoding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patches {
    /// Weights for each byte of patches in a trained model, rounded down for safety.
    pub(super) typical: u64,
    /// Weights for each byte of patches, at most.
    pub(super) most: u64,
    /// True if short rows share offsets, and decoders need no end of a row's patches.
    pub(super) in_tiers: bool,
}

/// Scales of the rows of a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scales {
    /// None, or in the first part.
    Within,
    /// The second part, which is split at every row.
    ByRows,
    /// A part of the scales of e4m3.
    OfE4m3 { part: usize, kind: Fp8Scales },
}

impl Facts {
    /// Those of an encoding that is only read, and decoded to f32.
    pub(super) const fn new(name: &'static str, parts: &'static [MatrixPart]) -> Facts {
        Facts {
            name,
            parts,
            row_multiple: 1,
            made: Made::OnlyRead,
            numbers: None,
            is_lossy: true,
            patches: None,
            scales: Scales::Within,
            order: None,
            coding: None,
            form: None,
            powers: None,
        }
    }
}
