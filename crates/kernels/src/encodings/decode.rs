//! Decoders from blocks of 64 columns to f32, one per encoding, for any instruction set.

// Loops over registers by index are unrolled; some with iterators were not. There are no closures,
// which are compiled for the baseline CPU where they are not inlined.
#![allow(clippy::needless_range_loop)]

/// For decoders whose blocks have nothing in common.
macro_rules! nothing_shared {
    () => {
        type Shared = ();

        #[inline(always)]
        unsafe fn shared(self, _: S, _: &RowCursor, _: usize) {}
    };
}

#[path = "int4/act_order.rs"]
mod act_order;
#[path = "bf11/decode.rs"]
mod bf11;
#[path = "bf12/decode.rs"]
mod bf12;
#[path = "float/decode.rs"]
mod float;
#[path = "fp7/decode.rs"]
mod fp7;
#[path = "fp8/decode.rs"]
mod fp8;
#[path = "mxfp4/decode.rs"]
mod mxfp4;
#[path = "nested/decode.rs"]
mod nested;
#[path = "gguf/decode.rs"]
mod q8_0;
#[path = "q/decode.rs"]
mod quant;

use std::marker::PhantomData;

use fp7::Fp7;
use fp8::Fp8;

use super::one::load_block;
use crate::reference::{self, BLOCK};
use crate::simd::Simd;
use crate::{Encoding, Fp8Scales, GgufBlocks, Matrix, Published};

pub(super) use bf11::Bf11;
pub(super) use bf12::Bf12;
pub(super) use float::{Bf16, F16, F32};
pub(super) use fp8::{FIELDS, REBIAS};
use nested::{Nested, Top};
pub(super) use quant::Q8;

/// Code for the decoder of each encoding.
pub(super) trait ForDecoder<S: Simd> {
    /// Runs the code with this decoder.
    fn run<D: Decoder<S>>(self, s: S);
}

/// Runs `code` with the decoder of an encoding.
#[inline(always)]
pub(super) fn for_decoder<S: Simd>(s: S, encoding: Encoding, code: impl ForDecoder<S>) {
    let Some(code) = for_common_decoder(s, encoding, code) else { return };
    match encoding {
        Encoding::Gguf(GgufBlocks::Q8_0) => code.run::<q8_0::Q8_0>(s),
        Encoding::Gguf(GgufBlocks::Mxfp4) => code.run::<mxfp4::OfGguf<S>>(s),
        Encoding::Published(layout) => for_published(s, layout, code),
        Encoding::Fp7(scales) => for_packed(s, scales, code),
        _ => unreachable!("the others are common, or summed as codes"),
    }
}

/// The same for encodings that the sharder makes, and plain numbers. Returns the code for all others.
#[inline(always)]
pub(super) fn for_common_decoder<S: Simd, C: ForDecoder<S>>(
    s: S,
    encoding: Encoding,
    code: C,
) -> Option<C> {
    match encoding {
        Encoding::F32 => code.run::<F32>(s),
        Encoding::F16 => code.run::<F16>(s),
        Encoding::Bf16 => code.run::<Bf16>(s),
        Encoding::Bf12 => code.run::<Bf12<S>>(s),
        Encoding::Bf11 => code.run::<Bf11<S>>(s),
        Encoding::Nested => code.run::<Nested<S>>(s),
        Encoding::Top => code.run::<Top<S>>(s),
        Encoding::Q8 => code.run::<Q8>(s),
        Encoding::Fp8 => code.run::<Fp8<fp8::Squares>>(s),
        Encoding::Mxfp4 => code.run::<mxfp4::Mxfp4<S>>(s),
        Encoding::Fp7(Fp8Scales::Squares) => code.run::<Fp7<S, fp8::Squares>>(s),
        Encoding::Fp7(_) | Encoding::Q4 | Encoding::Gguf(_) | Encoding::Published(_) => {
            return Some(code);
        }
    }
    None
}

#[inline(always)]
fn for_packed<S: Simd>(s: S, scales: Fp8Scales, code: impl ForDecoder<S>) {
    match scales {
        Fp8Scales::Squares => unreachable!("it is common"),
        Fp8Scales::SquaresBf16 => code.run::<Fp7<S, fp8::SquaresBf16>>(s),
        Fp8Scales::SquaresE8m0 => code.run::<Fp7<S, fp8::SquaresE8m0>>(s),
        Fp8Scales::Rows => code.run::<Fp7<S, fp8::Rows>>(s),
        Fp8Scales::RowsBf16 => code.run::<Fp7<S, fp8::RowsBf16>>(s),
        Fp8Scales::Whole => code.run::<Fp7<S, fp8::Whole>>(s),
        Fp8Scales::WholeBf16 => code.run::<Fp7<S, fp8::WholeBf16>>(s),
        Fp8Scales::Thirtytwos => code.run::<Fp7<S, fp8::Thirtytwos>>(s),
    }
}

#[inline(always)]
fn for_published<S: Simd>(s: S, layout: Published, code: impl ForDecoder<S>) {
    match layout {
        Published::Fp8Bf16 => code.run::<Fp8<fp8::SquaresBf16>>(s),
        Published::Fp8E8m0 => code.run::<Fp8<fp8::SquaresE8m0>>(s),
        Published::Fp8Rows => code.run::<Fp8<fp8::Rows>>(s),
        Published::Fp8RowsBf16 => code.run::<Fp8<fp8::RowsBf16>>(s),
        Published::Fp8Whole => code.run::<Fp8<fp8::Whole>>(s),
        Published::Fp8WholeBf16 => code.run::<Fp8<fp8::WholeBf16>>(s),
        Published::Mxfp8 => code.run::<Fp8<fp8::Thirtytwos>>(s),
        Published::Int4ActOrder32 | Published::Int4ActOrder64 | Published::Int4ActOrder128 => {
            code.run::<act_order::ActOrder>(s);
        }
        _ => unreachable!("its weights are summed as codes"),
    }
}

/// Registers in memory, from where a broadcast of one of their numbers takes none of the CPU's units for
/// shuffles, of which decoders have many.
#[inline(always)]
fn in_memory<S: Simd>(s: S, a: S::F) -> [f32; 16] {
    let mut numbers = [0.0; 16];
    // SAFETY: 16 numbers, in slices one after another.
    unsafe { s.store_slices(a, numbers.as_mut_ptr(), S::TILE_LANES) };
    numbers
}

/// Position of the decoder in a row.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct RowCursor<'a> {
    row: usize,
    codes: *const u8,
    /// Scales; the top of nested.
    scales: *const u8,
    /// Of encodings with patches: those from the next block on. With act-order: the group of
    /// each.
    beside: &'a [u8],
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> RowCursor<'a> {
    /// A cursor at the beginning of a row. The encoding is a constant when a kernel is compiled.
    #[inline(always)]
    pub(in crate::matmul) fn new(encoding: Encoding, m: &Matrix<'a>, row: usize) -> Self {
        let scales = match encoding {
            Encoding::Q8 | Encoding::Q4 | Encoding::Mxfp4 | Encoding::Nested => m.row_bytes(1, row),
            Encoding::Fp8 | Encoding::Fp7(_) | Encoding::Published(_) => m.scales(encoding, row),
            _ => &[],
        };
        RowCursor {
            row,
            codes: m.row_bytes(0, row).as_ptr(),
            scales: scales.as_ptr(),
            beside: match encoding {
                Encoding::Published(layout) if layout.has_order() => m.part(2),
                _ => m.patches(encoding, row),
            },
            bytes: PhantomData,
        }
    }

    /// The number of the row.
    #[inline(always)]
    pub(in crate::matmul) fn row(&self) -> usize {
        self.row
    }

    /// Start of the row's scales.
    #[inline(always)]
    pub(in crate::matmul) fn scales(&self) -> *const u8 {
        self.scales
    }

    /// Start of the row's bytes in the first part.
    #[inline(always)]
    pub(in crate::matmul) fn codes(&self) -> *const u8 {
        self.codes
    }

    /// [`Decoder::tail`] through the scalar reference.
    fn tail(&mut self, m: &Matrix<'a>) -> [f32; BLOCK] {
        let mut out = [0.0; BLOCK];
        let n = m.cols() % BLOCK;
        reference::decode_block(m, self.row, m.cols() / BLOCK, &mut self.beside, &mut out[..n]);
        out
    }
}

/// Use of decoded blocks. It is no closure, which would be compiled for the baseline CPU where it is not
/// inlined.
pub(in crate::matmul) trait Take<S: Simd> {
    /// Takes the columns of block `k` of a span.
    fn take(&mut self, s: S, k: usize, weights: [S::F; 4]);
}

/// Decoder of one encoding.
pub(in crate::matmul) trait Decoder<S: Simd>: Copy {
    /// The encoding that it decodes.
    const ENCODING: Encoding;

    /// Bytes of a block in the first part.
    const BYTES: usize;

    /// Blocks that are decoded together by [`span`](Self::span), the first of which has a number
    /// that is a multiple of this.
    const SPAN: usize = 1;

    /// Number of rows decoded at once, as measured to be fastest: 1, 2 or 4 (see `one.rs`).
    const ROWS: usize;

    fn new(s: S, m: &Matrix) -> Self;

    /// Decodes columns `64·b` to `64·b + 63`, in order. Blocks must be decoded in ascending order.
    ///
    /// # Safety
    ///
    /// The cursor must belong to a matrix in this encoding that has at least `64·b + 64` columns.
    /// `Matrix::block` checked that the row's parts are as long as the encoding says, so the reads
    /// below are inside them.
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4];

    /// What the blocks of a span have in common: scales, or codes that are decoded together.
    type Shared: Copy;

    /// Decodes what `SPAN` blocks from `b` on have in common.
    ///
    /// # Safety
    ///
    /// As for [`block`](Self::block), for all of them.
    unsafe fn shared(self, s: S, at: &RowCursor, b: usize) -> Self::Shared;

    /// Decodes `SPAN` blocks from `b` on.
    ///
    /// # Safety
    ///
    /// As for [`block`](Self::block), for all of them. `shared` must be what they have in common.
    #[inline(always)]
    unsafe fn span(
        self,
        s: S,
        at: &mut RowCursor,
        b: usize,
        _: &Self::Shared,
        to: &mut impl Take<S>,
    ) {
        for k in 0..Self::SPAN {
            // SAFETY: by this method's contract.
            to.take(s, k, unsafe { self.block(s, at, b + k) });
        }
    }

    /// Decodes the columns after the last whole block (fewer than 64) and pads them with zeros. The
    /// cursor must belong to this matrix and be past its whole blocks.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut RowCursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        load_block(s, &at.tail(m))
    }
}
