//! Weights that are small whole numbers, their codes, under scales that runs of columns share: each in scalars,
//! and the trait of their kernels. `matmul/reference/coded.rs` defines their sums.

use super::{Encoding, Matrix, RowCursor, gguf, int4, nvfp4, q};
use crate::scalar::{Coding, SPAN_COLS, UNIT_COLS, fma};
use crate::simd::Simd;

/// Decoder of an encoding to the codes of its units.
pub(crate) trait Coded<S: Simd>: Copy {
    const ENCODING: Encoding;

    const CODING: Coding = match Self::ENCODING.coding() {
        Some(coding) => coding,
        None => panic!("an encoding without codes"),
    };

    /// Bytes of a span in the first part.
    const BYTES: usize;

    fn new(s: S, m: &Matrix) -> Self;

    /// What the units of a span have in common.
    type Shared: Copy;

    /// Decodes what the units of a span have in common.
    ///
    /// # Safety
    ///
    /// The cursor must belong to a matrix in this encoding that has columns of this span.
    unsafe fn shared(self, s: S, at: &RowCursor, span: usize) -> Self::Shared;

    /// Writes the scales of the runs of a span, and what is added for each unit of their activations'
    /// sums if [`Coding::less`] does not say that these are the same.
    ///
    /// # Safety
    ///
    /// As for [`shared`](Self::shared), and the matrix must have all columns of the span. 16 numbers
    /// must be writable at `scales` and at `added`.
    unsafe fn scales(
        self,
        s: S,
        shared: &Self::Shared,
        at: &RowCursor,
        span: usize,
        scales: *mut f32,
        added: *mut f32,
    );

    /// Decodes a unit: its number in the row, of which the lowest two bits are those in the span.
    ///
    /// # Safety
    ///
    /// As for [`shared`](Self::shared), and the matrix must have all columns of the unit.
    unsafe fn unit(self, s: S, shared: &Self::Shared, at: &RowCursor, unit: usize) -> [S::F; 4];
}

/// Code for the decoder of each encoding.
pub(crate) trait ForCoded<S: Simd> {
    /// Runs the code with this decoder.
    fn run<C: Coded<S>>(self, s: S);
}

/// The code of a weight.
pub(super) fn code(m: &Matrix, row: usize, col: usize) -> u8 {
    match m.encoding() {
        Encoding::Q4 => q::reference::q4_code(m, row, col),
        Encoding::Int4(_) => int4::reference::code(m, row, col),
        Encoding::Nvfp4(scale) => nvfp4::reference::code(scale, m, row, col),
        Encoding::Gguf(format) => gguf::reference::code_at(format, m, row, col),
        _ => unreachable!("an encoding without codes"),
    }
}

/// The scale of the run that column `col` is in.
pub(super) fn scale(m: &Matrix, row: usize, col: usize) -> f32 {
    match m.encoding() {
        Encoding::Q4 => q::reference::scale(m, row, col),
        Encoding::Int4(groups) => int4::reference::scale(groups, m, row, col),
        Encoding::Nvfp4(scale) => nvfp4::reference::scale(scale, m, row, col),
        Encoding::Gguf(format) => gguf::reference::scale_at(format, m, row, col),
        _ => unreachable!("an encoding without codes"),
    }
}

/// The minimum of the run that column `col` is in.
pub(super) fn minimum(m: &Matrix, row: usize, col: usize) -> f32 {
    match m.encoding() {
        Encoding::Int4(groups) => int4::reference::minimum(groups, m, row, col),
        Encoding::Gguf(format) => gguf::reference::minimum_at(format, m, row, col),
        _ => unreachable!("an encoding without minima"),
    }
}

/// The weights of a block of at most 64 columns, each by itself.
pub(super) fn weights(coding: Coding, m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    for (out, col) in out.iter_mut().zip(UNIT_COLS * block..) {
        let code = f32::from(code(m, row, col));
        let scale = scale(m, row, col);
        *out = match coding.less {
            Some(less) => (code - f32::from(less)) * scale,
            None => fma(code, scale, minimum(m, row, col)),
        };
    }
}

/// The scales of the runs of a span, and what is added for each unit of its activations' sum.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct RunScales {
    pub(crate) scales: [f32; 16],
    pub(crate) added: [f32; 16],
}

impl RunScales {
    /// The scales of a span, which may be the last one of a row.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(coding: Coding, m: &Matrix, row: usize, span: usize) -> RunScales {
        let mut read = RunScales { scales: [0.0; 16], added: [0.0; 16] };
        for run in 0..coding.runs() {
            let col = SPAN_COLS * span + coding.run * run;
            if col < m.cols() {
                read.scales[run] = scale(m, row, col);
                read.added[run] = match coding.less {
                    Some(_) => read.scales[run],
                    None => minimum(m, row, col),
                };
            }
        }
        read
    }
}

/// The codes of a unit, of which the last columns may be beyond the matrix.
#[cold]
#[inline(never)]
pub(crate) fn unit_codes(m: &Matrix, row: usize, unit: usize) -> [u8; UNIT_COLS] {
    let mut codes = [0; UNIT_COLS];
    for (code_of, col) in codes.iter_mut().zip(UNIT_COLS * unit..m.cols()) {
        *code_of = code(m, row, col);
    }
    codes
}
