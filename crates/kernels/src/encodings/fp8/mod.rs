//! Kinds of scales that codes of e4m3 have.

use crate::{Encoding, Published};

/// Scales of a matrix of e4m3 codes. Each kind has an encoding as published, and one in which the exponents
/// of the codes are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fp8Scales {
    /// An f32 for each block of 128×128.
    Squares,
    /// A bf16 for each block of 128×128.
    SquaresBf16,
    /// An e8m0 for each block of 128×128.
    SquaresE8m0,
    /// An f32 for each row.
    Rows,
    /// A bf16 for each row.
    RowsBf16,
    /// One f32.
    Whole,
    /// One bf16.
    WholeBf16,
    /// An e8m0 for 32 weights.
    Thirtytwos,
}

impl Fp8Scales {
    /// Every kind, in the order in which tables list them.
    pub const ALL: [Fp8Scales; 8] = [
        Fp8Scales::Squares,
        Fp8Scales::SquaresBf16,
        Fp8Scales::SquaresE8m0,
        Fp8Scales::Rows,
        Fp8Scales::RowsBf16,
        Fp8Scales::Whole,
        Fp8Scales::WholeBf16,
        Fp8Scales::Thirtytwos,
    ];

    /// The kind of an encoding whose codes are not packed; `None` for encodings of other codes.
    pub const fn of(encoding: Encoding) -> Option<Fp8Scales> {
        Some(match encoding {
            Encoding::Fp8 => Fp8Scales::Squares,
            Encoding::Published(Published::Fp8Bf16) => Fp8Scales::SquaresBf16,
            Encoding::Published(Published::Fp8E8m0) => Fp8Scales::SquaresE8m0,
            Encoding::Published(Published::Fp8Rows) => Fp8Scales::Rows,
            Encoding::Published(Published::Fp8RowsBf16) => Fp8Scales::RowsBf16,
            Encoding::Published(Published::Fp8Whole) => Fp8Scales::Whole,
            Encoding::Published(Published::Fp8WholeBf16) => Fp8Scales::WholeBf16,
            Encoding::Published(Published::Mxfp8) => Fp8Scales::Thirtytwos,
            _ => return None,
        })
    }

    /// The encoding with codes of a byte each.
    pub const fn plain(self) -> Encoding {
        match self {
            Fp8Scales::Squares => Encoding::Fp8,
            Fp8Scales::SquaresBf16 => Encoding::Published(Published::Fp8Bf16),
            Fp8Scales::SquaresE8m0 => Encoding::Published(Published::Fp8E8m0),
            Fp8Scales::Rows => Encoding::Published(Published::Fp8Rows),
            Fp8Scales::RowsBf16 => Encoding::Published(Published::Fp8RowsBf16),
            Fp8Scales::Whole => Encoding::Published(Published::Fp8Whole),
            Fp8Scales::WholeBf16 => Encoding::Published(Published::Fp8WholeBf16),
            Fp8Scales::Thirtytwos => Encoding::Published(Published::Mxfp8),
        }
    }

    /// The name of the encoding with packed codes.
    pub(crate) const fn packed_name(self) -> &'static str {
        match self {
            Fp8Scales::Squares => "fp7",
            Fp8Scales::SquaresBf16 => "fp7_bf16",
            Fp8Scales::SquaresE8m0 => "fp7_e8m0",
            Fp8Scales::Rows => "fp7_rows",
            Fp8Scales::RowsBf16 => "fp7_rows_bf16",
            Fp8Scales::Whole => "fp7_whole",
            Fp8Scales::WholeBf16 => "fp7_whole_bf16",
            Fp8Scales::Thirtytwos => "mxfp7",
        }
    }
}
