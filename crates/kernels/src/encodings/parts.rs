//! Lengths of the parts of an encoded matrix, and the rows that their bytes belong to.

use std::ops::Range;

use crate::reference::{REST_BLOCK, TOP_BLOCK};
use crate::{Encoding, Fp8Scales, GgufBlocks, Offsets, Published};

/// One of the runs of bytes that make up an encoded matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixPart {
    /// Suffix appended to the tensor's name; empty for the part that keeps the name.
    pub suffix: &'static str,
    cut: PartCut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartCut {
    /// Each group of `rows` rows (the last may be smaller) has `count` units of `bytes` bytes,
    /// where `count` is `cols` over `cols_per_unit`, rounded up.
    Rows { rows: u64, cols_per_unit: u64, bytes: u64 },
    /// The codes of bf12: a byte and a nibble per column.
    Bf12Codes,
    /// The codes of bf11: a byte per column, and two bits in planes.
    Bf11Codes,
    /// The codes of fp7: a nibble per column, and two bits in planes.
    Fp7Codes,
    /// This many bytes that all rows share: a table of exponents, or a scale.
    Shared { bytes: u64 },
    /// This many bytes for each column, which all rows share.
    Columns { bytes: u64 },
    /// The patches of an encoding that has some.
    Patches { of: Encoding },
}

/// Bytes of the table of exponents of a bf12 or bf11 matrix.
pub(crate) const TABLE_LEN: usize = 16;

/// Length of a part in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartLen {
    /// Exactly this many bytes.
    Exact(u64),
    /// At least this many bytes, and patches behind them; the total is known only once the matrix is encoded.
    AtLeast(u64),
}

/// The portion of a part that a range of rows needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartRows {
    /// These bytes of the part.
    Bytes(Range<u64>),
    /// The whole part.
    Whole,
}

const fn plain(suffix: &'static str, cols_per_unit: u64, bytes: u64) -> MatrixPart {
    MatrixPart { suffix, cut: PartCut::Rows { rows: 1, cols_per_unit, bytes } }
}

/// The one part of each block format, in the order of its variants.
static GGUF: [[MatrixPart; 1]; GgufBlocks::ALL.len()] = {
    let mut all = [[plain("", 1, 1)]; GgufBlocks::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        let blocks = GgufBlocks::ALL[i];
        all[blocks as usize] = [plain("", blocks.cols() as u64, blocks.bytes() as u64)];
        i += 1;
    }
    all
};

/// A number for each block of 128×128.
const fn square(suffix: &'static str, bytes: u64) -> MatrixPart {
    MatrixPart { suffix, cut: PartCut::Rows { rows: 128, cols_per_unit: 128, bytes } }
}

const fn shared(suffix: &'static str, bytes: u64) -> MatrixPart {
    MatrixPart { suffix, cut: PartCut::Shared { bytes } }
}

/// The parts of fp7: those of bf11, and the scales of the codes.
static FP7: [[MatrixPart; 4]; Fp8Scales::ALL.len()] = {
    let packed = Encoding::Fp7(Fp8Scales::Squares);
    let mut all = [[plain("", 1, 1); 4]; Fp8Scales::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        let scales = Fp8Scales::ALL[i];
        all[scales as usize] = [
            MatrixPart { suffix: ".codes", cut: PartCut::Fp7Codes },
            MatrixPart { suffix: ".table", cut: PartCut::Shared { bytes: TABLE_LEN as u64 } },
            MatrixPart { suffix: ".patches", cut: PartCut::Patches { of: packed } },
            scales.plain().parts()[1],
        ];
        i += 1;
    }
    all
};

/// The parts of four-bit codes with zero points, with a unit of groups for so many columns.
static ZEROS: [[MatrixPart; 3]; 3] = {
    const CODES: MatrixPart = plain(".codes", 2, 1);
    const ORDER: MatrixPart = MatrixPart { suffix: ".order", cut: PartCut::Columns { bytes: 2 } };
    [
        [CODES, plain(".groups", 32, 4), ORDER],
        [CODES, plain(".groups", 64, 4), ORDER],
        [CODES, plain(".groups", 128, 4), ORDER],
    ]
};

impl Published {
    const fn parts(self) -> &'static [MatrixPart] {
        const E4M3: MatrixPart = plain("", 1, 1);
        const PAIRS: MatrixPart = plain("", 2, 1);
        const INTEGERS: MatrixPart = plain("_packed", 8, 4);
        /// A row has one unit, however long.
        const ROW: u64 = u64::MAX;
        match self {
            Published::Fp8Bf16 => const { &[E4M3, square("_scale_inv", 2)] },
            Published::Fp8E8m0 => const { &[E4M3, square("_scale", 1)] },
            Published::Fp8Rows => const { &[E4M3, plain("_scale", ROW, 4)] },
            Published::Fp8RowsBf16 => const { &[E4M3, plain("_scale", ROW, 2)] },
            Published::Fp8Whole => const { &[E4M3, shared("_scale", 4)] },
            Published::Fp8WholeBf16 => const { &[E4M3, shared("_scale", 2)] },
            Published::Mxfp8 => const { &[E4M3, plain("_scale", 32, 1)] },
            Published::Int4 => const { &[INTEGERS, plain("_scale", 32, 2)] },
            Published::Int4By128 => const { &[INTEGERS, plain("_scale", 128, 2)] },
            Published::Int4Zeros32 => ZEROS[0].first_chunk::<2>().expect("two parts"),
            Published::Int4Zeros64 => ZEROS[1].first_chunk::<2>().expect("two parts"),
            Published::Int4Zeros128 => ZEROS[2].first_chunk::<2>().expect("two parts"),
            Published::Int4ActOrder32 => &ZEROS[0],
            Published::Int4ActOrder64 => &ZEROS[1],
            Published::Int4ActOrder128 => &ZEROS[2],
            Published::Nvfp4 => const { &[PAIRS, plain("_scale", 16, 1), shared("_scale_2", 4)] },
            Published::Nvfp4Divided => {
                const { &[PAIRS, plain("_scale", 16, 1), shared("_global_scale", 4)] }
            }
        }
    }
}

impl Encoding {
    /// The most parts that a matrix has.
    pub const MOST_PARTS: usize = 4;

    /// The parts of a matrix in this encoding, in the order in which they are passed around.
    pub const fn parts(self) -> &'static [MatrixPart] {
        const F32: &[MatrixPart] = &[plain("", 1, 4)];
        const HALF: &[MatrixPart] = &[plain("", 1, 2)];
        const BF12: &[MatrixPart] = &[
            MatrixPart { suffix: ".codes", cut: PartCut::Bf12Codes },
            MatrixPart { suffix: ".table", cut: PartCut::Shared { bytes: TABLE_LEN as u64 } },
            MatrixPart { suffix: ".patches", cut: PartCut::Patches { of: Encoding::Bf12 } },
        ];
        const BF11: &[MatrixPart] = &[
            MatrixPart { suffix: ".codes", cut: PartCut::Bf11Codes },
            MatrixPart { suffix: ".table", cut: PartCut::Shared { bytes: TABLE_LEN as u64 } },
            MatrixPart { suffix: ".patches", cut: PartCut::Patches { of: Encoding::Bf11 } },
        ];
        const TOP: MatrixPart = plain(".top", 64, TOP_BLOCK as u64);
        const NESTED: &[MatrixPart] = &[
            plain(".rest", 64, REST_BLOCK as u64),
            TOP,
            MatrixPart { suffix: ".patches", cut: PartCut::Patches { of: Encoding::Nested } },
        ];
        const Q8: &[MatrixPart] = &[plain(".codes", 1, 1), plain(".scales", 64, 2)];
        const Q4: &[MatrixPart] = &[plain(".codes", 2, 1), plain(".scales", 64, 2)];
        const FP8: &[MatrixPart] = &[plain("", 1, 1), square("_scale_inv", 4)];
        const MXFP4: &[MatrixPart] = &[plain("_blocks", 32, 16), plain("_scales", 32, 1)];
        match self {
            Encoding::F32 => F32,
            Encoding::F16 | Encoding::Bf16 => HALF,
            Encoding::Bf12 => BF12,
            Encoding::Bf11 => BF11,
            Encoding::Nested => NESTED,
            Encoding::Top => &[TOP],
            Encoding::Q8 => Q8,
            Encoding::Q4 => Q4,
            Encoding::Fp8 => FP8,
            Encoding::Mxfp4 => MXFP4,
            Encoding::Fp7(scales) => &FP7[scales as usize],
            Encoding::Gguf(blocks) => &GGUF[blocks as usize],
            Encoding::Published(layout) => layout.parts(),
        }
    }

    /// Rows are encoded in blocks of a multiple of this many (the last block may be smaller).
    pub const fn row_multiple(self) -> usize {
        match self {
            Encoding::Fp8 | Encoding::Published(Published::Fp8Bf16 | Published::Fp8E8m0) => 128,
            Encoding::Fp7(scales) => scales.plain().row_multiple(),
            _ => 1,
        }
    }

    /// True if numbers can be encoded in it. Others are only read, where a file has them.
    pub const fn is_made(self) -> bool {
        match self {
            Encoding::Gguf(format) => matches!(format, GgufBlocks::Q8_0),
            Encoding::Top | Encoding::Fp7(_) | Encoding::Published(_) => false,
            _ => true,
        }
    }

    /// True if rows have patches, whose number is known only once they are encoded.
    pub const fn has_patches(self) -> bool {
        matches!(self, Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested | Encoding::Fp7(_))
    }

    /// Weights for each byte of patches in a trained model, rounded down for safety: in bf12 one in
    /// 5,000 is an escape, and bf11 and nested have .096 bytes for each weight of a Gaussian. No weights are so
    /// many in an encoding without patches.
    pub const fn typical_patches(self) -> u64 {
        match self {
            Encoding::Bf12 => 1024,
            Encoding::Bf11 | Encoding::Nested | Encoding::Fp7(_) => 9,
            _ => u64::MAX,
        }
    }

    /// True if a decoded weight may differ from the original.
    pub const fn is_lossy(self) -> bool {
        match self {
            Encoding::F32 | Encoding::F16 => false,
            Encoding::Bf16 | Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested => false,
            Encoding::Fp7(_) => false,
            Encoding::Top => true,
            Encoding::Q8 | Encoding::Q4 | Encoding::Fp8 | Encoding::Mxfp4 => true,
            Encoding::Gguf(_) | Encoding::Published(_) => true,
        }
    }
}

impl MatrixPart {
    /// The length of this part in a matrix of this shape; `None` if it exceeds 2⁶⁴.
    pub fn len(&self, rows: u64, cols: u64) -> Option<PartLen> {
        match self.cut {
            PartCut::Shared { bytes } => Some(PartLen::Exact(bytes)),
            PartCut::Columns { bytes } => Some(PartLen::Exact(cols.checked_mul(bytes)?)),
            PartCut::Patches { of } => Some(PartLen::AtLeast(Offsets::of(of, cols).len(rows)?)),
            PartCut::Rows { .. } | PartCut::Bf12Codes | PartCut::Bf11Codes | PartCut::Fp7Codes => {
                Some(PartLen::Exact(self.step_bytes(cols)?.checked_mul(self.steps(rows))?))
            }
        }
    }

    /// The portion of this part that `rows` need; `None` if an offset exceeds 2⁶⁴.
    pub fn rows(&self, rows: Range<u64>, cols: u64) -> Option<PartRows> {
        if self.is_whole() {
            return Some(PartRows::Whole);
        }
        let step = self.step_bytes(cols)?;
        let first = rows.start / self.step_rows();
        let end = self.steps(rows.end).max(first);
        Some(PartRows::Bytes(step.checked_mul(first)?..step.checked_mul(end)?))
    }

    /// True if any range of rows needs all of this part.
    pub fn is_whole(&self) -> bool {
        matches!(
            self.cut,
            PartCut::Shared { .. } | PartCut::Columns { .. } | PartCut::Patches { .. }
        )
    }

    /// Number of rows that share the part's smallest unit.
    pub fn step_rows(&self) -> u64 {
        match self.cut {
            PartCut::Rows { rows, .. } => rows,
            _ => 1,
        }
    }

    fn steps(&self, rows: u64) -> u64 {
        rows.div_ceil(self.step_rows())
    }

    /// Bytes of one row, or of one group of rows that share a unit.
    fn step_bytes(&self, cols: u64) -> Option<u64> {
        match self.cut {
            PartCut::Rows { cols_per_unit, bytes, .. } => {
                cols.div_ceil(cols_per_unit).checked_mul(bytes)
            }
            PartCut::Bf12Codes => cols.checked_add(cols.div_ceil(2)),
            PartCut::Bf11Codes => {
                let tail = cols % 64;
                let planes = (cols / 64 * 16).checked_add(2 * tail.div_ceil(8))?;
                cols.checked_add(planes)
            }
            // Two bytes for each eight of the last block, too.
            PartCut::Fp7Codes => {
                let planes = (cols / 64 * 16).checked_add(2 * (cols % 64).div_ceil(8))?;
                cols.div_ceil(2).checked_add(planes)
            }
            PartCut::Shared { .. } | PartCut::Columns { .. } | PartCut::Patches { .. } => Some(0),
        }
    }
}
