//! What is known of an encoding without a matrix: the answers to everybody's questions.

use super::{Encoding, Fp8Scales, MatrixPart, SourceDtype};
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

impl Encoding {
    /// The most parts that a matrix has.
    pub const MOST_PARTS: usize = 4;

    /// The name used on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The parts of a matrix in this encoding, in the order in which they are passed around.
    pub const fn parts(self) -> &'static [MatrixPart] {
        self.facts().parts
    }

    /// The version of the [arithmetic](crate::ARITHMETIC) that last changed products with such a matrix.
    /// Its bits are the same in all later ones.
    pub const fn arithmetic(self) -> u32 {
        match self.coding() {
            Some(_) => 2,
            None => 1,
        }
    }

    /// Rows are encoded in blocks of a multiple of this many (the last block may be smaller).
    pub const fn row_multiple(self) -> usize {
        self.facts().row_multiple
    }

    /// True if numbers can be encoded in it. Others are only read, where a file has them, or are codes in
    /// fewer bits.
    pub const fn is_made(self) -> bool {
        !matches!(self.facts().made, Made::OnlyRead | Made::Counted(SourceDtype::E4m3))
    }

    /// True if rows have patches, whose number is known only once they are encoded.
    pub const fn has_patches(self) -> bool {
        self.facts().patches.is_some()
    }

    /// Weights for each byte of patches in a trained model, rounded down for safety: in bf12 one in
    /// 5,000 is an escape, and bf11 and nested have .096 bytes for each weight of a Gaussian. No weights are so
    /// many in an encoding without patches.
    pub const fn typical_patches(self) -> u64 {
        match self.facts().patches {
            Some(patches) => patches.typical,
            None => u64::MAX,
        }
    }

    /// True if a decoded weight may differ from the original.
    pub const fn is_lossy(self) -> bool {
        self.facts().is_lossy
    }

    /// The type of the numbers of the first part, if each weight has one: floats, or codes of e4m3.
    pub const fn numbers(self) -> Option<SourceDtype> {
        self.facts().numbers
    }

    /// True for plain floats.
    pub const fn is_plain(self) -> bool {
        matches!(self.numbers(), Some(numbers) if !matches!(numbers, SourceDtype::E4m3))
    }

    /// The numbers that it packs bit for bit, in a length that depends on them: those of bf16, or codes of e4m3
    /// whose scales are its last part.
    pub const fn packs(self) -> Option<SourceDtype> {
        match (self.facts().made, self.facts().patches) {
            (Made::From(numbers) | Made::Counted(numbers), Some(_)) => Some(numbers),
            _ => None,
        }
    }

    /// True if it packs codes of e4m3.
    pub const fn packs_codes(self) -> bool {
        matches!(self.packs(), Some(SourceDtype::E4m3))
    }

    /// Weights for each byte of patches, at most: with more patches it does not gain enough.
    pub const fn most_patches(self) -> u64 {
        match self.facts().patches {
            Some(patches) => patches.most,
            None => u64::MAX,
        }
    }

    /// True for parts that zeros do not fill where weights need no values: the scale of zeros is a power of
    /// two below all normal numbers, which processors take much longer for, or divides.
    pub const fn needs_powers(self, part: usize) -> bool {
        match self.facts().powers {
            Some(first) => part >= first,
            None => false,
        }
    }

    /// How weights are summed as codes; `None` if each is decoded to f32 first.
    #[inline(always)]
    pub(crate) const fn coding(self) -> Option<Coding> {
        self.facts().coding
    }

    /// How codes are multiplied with rounded activations, if they are.
    #[inline(always)]
    pub(crate) const fn form(self) -> Option<CodeForm> {
        self.facts().form
    }
}
