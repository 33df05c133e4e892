//! Decoders of four-bit codes, two in a byte in the order of columns.

use super::fp8::{bf16_at, e8m0_at};
use super::{Cursor, Decoder};
use crate::matmul::one::load_block;
use crate::reference::{BLOCK, E2M1, e4m3_to_f32, e8m0_to_f32, group_scale, zero_point};
use crate::simd::Simd;
use crate::{Encoding, Matrix, Published};

/// Values of the sixteen codes under the scales of a block.
pub(in crate::matmul) trait Tables: Copy {
    /// The encoding that has them.
    const ENCODING: Encoding;

    /// The values of the codes without a scale.
    const VALUES: [f32; 16];

    fn new(m: &Matrix) -> Self;

    /// The values in each quarter of block `b`: one multiplication for the products of all codes,
    /// each rounded once.
    ///
    /// # Safety
    ///
    /// As for [`Decoder::block`].
    unsafe fn of<S: Simd>(self, s: S, values: S::F, scales: *const u8, b: usize) -> [S::F; 4];
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Pairs<S: Simd, K> {
    values: S::F,
    tables: K,
}

impl<S: Simd, K: Tables> Decoder<S> for Pairs<S, K> {
    const ENCODING: Encoding = K::ENCODING;
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 4;

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        // SAFETY: 16 × f32 are 64 bytes.
        Pairs { values: unsafe { s.load(K::VALUES.as_ptr()) }, tables: K::new(m) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes.add(BLOCK / 2 * b);
            let [t0, t1, t2, t3] = self.tables.of(s, self.values, at.scales, b);
            [
                s.lookup(t0, s.load_nibbles(p)),
                s.lookup(t1, s.load_nibbles(p.add(8))),
                s.lookup(t2, s.load_nibbles(p.add(16))),
                s.lookup(t3, s.load_nibbles(p.add(24))),
            ]
        }
    }
}

const INT4: [f32; 16] = [-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.];

macro_rules! tables {
    ($($name:ident, $encoding:expr, $values:expr, $read:ident, |$b:ident| $indices:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::matmul) struct $name;

        impl Tables for $name {
            const ENCODING: Encoding = $encoding;
            const VALUES: [f32; 16] = $values;

            #[inline(always)]
            fn new(_: &Matrix) -> Self {
                $name
            }
            #[inline(always)]
            unsafe fn of<S: Simd>(
                self,
                s: S,
                values: S::F,
                scales: *const u8,
                $b: usize,
            ) -> [S::F; 4] {
                let [low, high]: [usize; 2] = $indices;
                // SAFETY: by the contract of the trait.
                let [low, high] = unsafe { [$read(scales, low), $read(scales, high)] };
                let (low, high) = (s.mul(values, s.splat(low)), s.mul(values, s.splat(high)));
                [low, low, high, high]
            }
        }
    )*};
}

tables! {
    Mxfp4, Encoding::Mxfp4, E2M1, e8m0_at, |b| [2 * b, 2 * b + 1];
    Int4, Encoding::Published(Published::Int4), INT4, bf16_at, |b| [2 * b, 2 * b + 1];
    Int4By128, Encoding::Published(Published::Int4By128), INT4, bf16_at, |b| [b / 2; 2];
}

/// nvfp4, with the scale of the matrix.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Nvfp4(f32);

impl Tables for Nvfp4 {
    const ENCODING: Encoding = Encoding::Published(Published::Nvfp4);
    const VALUES: [f32; 16] = E2M1;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Nvfp4(of_matrix(m))
    }
    #[inline(always)]
    unsafe fn of<S: Simd>(self, s: S, values: S::F, scales: *const u8, b: usize) -> [S::F; 4] {
        let second = s.splat(self.0);
        // SAFETY: by the contract of the trait.
        let first = unsafe { sixteens(scales, b) };
        let mut tables = [second; 4];
        for k in 0..4 {
            tables[k] = s.mul(s.mul(values, s.splat(first[k])), second);
        }
        tables
    }
}

/// nvfp4, with the number of the matrix that divides its scales.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Nvfp4Divided(f32);

impl Tables for Nvfp4Divided {
    const ENCODING: Encoding = Encoding::Published(Published::Nvfp4Divided);
    const VALUES: [f32; 16] = E2M1;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Nvfp4Divided(of_matrix(m))
    }
    #[inline(always)]
    unsafe fn of<S: Simd>(self, s: S, values: S::F, scales: *const u8, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        let mut first = unsafe { sixteens(scales, b) };
        let mut tables = [values; 4];
        for k in 0..4 {
            first[k] /= self.0;
        }
        for k in 0..4 {
            tables[k] = s.mul(values, s.splat(first[k]));
        }
        tables
    }
}

/// Codes from 0 to 15.
const INTEGERS: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Groups with zero points, of 32, 64 or 128 columns.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Zeros {
    /// Logarithm of the columns of a group.
    shift: u32,
}

impl Tables for Zeros {
    /// One of three, whose rows lie alike.
    const ENCODING: Encoding = Encoding::Published(Published::Int4Zeros128);
    const VALUES: [f32; 16] = INTEGERS;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        let shift = match m.encoding() {
            Encoding::Published(Published::Int4Zeros32) => 5,
            Encoding::Published(Published::Int4Zeros64) => 6,
            _ => 7,
        };
        Zeros { shift }
    }
    #[inline(always)]
    unsafe fn of<S: Simd>(self, s: S, values: S::F, scales: *const u8, b: usize) -> [S::F; 4] {
        let mut tables = [values; 2];
        for half in 0..2 {
            let group = (BLOCK * b + BLOCK / 2 * half) >> self.shift;
            // SAFETY: by the contract of the trait.
            let unit = unsafe { unit_at(scales, group) };
            let codes = s.fma(values, s.splat(1.0), s.splat(-zero_point(unit)));
            tables[half] = s.mul(codes, s.splat(group_scale(unit)));
        }
        [tables[0], tables[0], tables[1], tables[1]]
    }
}

/// Groups with zero points, in which columns lie in any order.
///
/// Columns are summed in their own order, so each looks up its group. Sorting columns by group would
/// need activations in the order of each matrix, and give sums in another order.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct ActOrder<S: Simd> {
    values: S::F,
    /// The last group.
    last: usize,
}

impl<S: Simd> Decoder<S> for ActOrder<S> {
    /// One of three, whose rows lie alike.
    const ENCODING: Encoding = Encoding::Published(Published::Int4ActOrder128);
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 2;

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        let group = match m.encoding() {
            Encoding::Published(Published::Int4ActOrder32) => 32,
            Encoding::Published(Published::Int4ActOrder64) => 64,
            _ => 128,
        };
        let last = m.cols().div_ceil(group).saturating_sub(1);
        // SAFETY: 16 × f32 are 64 bytes.
        ActOrder { values: unsafe { s.load(INTEGERS.as_ptr()) }, last }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        let mut zeros = [0.0; BLOCK];
        let mut scales = [0.0; BLOCK];
        let order = at.beside[2 * BLOCK * b..].first_chunk::<{ 2 * BLOCK }>();
        let order = order.expect("a whole block").as_chunks().0;
        for c in 0..BLOCK {
            let group = usize::from(u16::from_le_bytes(order[c])).min(self.last);
            // SAFETY: by the contract of the trait, and a row has a unit for every group.
            let unit = unsafe { unit_at(at.scales, group) };
            zeros[c] = -zero_point(unit);
            scales[c] = group_scale(unit);
        }
        let (mut zeros, scales) = (load_block(s, &zeros), load_block(s, &scales));
        for k in 0..4 {
            // SAFETY: by the contract of the trait.
            let codes = unsafe { s.load_nibbles(at.codes.add(BLOCK / 2 * b + 8 * k)) };
            let less = s.fma(s.lookup(self.values, codes), s.splat(1.0), zeros[k]);
            zeros[k] = s.mul(less, scales[k]);
        }
        zeros
    }
}

/// The unit of a group: a scale, and a zero point in its lowest bits.
///
/// # Safety
///
/// There must be so many units.
#[inline(always)]
unsafe fn unit_at(units: *const u8, index: usize) -> u32 {
    // SAFETY: by this function's contract.
    u32::from_le_bytes(unsafe { units.add(4 * index).cast::<[u8; 4]>().read_unaligned() })
}

/// The number of a whole matrix of nvfp4.
#[inline(always)]
fn of_matrix(m: &Matrix) -> f32 {
    m.part(2).first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
}

/// The scales of the quarters of block `b`.
///
/// # Safety
///
/// As for [`Decoder::block`].
#[inline(always)]
unsafe fn sixteens(scales: *const u8, b: usize) -> [f32; 4] {
    // SAFETY: by this function's contract.
    let codes = unsafe { scales.add(4 * b).cast::<[u8; 4]>().read_unaligned() };
    [
        E4M3[usize::from(codes[0])],
        E4M3[usize::from(codes[1])],
        E4M3[usize::from(codes[2])],
        E4M3[usize::from(codes[3])],
    ]
}

/// The values of e8m0.
pub(super) static E8M0: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e8m0_to_f32(code as u8);
        code += 1;
    }
    values
};

/// The values of e4m3.
static E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e4m3_to_f32(code as u8);
        code += 1;
    }
    values
};
