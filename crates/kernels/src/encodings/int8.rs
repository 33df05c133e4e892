//! Codes of eight bits, for products with rounded activations: each in scalars, and the trait of their
//! kernels. `matmul/reference/int8.rs` defines their sums.

use super::{Encoding, Matrix, RowCursor, codes, gguf, mxfp4, q};
use crate::scalar::{CodeForm, ROUND_COLS, SPAN_BLOCKS, SPAN_COLS};
use crate::simd::Codes;
use crate::simd::int8::{Eight, Integers, Unit};

/// Decoder of an encoding to the codes of its units, for integers.
pub(crate) trait Eights<N: Integers>: Copy {
    const ENCODING: Encoding;

    const FORM: CodeForm = match Self::ENCODING.form() {
        Some(form) => form,
        None => panic!("an encoding without whole numbers"),
    };

    /// Bytes of a span in the first part.
    const BYTES: usize;

    /// Bytes of its scales in the second part, if there is one.
    const SCALES: usize;

    /// Decodes a unit, whose number in the row this is.
    ///
    /// # Safety
    ///
    /// The cursor must belong to a matrix in this encoding. The bytes of a whole span must be readable.
    unsafe fn unit(n: N, at: &RowCursor, unit: usize) -> Unit<N>;

    /// Reads the scales of a span.
    ///
    /// # Safety
    ///
    /// As for [`unit`](Self::unit).
    unsafe fn scales(n: N, at: &RowCursor, span: usize) -> SpanScales<N>;
}

/// Scales of the blocks of a span, whose runs have signed bytes of their own in some formats.
#[derive(Clone, Copy)]
pub(crate) struct SpanScales<N: Integers> {
    pub(crate) scales: Eight<N>,
    pub(crate) minima: Eight<N>,
    pub(crate) runs: [u64; 2],
    pub(crate) minima_of_runs: [u64; 2],
}

impl<N: Integers> SpanScales<N> {
    #[inline(always)]
    pub(crate) fn new(n: N, scales: Eight<N>) -> Self {
        SpanScales { scales, minima: n.simd().zero_h(), runs: [0; 2], minima_of_runs: [0; 2] }
    }

    /// Those of a span, one by one.
    #[cold]
    #[inline(never)]
    pub(crate) fn one_by_one<C: Eights<N>>(n: N, m: &Matrix, row: usize, span: usize) -> Self {
        let read = SpanFactors::read(C::FORM, m, row, span);
        // SAFETY: eight numbers each.
        unsafe {
            SpanScales {
                scales: n.simd().load_h(read.scales.as_ptr()),
                minima: n.simd().load_h(read.minima.as_ptr()),
                runs: words(read.runs),
                minima_of_runs: words(read.minima_of_runs),
            }
        }
    }
}

fn words(bytes: [i8; 16]) -> [u64; 2] {
    let mut words = [0; 2];
    for (i, byte) in bytes.into_iter().enumerate() {
        words[i / 8] |= u64::from(byte as u8) << (8 * (i % 8));
    }
    words
}

/// Declares a decoder, given the bytes of a span in both parts, and the beginning of its codes and of its
/// scales in a row.
macro_rules! eights {
    ($($name:ident $(<const $group:ident: usize>)?, $encoding:expr, $bytes:expr, $of_scales:expr,
        |$n:ident, $p:ident, $unit:ident| $codes:block,
        |$m:ident, $q:ident, $scales:ident, $span:ident| $read:block)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::encodings) struct $name $(<const $group: usize>)?;

        impl<N: $crate::simd::int8::Integers $(, const $group: usize)?> $crate::encodings::Eights<N>
            for $name $(<$group>)?
        {
            const ENCODING: $crate::Encoding = $encoding;
            const BYTES: usize = $bytes;
            const SCALES: usize = $of_scales;

            #[inline(always)]
            unsafe fn unit($n: N, at: &$crate::encodings::RowCursor, $unit: usize) -> $crate::simd::int8::Unit<N> {
                let $p = at.codes();
                // SAFETY: by the contract of the trait.
                unsafe { $codes }
            }
            #[inline(always)]
            unsafe fn scales($m: N, at: &$crate::encodings::RowCursor, $span: usize) -> $crate::encodings::SpanScales<N> {
                let ($q, $scales) = (at.codes(), at.scales());
                _ = ($q, $scales);
                // SAFETY: by the contract of the trait.
                unsafe { $read }
            }
        }
    )*};
}
pub(super) use eights;

/// Eight scales of one byte, each `stride` bytes after the one before.
///
/// # Safety
///
/// They must be readable.
#[inline(always)]
pub(super) unsafe fn of_bytes<N: Integers>(
    n: N,
    table: &[f32; 256],
    p: *const u8,
    stride: usize,
) -> SpanScales<N> {
    let mut scales = [0.0; 8];
    for i in 0..8 {
        // SAFETY: by this function's contract.
        scales[i] = table[usize::from(unsafe { *p.add(stride * i) })];
    }
    // SAFETY: eight numbers.
    SpanScales::new(n, unsafe { n.simd().load_h(scales.as_ptr()) })
}

/// Code for the decoder of each encoding.
pub(crate) trait ForEights<N: Integers> {
    /// Runs the code with this decoder.
    fn run<C: Eights<N>>(self, n: N);
}

/// The code of a weight, signed or not.
pub(crate) fn int8_code(m: &Matrix, row: usize, col: usize) -> u8 {
    match m.encoding() {
        Encoding::Q8 => q::reference::q8_code(m, row, col),
        Encoding::Mxfp4 => mxfp4::reference::code(m, row, col),
        Encoding::Gguf(format) => gguf::reference::int8_code(format, m, row, col),
        _ => codes::code(m, row, col),
    }
}

/// The scale of the block that begins with column `col`, beside those of its runs.
fn scale(m: &Matrix, row: usize, col: usize) -> f32 {
    match m.encoding() {
        Encoding::Q8 => q::reference::scale(m, row, col),
        Encoding::Mxfp4 => mxfp4::reference::half_scale(m, row, col),
        Encoding::Gguf(format) => gguf::reference::int8_scale(format, m, row, col),
        _ => codes::scale(m, row, col),
    }
}

/// The minimum of the block that begins with column `col`, beside those of its runs.
fn minimum(m: &Matrix, row: usize, col: usize) -> f32 {
    match m.encoding() {
        Encoding::Gguf(format) => gguf::reference::int8_minimum(format, m, row, col),
        _ => codes::minimum(m, row, col),
    }
}

/// What scales the blocks of a span, of which those beyond the matrix have zeros.
#[derive(Clone, Copy)]
pub(crate) struct SpanFactors {
    pub(crate) scales: [f32; SPAN_BLOCKS],
    pub(crate) minima: [f32; SPAN_BLOCKS],
    /// Whole numbers that scale runs of 16 columns.
    pub(crate) runs: [i8; 16],
    /// Those of their minima.
    pub(crate) minima_of_runs: [i8; 16],
}

impl SpanFactors {
    /// Those of a span.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(form: CodeForm, m: &Matrix, row: usize, span: usize) -> SpanFactors {
        let mut read = SpanFactors {
            scales: [0.0; SPAN_BLOCKS],
            minima: [0.0; SPAN_BLOCKS],
            runs: [0; 16],
            minima_of_runs: [0; 16],
        };
        for block in 0..SPAN_BLOCKS {
            let col = SPAN_COLS * span + ROUND_COLS * block;
            if col < m.cols() {
                read.scales[block] = scale(m, row, col);
                if form.minima {
                    read.minima[block] = minimum(m, row, col);
                }
            }
        }
        for run in 0..16 {
            let col = SPAN_COLS * span + 16 * run;
            if form.runs && col < m.cols() {
                (read.runs[run], read.minima_of_runs[run]) = gguf::reference::run_at(m, row, col);
            }
        }
        read
    }
}
