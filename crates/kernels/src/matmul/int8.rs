//! Products with activations that are rounded to eight bits: see [`CodeForm`] for the definition.

// Loops over registers by index are unrolled; some with iterators were not. There are no closures,
// which are compiled for the baseline CPU where they are not inlined.
#![allow(clippy::needless_range_loop)]

#[path = "../encodings/gguf/int8.rs"]
mod codes;
mod many;
mod one;

use super::decode::RowCursor;
use super::input::View;
use super::output::OutputColumns;
use super::{PackedInput, ThreadScratch};
use crate::isa::Isa;
use crate::reference::{
    CodeForm, Int8Scales, ROUND_COLS, SPAN_BLOCKS, SPAN_COLS, UNIT_COLS, int8_code,
};
use crate::simd::int8::{Eight, Integers, Unit};
use crate::simd::{Bytes, Codes, Portable};
use crate::{Encoding, GgufBlocks, Matrix, Published};

/// Decoder of an encoding to the codes of its units, for integers.
pub(super) trait Eights<N: Integers>: Copy {
    const ENCODING: Encoding;

    const FORM: CodeForm = match CodeForm::of(Self::ENCODING) {
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
pub(super) struct SpanScales<N: Integers> {
    scales: Eight<N>,
    minima: Eight<N>,
    runs: [u64; 2],
    minima_of_runs: [u64; 2],
}

impl<N: Integers> SpanScales<N> {
    #[inline(always)]
    fn new(n: N, scales: Eight<N>) -> Self {
        SpanScales { scales, minima: n.simd().zero_h(), runs: [0; 2], minima_of_runs: [0; 2] }
    }

    /// Those of a span, one by one.
    #[cold]
    #[inline(never)]
    fn one_by_one<C: Eights<N>>(n: N, m: &Matrix, row: usize, span: usize) -> Self {
        let read = Int8Scales::read(C::FORM, m, row, span);
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

/// Decodes a span of which the last columns may be beyond the matrix.
///
/// # Safety
///
/// The cursor must belong to this matrix in this encoding.
#[inline(always)]
unsafe fn span_of<N: Integers, C: Eights<N>>(
    n: N,
    at: &RowCursor,
    m: &Matrix,
    span: usize,
) -> ([Unit<N>; 4], SpanScales<N>) {
    let first = 4 * span;
    let whole = SPAN_COLS * (span + 1) <= m.cols();
    if whole || is_readable::<N, C>(m, at.row(), span) {
        // SAFETY: the matrix has all columns of the span, or what would be theirs is readable.
        let (mut codes, mut scales) = unsafe {
            let codes = [
                C::unit(n, at, first),
                C::unit(n, at, first + 1),
                C::unit(n, at, first + 2),
                C::unit(n, at, first + 3),
            ];
            (codes, C::scales(n, at, span))
        };
        if !whole {
            // Activations behind the last column are zero, whatever the codes. Scales may be none.
            let blocks = m.cols().div_ceil(ROUND_COLS) - SPAN_BLOCKS * span;
            scales.scales = n.first_h(scales.scales, blocks);
            scales.minima = n.first_h(scales.minima, blocks);
            // Some encodings have another order there.
            if !m.cols().is_multiple_of(UNIT_COLS) {
                let last = m.cols() / UNIT_COLS;
                let bytes = last_codes(m, at.row(), last);
                // SAFETY: 64 bytes.
                codes[last - first] = unsafe { n.simd().load_b(bytes.as_ptr()) };
            }
        }
        return (codes, scales);
    }
    std::hint::cold_path();
    let bytes = [0, 1, 2, 3].map(|unit| last_codes(m, at.row(), first + unit));
    // SAFETY: 64 bytes each.
    let codes = unsafe {
        [
            n.simd().load_b(bytes[0].as_ptr()),
            n.simd().load_b(bytes[1].as_ptr()),
            n.simd().load_b(bytes[2].as_ptr()),
            n.simd().load_b(bytes[3].as_ptr()),
        ]
    };
    (codes, SpanScales::one_by_one::<C>(n, m, at.row(), span))
}

/// True if there are as many bytes as a whole span has, of this row or of the next ones.
#[inline(always)]
fn is_readable<N: Integers, C: Eights<N>>(m: &Matrix, row: usize, span: usize) -> bool {
    let fits = |part: usize, bytes: usize| {
        row * m.row_bytes(part, row).len() + (span + 1) * bytes <= m.part(part).len()
    };
    fits(0, C::BYTES) && (C::SCALES == 0 || fits(1, C::SCALES))
}

#[cold]
#[inline(never)]
fn last_codes(m: &Matrix, row: usize, unit: usize) -> [u8; UNIT_COLS] {
    let mut codes = [0; UNIT_COLS];
    for (code, col) in codes.iter_mut().zip(UNIT_COLS * unit..m.cols()) {
        *code = int8_code(m, row, col);
    }
    codes
}

/// Number that integers are reduced by, times the sums of activations.
const fn less<N: Integers>(form: CodeForm) -> u8 {
    if form.signed { N::BIAS } else { form.less }
}

/// Multiplies all rows by all tokens of `x`.
pub(super) fn multiply(
    isa: Isa,
    m: &Matrix,
    x: &PackedInput,
    y: &mut OutputColumns,
    scratch: &mut ThreadScratch,
) {
    let product = Int8Product { m, x: x.rounded(), y, scratch };
    match isa {
        Isa::Scalar => unreachable!("the reference has its own"),
        Isa::Portable => product.by(Portable),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => product.by(token),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => match crate::simd::int8::Vnni::detect(token) {
            Some(vnni) => product.by(vnni),
            None => product.by(token.avx2()),
        },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(token) => match crate::simd::int8::Dot::detect(token) {
            Some(dot) => product.by(dot),
            None => product.by(Portable),
        },
    }
}

/// Lengths of the panel and of the sums of products with several tokens, as numbers of 32 bits.
pub(super) fn scratch_lengths(isa: Isa) -> [usize; 2] {
    match isa {
        Isa::Scalar => [0; 2],
        Isa::Portable => many::scratch_lengths::<Portable>(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(_) => many::scratch_lengths::<crate::Avx2>(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => match crate::simd::int8::Vnni::detect(token) {
            Some(_) => many::scratch_lengths::<crate::simd::int8::Vnni>(),
            None => many::scratch_lengths::<crate::Avx2>(),
        },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(token) => match crate::simd::int8::Dot::detect(token) {
            Some(_) => many::scratch_lengths::<crate::simd::int8::Dot>(),
            None => many::scratch_lengths::<Portable>(),
        },
    }
}

/// A product.
struct Int8Product<'a, 'm, 'y> {
    m: &'a Matrix<'m>,
    x: View<'a>,
    y: &'a mut OutputColumns<'y>,
    scratch: &'a mut ThreadScratch,
}

impl Int8Product<'_, '_, '_> {
    fn by<N: Integers>(self, n: N) {
        use codes::*;
        match self.m.encoding() {
            Encoding::Q4 => self.run::<N, Q4>(n),
            Encoding::Q8 => self.run::<N, Q8>(n),
            Encoding::Mxfp4 => self.run::<N, Mxfp4>(n),
            Encoding::Published(layout) => match layout {
                Published::Int4 => self.run::<N, Int4<32>>(n),
                Published::Int4By128 => self.run::<N, Int4<128>>(n),
                Published::Int4Zeros32 => self.run::<N, Zeros<32>>(n),
                Published::Int4Zeros64 => self.run::<N, Zeros<64>>(n),
                Published::Int4Zeros128 => self.run::<N, Zeros<128>>(n),
                _ => unreachable!("a layout without a form"),
            },
            Encoding::Gguf(format) => match format {
                GgufBlocks::Q4_0 => self.run::<N, Q4_0>(n),
                GgufBlocks::Q4_1 => self.run::<N, Q4_1>(n),
                GgufBlocks::Q5_0 => self.run::<N, Q5_0>(n),
                GgufBlocks::Q5_1 => self.run::<N, Q5_1>(n),
                GgufBlocks::Q8_0 => self.run::<N, Q8_0>(n),
                GgufBlocks::Q2K => self.run::<N, Q2K>(n),
                GgufBlocks::Q3K => self.run::<N, Q3K>(n),
                GgufBlocks::Q4K => self.run::<N, Q4K>(n),
                GgufBlocks::Q5K => self.run::<N, Q5K>(n),
                GgufBlocks::Q6K => self.run::<N, Q6K>(n),
                GgufBlocks::Iq4Nl => self.run::<N, Iq4Nl>(n),
                GgufBlocks::Iq4Xs => self.run::<N, Iq4Xs>(n),
                GgufBlocks::Mxfp4 => self.run::<N, Mxfp4OfGguf>(n),
                _ => unreachable!("a format without a form"),
            },
            _ => unreachable!("an encoding without a form"),
        }
    }

    fn run<N: Integers, C: Eights<N>>(self, n: N) {
        let Int8Product { m, x, y, scratch } = self;
        match x.tokens {
            1 => n.compiled(one::Int8One::<C>::new(m, x, y)),
            _ => many::many::<N, C>(n, m, x, y, scratch),
        }
    }
}
