//! Products with activations that are rounded to eight bits: `reference/int8.rs` has the definition.

// Loops over registers by index are unrolled; some with iterators were not. There are no closures,
// which are compiled for the baseline CPU where they are not inlined.
#![allow(clippy::needless_range_loop)]

mod many;
mod one;

use super::input::View;
use super::output::OutputColumns;
use super::{PackedInput, ThreadScratch};
use crate::Matrix;
use crate::encodings::{Eights, ForEights, RowCursor, SpanScales, for_eights, int8_code};
use crate::isa::Isa;
use crate::scalar::{CodeForm, ROUND_COLS, SPAN_BLOCKS, SPAN_COLS, UNIT_COLS};
use crate::simd::int8::{Integers, Unit};
use crate::simd::{Bytes, Portable};

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
        for_eights(n, self.m.encoding(), self);
    }
}

impl<N: Integers> ForEights<N> for Int8Product<'_, '_, '_> {
    fn run<C: Eights<N>>(self, n: N) {
        let Int8Product { m, x, y, scratch } = self;
        match x.tokens {
            1 => n.compiled(one::Int8One::<C>::new(m, x, y)),
            _ => many::many::<N, C>(n, m, x, y, scratch),
        }
    }
}
