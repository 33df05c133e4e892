//! The way to the facts of each encoding, and the answers to everybody's questions.

use std::fmt;
use std::str::FromStr;

use super::facts::{Facts, Made};
use super::{
    Encoding, MatrixPart, Offsets, SourceDtype, bf11, bf12, float, fp7, fp8, gguf, int4, mxfp4,
    nested, nvfp4, q,
};
use crate::scalar::{CodeForm, Coding};

impl Encoding {
    /// What is known of it.
    #[inline(always)]
    pub(super) const fn facts(self) -> &'static Facts {
        match self {
            Encoding::F32 => &float::F32,
            Encoding::F16 => &float::F16,
            Encoding::Bf16 => &float::BF16,
            Encoding::Bf12 => &bf12::FACTS,
            Encoding::Bf11 => &bf11::FACTS,
            Encoding::Nested => &nested::NESTED,
            Encoding::Top => &nested::TOP,
            Encoding::Q8 => &q::Q8,
            Encoding::Q4 => &q::Q4,
            Encoding::Fp8(scales) => &fp8::FACTS[scales as usize],
            Encoding::Fp7(scales) => &fp7::FACTS[scales as usize],
            Encoding::Mxfp4 => &mxfp4::FACTS,
            Encoding::Int4(groups) => int4::facts(groups),
            Encoding::Nvfp4(scale) => &nvfp4::FACTS[scale as usize],
            Encoding::Gguf(blocks) => &gguf::FACTS[blocks as usize],
        }
    }

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

    /// The arrangement of the offsets of patches in a matrix with this number of columns.
    #[inline(always)]
    pub const fn offsets(self, cols: u64) -> Offsets {
        match self.facts().patches {
            Some(patches) => Offsets::of(patches.in_tiers, cols),
            None => Offsets::Single,
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

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an encoding; choose one of f32, f16, bf16, bf12, bf11, nested, q8, q4, fp8, mxfp4, q8_0"
)]
pub struct UnknownEncoding(pub String);

impl FromStr for Encoding {
    type Err = UnknownEncoding;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Encoding::ALL
            .into_iter()
            .find(|e| e.name() == word)
            .ok_or_else(|| UnknownEncoding(word.to_owned()))
    }
}
