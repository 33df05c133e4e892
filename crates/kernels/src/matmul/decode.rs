//! Decoders from blocks of 64 columns to f32, one per encoding, for any instruction set.

use std::marker::PhantomData;

use super::one::load_block;
use crate::reference::{self, BLOCK, E2M1, Q8_0_BYTES, bf16_to_f32, e8m0_to_f32, f16_to_f32};
use crate::simd::{Simd, bf12_tail, exponent_lanes};
use crate::{Encoding, Matrix};

/// Position of the decoder in a row.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    row: usize,
    codes: *const u8,
    scales: *const u8,
    /// bf12: the patches from the next block on.
    patches: &'a [u8],
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Cursor<'a> {
    /// A cursor at the beginning of a row. The encoding is a constant when a kernel is compiled.
    #[inline(always)]
    pub(super) fn new(encoding: Encoding, m: &Matrix<'a>, row: usize) -> Self {
        let scales = match encoding {
            Encoding::Q8 | Encoding::Q4 | Encoding::Mxfp4 => m.row_bytes(1, row),
            Encoding::Fp8 => m.fp8_scales(row),
            _ => &[],
        };
        Cursor {
            row,
            codes: m.row_bytes(0, row).as_ptr(),
            scales: scales.as_ptr(),
            patches: if encoding == Encoding::Bf12 { m.escapes(row) } else { &[] },
            bytes: PhantomData,
        }
    }

    /// Start of the row's bytes in the first part.
    #[inline(always)]
    pub(super) fn codes(&self) -> *const u8 {
        self.codes
    }

    /// [`Decoder::tail`] through the scalar reference.
    fn tail(&mut self, m: &Matrix<'a>) -> [f32; BLOCK] {
        let mut out = [0.0; BLOCK];
        let n = m.cols() % BLOCK;
        reference::decode_block(m, self.row, m.cols() / BLOCK, &mut self.patches, &mut out[..n]);
        out
    }
}

/// Decoder of one encoding.
pub(super) trait Decoder<S: Simd>: Copy {
    /// The encoding that it decodes.
    const ENCODING: Encoding;

    /// Bytes of a block in the first part.
    const BYTES: usize;

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
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4];

    /// Decodes the columns after the last whole block (fewer than 64) and pads them with zeros. The
    /// cursor must belong to this matrix and be past its whole blocks.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut Cursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        load_block(s, &at.tail(m))
    }
}

#[derive(Clone, Copy)]
pub(super) struct F32;

impl<S: Simd> Decoder<S> for F32 {
    const ENCODING: Encoding = Encoding::F32;
    const BYTES: usize = 4 * BLOCK;
    const ROWS: usize = 1;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        F32
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(4 * BLOCK * b);
            let part = |k: usize| s.float(s.load_u32(p.add(64 * k)));
            [part(0), part(1), part(2), part(3)]
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct F16;

impl<S: Simd> Decoder<S> for F16 {
    const ENCODING: Encoding = Encoding::F16;
    const BYTES: usize = 2 * BLOCK;
    const ROWS: usize = 1;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        F16
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * BLOCK * b);
            [s.load_f16(p), s.load_f16(p.add(32)), s.load_f16(p.add(64)), s.load_f16(p.add(96))]
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl<S: Simd> Decoder<S> for Bf16 {
    const ENCODING: Encoding = Encoding::Bf16;
    const BYTES: usize = 2 * BLOCK;
    const ROWS: usize = 1;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Bf16
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(2 * BLOCK * b);
            let part = |k: usize| s.float(s.shl::<16>(s.load_u16(p.add(32 * k))));
            [part(0), part(1), part(2), part(3)]
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Bf12<S: Simd> {
    exponents: S::Exponents,
    of_tail: S::F,
}

impl<S: Simd> Decoder<S> for Bf12<S> {
    const ENCODING: Encoding = Encoding::Bf12;
    const BYTES: usize = BLOCK + BLOCK / 2;
    const ROWS: usize = 2;

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        let table = m.exponents();
        Bf12 { exponents: s.exponents(&table), of_tail: exponent_lanes(s, &table) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add((BLOCK + BLOCK / 2) * b);
            s.bf12(self.exponents, p, &mut at.patches)
        }
    }
    /// Vectorised, because the scalar reference took more than a quarter of the run time of a model
    /// whose experts are 96 columns wide.
    #[inline(always)]
    fn tail<'a>(self, s: S, at: &mut Cursor<'a>, m: &Matrix<'a>) -> [S::F; 4] {
        let (whole, n) = (m.cols() / BLOCK, m.cols() % BLOCK);
        let tail = &m.row_bytes(0, at.row)[whole * (BLOCK + BLOCK / 2)..];
        bf12_tail(s, self.of_tail, tail, n, &mut at.patches)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q8;

impl<S: Simd> Decoder<S> for Q8 {
    const ENCODING: Encoding = Encoding::Q8;
    const BYTES: usize = BLOCK;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q8
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let scale = s.splat(bf16_scale(at, b));
            let p = at.codes.add(BLOCK * b);
            let part = |k: usize| s.mul(s.load_i8(p.add(16 * k)), scale);
            [part(0), part(1), part(2), part(3)]
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q4<S: Simd> {
    values: S::F,
}

impl<S: Simd> Decoder<S> for Q4<S> {
    const ENCODING: Encoding = Encoding::Q4;
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        let values: [f32; 16] =
            [0., 1., 2., 3., 4., 5., 6., 7., -8., -7., -6., -5., -4., -3., -2., -1.];
        // SAFETY: 16 × f32 are 64 bytes.
        Q4 { values: unsafe { s.load(values.as_ptr()) } }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        let codes = unsafe { s.load_u16(at.codes.add(BLOCK / 2 * b)) };
        // SAFETY: likewise.
        let scale = unsafe { bf16_scale(at, b) };
        // The products of the sixteen codes and the scale, each rounded once: one multiplication
        // and four lookups.
        let weights = s.mul(self.values, s.splat(scale));
        [
            s.lookup(weights, codes),
            s.lookup(weights, s.shr::<4>(codes)),
            s.lookup(weights, s.shr::<8>(codes)),
            s.lookup(weights, s.shr::<12>(codes)),
        ]
    }
}

#[derive(Clone, Copy)]
pub(super) struct Fp8;

impl<S: Simd> Decoder<S> for Fp8 {
    const ENCODING: Encoding = Encoding::Fp8;
    const BYTES: usize = BLOCK;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Fp8
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        let (scale, p) = unsafe {
            let scale = at.scales.add(4 * (b / 2)).cast::<u32>().read_unaligned();
            (s.splat(f32::from_bits(u32::from_le(scale))), at.codes.add(BLOCK * b))
        };
        // The fields of e4m3 are moved to those of an f32, whose exponent is then too small by
        // 127 - 7. The multiplication is exact, for subnormals too.
        let fields = s.splat_u(0x87f0_0000);
        let rebias = s.splat(2f32.powi(120));
        let value = |k: usize| {
            // SAFETY: by the contract of the trait.
            let code = unsafe { s.load_u8(p.add(16 * k)) };
            s.mul(s.float(s.and(s.sra::<4>(s.shl::<24>(code)), fields)), rebias)
        };
        let mut values = [value(0), value(1), value(2), value(3)];
        // A magnitude of 0x7f is NaN, the only one that carries into the top bit when one is added.
        // SAFETY: by the contract of the trait.
        let bytes = s.and(unsafe { s.load_u32(p) }, s.splat_u(0x7f7f_7f7f));
        let carries = s.and(s.add_u(bytes, s.splat_u(0x0101_0101)), s.splat_u(0x8080_8080));
        if s.any(carries) {
            std::hint::cold_path();
            for (k, value) in values.iter_mut().enumerate() {
                // SAFETY: by the contract of the trait.
                let code = s.and(unsafe { s.load_u8(p.add(16 * k)) }, s.splat_u(0x7f));
                let all_ones = s.sra::<31>(s.shl::<24>(s.add_u(code, s.splat_u(1))));
                *value = s.float(s.or(s.bits(*value), all_ones));
            }
        }
        [
            s.mul(values[0], scale),
            s.mul(values[1], scale),
            s.mul(values[2], scale),
            s.mul(values[3], scale),
        ]
    }
}

#[derive(Clone, Copy)]
pub(super) struct Mxfp4<S: Simd> {
    values: S::F,
}

impl<S: Simd> Decoder<S> for Mxfp4<S> {
    const ENCODING: Encoding = Encoding::Mxfp4;
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        // SAFETY: 16 × f32 are 64 bytes.
        Mxfp4 { values: unsafe { s.load(E2M1.as_ptr()) } }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(BLOCK / 2 * b);
            let scale = |h: usize| {
                let byte = *at.scales.add(2 * b + h);
                s.mul(self.values, s.splat(SCALES[usize::from(byte)]))
            };
            let (low, high) = (scale(0), scale(1));
            [
                s.lookup(low, s.load_nibbles(p)),
                s.lookup(low, s.load_nibbles(p.add(8))),
                s.lookup(high, s.load_nibbles(p.add(16))),
                s.lookup(high, s.load_nibbles(p.add(24))),
            ]
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q8_0;

impl<S: Simd> Decoder<S> for Q8_0 {
    const ENCODING: Encoding = Encoding::Q8_0;
    const BYTES: usize = 2 * Q8_0_BYTES;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q8_0
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait. A block is two units of a scale and 32 codes.
        unsafe {
            let p = at.codes.add(2 * Q8_0_BYTES * b);
            let q = p.add(Q8_0_BYTES);
            let scale =
                |p: *const u8| s.splat(f16_to_f32(u16::from_le(p.cast::<u16>().read_unaligned())));
            let (low, high) = (scale(p), scale(q));
            [
                s.mul(s.load_i8(p.add(2)), low),
                s.mul(s.load_i8(p.add(18)), low),
                s.mul(s.load_i8(q.add(2)), high),
                s.mul(s.load_i8(q.add(18)), high),
            ]
        }
    }
}

static SCALES: [f32; 256] = {
    let mut scales = [0.0; 256];
    let mut s = 0;
    while s < 256 {
        scales[s] = e8m0_to_f32(s as u8);
        s += 1;
    }
    scales
};

/// The scale of a block.
///
/// # Safety
///
/// As for [`Decoder::block`]. The encoding must have a two-byte scale for each block.
#[inline(always)]
unsafe fn bf16_scale(at: &Cursor, b: usize) -> f32 {
    // SAFETY: each block has a scale, by this function's contract.
    bf16_to_f32(u16::from_le(unsafe { at.scales.cast::<u16>().add(b).read_unaligned() }))
}
