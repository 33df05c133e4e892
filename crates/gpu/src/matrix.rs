//! Encoded matrices as they lie in the memory of a device.

use sws_kernels::{Encoding, Fp8Scales, Int4Groups, Matrix, MatrixError, Offsets, ZerosGroup};

use crate::job::DeviceJob;
use crate::kernel::Kernel;

/// The bytes of a whole matrix, checked to have the lengths of its encoding.
#[derive(Clone, Copy, Debug)]
pub struct MatrixBytes<'a> {
    matrix: Matrix<'a>,
    parts: [&'a [u8]; Encoding::MOST_PARTS],
}

impl<'a> MatrixBytes<'a> {
    /// A matrix of parts in the order of [`Encoding::parts`].
    pub fn new(
        encoding: Encoding,
        rows: usize,
        cols: usize,
        parts: &[&'a [u8]],
    ) -> Result<MatrixBytes<'a>, MatrixError> {
        let matrix = Matrix::new(encoding, rows, cols, parts)?;
        let mut all: [&[u8]; Encoding::MOST_PARTS] = [&[]; Encoding::MOST_PARTS];
        all[..parts.len()].copy_from_slice(parts);
        Ok(MatrixBytes { matrix, parts: all })
    }

    /// The matrix as the CPU sees it.
    pub fn matrix(&self) -> Matrix<'a> {
        self.matrix
    }

    /// The parts of the encoding.
    fn parts(&self) -> &[&'a [u8]] {
        &self.parts[..self.matrix.encoding().parts().len()]
    }
}

/// A matrix in a buffer of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMatrix {
    job: DeviceJob,
}

/// Parts begin at multiples of this.
pub(crate) const ALIGN: u64 = 16;

/// Kinds of scales, as `numbers.c` counts them.
const SCALE_F32: u32 = 0;
const SCALE_BF16: u32 = 1;
const SCALE_E8M0: u32 = 2;

/// A shift by which every row or column becomes the first.
const ALL: u32 = 31;

impl DeviceMatrix {
    /// The place of a matrix from an offset of a buffer on; `None` for one that stays on the CPU, because no kernel has its
    /// encoding, or because it is empty or has more than 2³¹ rows, columns or bytes of a part.
    pub fn place(bytes: &MatrixBytes<'_>, at: u64) -> Option<DeviceMatrix> {
        let matrix = bytes.matrix();
        let encoding = matrix.encoding();
        let kernel = Kernel::of(encoding)?;
        let rows = small(matrix.row_count())?;
        let cols = small(matrix.cols())?;
        if rows == 0 || cols == 0 {
            return None;
        }
        let mut offsets = [0; Encoding::MOST_PARTS];
        let mut end = at;
        for (part, offset) in bytes.parts().iter().zip(&mut offsets) {
            small(part.len())?;
            *offset = end.checked_next_multiple_of(ALIGN)?;
            end = offset.checked_add(part.len() as u64)?;
        }
        let [first, second, third, _] = bytes.parts.map(|part| part.len() as u32);
        let scales = ScalePlaces::of(encoding);
        let mut job = DeviceJob {
            weights_end: end,
            codes: offsets[0],
            codes_step: first / rows,
            scales: offsets[1],
            scales_step: if scales.row_shift == ALL { 0 } else { second / scales.shares(rows) },
            row_shift: scales.row_shift,
            col_shift: scales.col_shift,
            scale_kind: scales.kind,
            beside: offsets[2],
            beside_len: third,
            ..DeviceJob::new(kernel, rows, cols)
        };
        if encoding.has_patches() {
            let arrangement = encoding.offsets(u64::from(cols));
            job.offsets_len = small(usize::try_from(arrangement.len(u64::from(rows))?).ok()?)?;
            job.shared_offsets = u32::from(arrangement == Offsets::Shared);
        }
        Some(DeviceMatrix { job })
    }

    /// The kernel that multiplies it.
    pub fn kernel(&self) -> Kernel {
        self.job.kernel
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.job.rows as usize
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.job.cols as usize
    }

    /// The offset behind it.
    pub fn end(&self) -> u64 {
        self.job.weights_end
    }

    /// Adds a bias of so many f32 as there are rows, from the next suitable offset on, which it returns.
    pub fn add_bias(&mut self) -> Option<u64> {
        let at = self.job.weights_end.checked_next_multiple_of(ALIGN)?;
        self.job.weights_end = at.checked_add(4 * u64::from(self.job.rows))?;
        self.job.bias = Some(at);
        Some(at)
    }

    /// The parts with the offset of each.
    pub fn parts<'a>(&self, bytes: &MatrixBytes<'a>) -> impl Iterator<Item = (u64, &'a [u8])> {
        let offsets = [self.job.codes, self.job.scales, self.job.beside];
        offsets.into_iter().zip(bytes.parts).take(bytes.parts().len())
    }

    /// The job of a product whose numbers are at these places.
    pub(crate) fn job(&self, input: u32, sums: u32, output: u32) -> DeviceJob {
        DeviceJob { input, sums, output, ..self.job }
    }
}

/// A number below 2³¹.
fn small(n: usize) -> Option<u32> {
    let n = u32::try_from(n).ok()?;
    (n < 1 << ALL).then_some(n)
}

/// The rows and columns that numbers of the second part belong to.
struct ScalePlaces {
    kind: u32,
    row_shift: u32,
    col_shift: u32,
}

impl ScalePlaces {
    const fn by_rows(kind: u32, col_shift: u32) -> ScalePlaces {
        ScalePlaces { kind, row_shift: 0, col_shift }
    }

    const fn of(encoding: Encoding) -> ScalePlaces {
        match encoding {
            Encoding::Q8 | Encoding::Q4 => ScalePlaces::by_rows(SCALE_BF16, 6),
            Encoding::Mxfp4 => ScalePlaces::by_rows(SCALE_E8M0, 5),
            Encoding::Int4(Int4Groups::Symmetric32) => ScalePlaces::by_rows(SCALE_BF16, 5),
            Encoding::Int4(Int4Groups::Symmetric128) => ScalePlaces::by_rows(SCALE_BF16, 7),
            Encoding::Int4(Int4Groups::Zeros(group) | Int4Groups::ActOrder(group)) => {
                ScalePlaces::by_rows(SCALE_F32, log2(group))
            }
            Encoding::Fp8(scales) => ScalePlaces::of_fp8(scales),
            _ => ScalePlaces { kind: SCALE_F32, row_shift: ALL, col_shift: ALL },
        }
    }

    const fn of_fp8(scales: Fp8Scales) -> ScalePlaces {
        let kind = match scales {
            Fp8Scales::Squares | Fp8Scales::Rows | Fp8Scales::Whole => SCALE_F32,
            Fp8Scales::SquaresBf16 | Fp8Scales::RowsBf16 | Fp8Scales::WholeBf16 => SCALE_BF16,
            Fp8Scales::SquaresE8m0 | Fp8Scales::Thirtytwos => SCALE_E8M0,
        };
        match scales {
            Fp8Scales::Squares | Fp8Scales::SquaresBf16 | Fp8Scales::SquaresE8m0 => {
                ScalePlaces { kind, row_shift: 7, col_shift: 7 }
            }
            Fp8Scales::Rows | Fp8Scales::RowsBf16 => ScalePlaces::by_rows(kind, ALL),
            Fp8Scales::Whole | Fp8Scales::WholeBf16 => {
                ScalePlaces { kind, row_shift: ALL, col_shift: ALL }
            }
            Fp8Scales::Thirtytwos => ScalePlaces::by_rows(kind, 5),
        }
    }

    /// Runs of rows that share numbers.
    const fn shares(&self, rows: u32) -> u32 {
        ((rows - 1) >> self.row_shift) + 1
    }
}

const fn log2(group: ZerosGroup) -> u32 {
    group.cols().ilog2()
}
