//! Decoders of e4m3 with scales of several kinds.

use std::marker::PhantomData;

use crate::encodings::{Decoder, RowCursor};
use crate::scalar::{BLOCK, E8M0, bf16_to_f32, e4m3_to_f32};
use crate::simd::{Simd, in_memory, load_block};
use crate::{Encoding, Fp8Scales, Matrix};

/// Scales of a block of 64 columns.
pub(in crate::encodings) trait BlockScales: Copy {
    /// Their kind.
    const KIND: Fp8Scales;

    /// The scales of both halves of block `b`, from the scales of a row.
    ///
    /// # Safety
    ///
    /// As for [`Decoder::block`].
    unsafe fn of(scales: *const u8, b: usize) -> [f32; 2];
}

/// Reads the f32 at an index.
#[inline(always)]
unsafe fn f32_at(scales: *const u8, index: usize) -> f32 {
    // SAFETY: by the caller's contract.
    let bits = unsafe { scales.cast::<u32>().add(index).read_unaligned() };
    f32::from_bits(u32::from_le(bits))
}

/// Reads the bf16 at an index.
#[inline(always)]
pub(in crate::encodings) unsafe fn bf16_at(scales: *const u8, index: usize) -> f32 {
    // SAFETY: by the caller's contract.
    bf16_to_f32(u16::from_le(unsafe { scales.cast::<u16>().add(index).read_unaligned() }))
}

/// Reads the e8m0 at an index.
#[inline(always)]
pub(in crate::encodings) unsafe fn e8m0_at(scales: *const u8, index: usize) -> f32 {
    // SAFETY: by the caller's contract.
    E8M0[usize::from(unsafe { *scales.add(index) })]
}

macro_rules! scales {
    ($($name:ident, $read:ident, |$b:ident| $indices:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::encodings) struct $name;

        impl BlockScales for $name {
            const KIND: Fp8Scales = Fp8Scales::$name;

            #[inline(always)]
            unsafe fn of(scales: *const u8, $b: usize) -> [f32; 2] {
                let [low, high]: [usize; 2] = $indices;
                // SAFETY: by the contract of the trait.
                unsafe { [$read(scales, low), $read(scales, high)] }
            }
        }
    )*};
}

scales! {
    Squares, f32_at, |b| [b / 2; 2];
    SquaresBf16, bf16_at, |b| [b / 2; 2];
    SquaresE8m0, e8m0_at, |b| [b / 2; 2];
    Rows, f32_at, |_b| [0; 2];
    RowsBf16, bf16_at, |_b| [0; 2];
    Whole, f32_at, |_b| [0; 2];
    WholeBf16, bf16_at, |_b| [0; 2];
    Thirtytwos, e8m0_at, |b| [2 * b, 2 * b + 1];
}

/// The power of two by which an f32 with the fields of e4m3 is too small.
pub(in crate::encodings) const REBIAS: f32 = f32::from_bits((127 + 120) << 23);
/// The bits of an f32 that a sign-extended e4m3 gets, 20 higher.
pub(in crate::encodings) const FIELDS: u32 = 0x87f0_0000;
/// Scales from here on exceed f32 when multiplied by that power.
const LARGE: f32 = 256.0;

/// A block with a NaN, or with a scale that is large or NaN, from the fields of its codes.
#[cold]
#[inline(never)]
fn rare(fields: &[[f32; 16]; 4], scales: [f32; 2]) -> [f32; BLOCK] {
    let mut numbers = [0.0; BLOCK];
    for (c, (number, fields)) in numbers.iter_mut().zip(fields.as_flattened()).enumerate() {
        let bits = fields.to_bits();
        *number = e4m3_to_f32((bits >> 24) as u8 & 0x80 | (bits >> 20) as u8 & 0x7f)
            * scales[2 * c / BLOCK];
    }
    numbers
}

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Fp8<K>(PhantomData<K>);

impl<S: Simd, K: BlockScales> Decoder<S> for Fp8<K> {
    const ENCODING: Encoding = Encoding::Fp8(K::KIND);
    const BYTES: usize = BLOCK;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Fp8(PhantomData)
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        let (scales, p) = unsafe { (K::of(at.scales, b), at.codes.add(BLOCK * b)) };
        let mask = s.splat_u(FIELDS);
        let mut fields = [s.splat(0.0); 4];
        for k in 0..4 {
            // SAFETY: by the contract of the trait.
            let code = unsafe { s.load_s8(p.add(16 * k)) };
            fields[k] = s.float(s.and(s.shl::<20>(code), mask));
        }
        // A magnitude of 0x7f is NaN, the only one that carries into the top bit when one is added.
        // SAFETY: by the contract of the trait.
        let bytes = s.and(unsafe { s.load_u32(p) }, s.splat_u(0x7f7f_7f7f));
        let carries = s.and(s.add_u(bytes, s.splat_u(0x0101_0101)), s.splat_u(0x8080_8080));
        scaled(s, fields, s.any(carries), scales)
    }
}

/// The numbers of 64 codes, whose fields are in the places of those of an f32, with a scale for each half.
#[inline(always)]
pub(in crate::encodings) fn scaled<S: Simd>(
    s: S,
    fields: [S::F; 4],
    has_nan: bool,
    scales: [f32; 2],
) -> [S::F; 4] {
    let is_small = scales[0].abs() < LARGE && scales[1].abs() < LARGE;
    if !is_small || has_nan {
        std::hint::cold_path();
        return load_block(s, &rare(&fields.map(|fields| in_memory(s, fields)), scales));
    }
    // The exponent of such an f32 is too small by 127 - 7. Its product with the scale times that power
    // is exact before it is rounded.
    let [low, high] = [s.splat(scales[0] * REBIAS), s.splat(scales[1] * REBIAS)];
    [s.mul(fields[0], low), s.mul(fields[1], low), s.mul(fields[2], high), s.mul(fields[3], high)]
}
