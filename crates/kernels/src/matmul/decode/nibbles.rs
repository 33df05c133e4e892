//! Decoders of four-bit codes, two in a byte in the order of columns.

use super::fp8::{FIELDS, REBIAS, bf16_at};
use super::gguf::load;
use super::{Cursor, Decoder, Take, Times, in_memory};
use crate::reference::{BLOCK, E2M1, e4m3_to_f32, e8m0_to_f32, group_scale, zero_point};
use crate::simd::{Bf16s, Map, Simd, bf16s};
use crate::{Encoding, Matrix, Published};

/// Values of the sixteen codes under the scales of a block.
pub(in crate::matmul) trait Tables: Copy {
    /// The encoding that has them.
    const ENCODING: Encoding;

    /// The values of the codes without a scale.
    const VALUES: [f32; 16];

    /// Blocks whose scales are decoded together: one or four.
    const SPAN: usize = 1;

    /// Scales that were decoded together.
    type Shared: Copy;

    /// What is done to values.
    type Map<S: Simd>: Map<S>;

    fn new(m: &Matrix) -> Self;

    /// Decodes the scales of `blocks` blocks from `b` on: one, or `SPAN` of them.
    ///
    /// # Safety
    ///
    /// As for [`Decoder::block`], for all of them.
    unsafe fn shared<S: Simd>(
        self,
        s: S,
        scales: *const u8,
        b: usize,
        blocks: usize,
    ) -> Self::Shared;

    /// What is done to the values of quarter `k` of them all: a multiplication, rounded once.
    fn map<S: Simd>(self, s: S, shared: &Self::Shared, k: usize) -> Self::Map<S>;
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Pairs<S: Simd, K> {
    values: S::Sixteen,
    tables: K,
}

impl<S: Simd, K: Tables> Decoder<S> for Pairs<S, K> {
    const ENCODING: Encoding = K::ENCODING;
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 4;
    const SPAN: usize = K::SPAN;
    type Shared = K::Shared;

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        Pairs { values: s.sixteen(&K::VALUES), tables: K::new(m) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut Cursor, b: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let shared = self.tables.shared(s, at.scales, b, 1);
            self.looked_up(s, &shared, at.codes.add(BLOCK / 2 * b), 0)
        }
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, at: &Cursor, b: usize) -> K::Shared {
        // SAFETY: by the contract of the trait.
        unsafe { self.tables.shared(s, at.scales, b, K::SPAN) }
    }
    #[inline(always)]
    unsafe fn span(
        self,
        s: S,
        at: &mut Cursor,
        b: usize,
        shared: &K::Shared,
        to: &mut impl Take<S>,
    ) {
        // SAFETY: by the contract of the trait.
        unsafe {
            let codes = at.codes.add(BLOCK / 2 * b);
            to.take(s, 0, self.looked_up(s, shared, codes, 0));
            if K::SPAN == 4 {
                to.take(s, 1, self.looked_up(s, shared, codes.add(BLOCK / 2), 1));
                to.take(s, 2, self.looked_up(s, shared, codes.add(BLOCK), 2));
                to.take(s, 3, self.looked_up(s, shared, codes.add(3 * BLOCK / 2), 3));
            }
        }
    }
}

impl<S: Simd, K: Tables> Pairs<S, K> {
    /// # Safety
    ///
    /// 32 bytes must be readable at `codes`.
    #[inline(always)]
    unsafe fn looked_up(self, s: S, shared: &K::Shared, codes: *const u8, k: usize) -> [S::F; 4] {
        let (first, second) = (4 * k, 4 * k + 2);
        let first = [self.tables.map(s, shared, first), self.tables.map(s, shared, first + 1)];
        let second = [self.tables.map(s, shared, second), self.tables.map(s, shared, second + 1)];
        // SAFETY: by this function's contract.
        unsafe {
            let [a, b] = s.pairs(self.values, first, codes);
            let [c, d] = s.pairs(self.values, second, codes.add(16));
            [a, b, c, d]
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
            /// The scales of both halves.
            type Shared = [f32; 2];
            type Map<S: Simd> = Times<S::F>;

            #[inline(always)]
            fn new(_: &Matrix) -> Self {
                $name
            }
            #[inline(always)]
            unsafe fn shared<S: Simd>(
                self,
                _: S,
                scales: *const u8,
                $b: usize,
                _: usize,
            ) -> [f32; 2] {
                let [low, high]: [usize; 2] = $indices;
                // SAFETY: by the contract of the trait.
                unsafe { [$read(scales, low), $read(scales, high)] }
            }
            #[inline(always)]
            fn map<S: Simd>(self, s: S, scales: &[f32; 2], k: usize) -> Times<S::F> {
                Times(s.splat(scales[k / 2 % 2]))
            }
        }
    )*};
}

tables! {
    Int4, Encoding::Published(Published::Int4), INT4, bf16_at, |b| [2 * b, 2 * b + 1];
    Int4By128, Encoding::Published(Published::Int4By128), INT4, bf16_at, |b| [b / 2; 2];
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Mxfp4;

impl Tables for Mxfp4 {
    const ENCODING: Encoding = Encoding::Mxfp4;
    const VALUES: [f32; 16] = E2M1;
    /// The scales of both halves.
    type Shared = [u8; 2];
    type Map<S: Simd> = Power;

    #[inline(always)]
    fn new(_: &Matrix) -> Self {
        Mxfp4
    }
    #[inline(always)]
    unsafe fn shared<S: Simd>(self, _: S, scales: *const u8, b: usize, _: usize) -> [u8; 2] {
        // SAFETY: by the contract of the trait.
        unsafe { scales.add(2 * b).cast::<[u8; 2]>().read_unaligned() }
    }
    #[inline(always)]
    fn map<S: Simd>(self, _: S, scales: &[u8; 2], k: usize) -> Power {
        Power(scales[k / 2 % 2])
    }
}

/// A scale of e8m0 for numbers of e2m1.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Power(u8);

impl<S: Simd> Map<S> for Power {
    #[inline(always)]
    fn of(self, s: S, number: S::F) -> S::F {
        s.mul(number, s.splat(E8M0[usize::from(self.0)]))
    }
    #[inline(always)]
    fn kept(self) -> Option<&'static Bf16s> {
        Some(&SCALED[usize::from(self.0)])
    }
}

/// The numbers of e2m1 by their scale.
static SCALED: [Bf16s; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut code = 0;
    while code < 256 {
        tables[code] = scaled(&E2M1, e8m0_to_f32(code as u8));
        code += 1;
    }
    tables
};

/// Numbers that bf16 has, times a power of two, with which it has them too.
pub(super) const fn scaled(numbers: &[f32; 16], scale: f32) -> Bf16s {
    let mut products = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        products[i] = numbers[i] * scale;
        i += 1;
    }
    bf16s(&products)
}

/// nvfp4, with the scale of the matrix.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Nvfp4(f32);

impl Tables for Nvfp4 {
    const ENCODING: Encoding = Encoding::Published(Published::Nvfp4);
    const VALUES: [f32; 16] = E2M1;
    const SPAN: usize = 4;
    type Shared = [f32; 16];
    type Map<S: Simd> = Twice<S::F>;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Nvfp4(of_matrix(m))
    }
    #[inline(always)]
    unsafe fn shared<S: Simd>(self, s: S, scales: *const u8, b: usize, n: usize) -> [f32; 16] {
        // SAFETY: by the contract of the trait.
        in_memory(s, unsafe { sixteens(s, scales, b, n) })
    }
    #[inline(always)]
    fn map<S: Simd>(self, s: S, shared: &[f32; 16], k: usize) -> Twice<S::F> {
        Twice(s.splat(shared[k]), s.splat(self.0))
    }
}

/// Two scales, one after the other.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Twice<F>(F, F);

impl<S: Simd> Map<S> for Twice<S::F> {
    #[inline(always)]
    fn of(self, s: S, number: S::F) -> S::F {
        s.mul(s.mul(number, self.0), self.1)
    }
}

/// nvfp4, with the number of the matrix that divides its scales.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Nvfp4Divided(f32);

impl Tables for Nvfp4Divided {
    const ENCODING: Encoding = Encoding::Published(Published::Nvfp4Divided);
    const VALUES: [f32; 16] = E2M1;
    const SPAN: usize = 4;
    type Shared = [f32; 16];
    type Map<S: Simd> = Times<S::F>;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Nvfp4Divided(of_matrix(m))
    }
    #[inline(always)]
    unsafe fn shared<S: Simd>(self, s: S, scales: *const u8, b: usize, n: usize) -> [f32; 16] {
        // SAFETY: by the contract of the trait.
        in_memory(s, s.div(unsafe { sixteens(s, scales, b, n) }, s.splat(self.0)))
    }
    #[inline(always)]
    fn map<S: Simd>(self, s: S, shared: &[f32; 16], k: usize) -> Times<S::F> {
        Times(s.splat(shared[k]))
    }
}

/// Codes from 0 to 15.
const INTEGERS: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Groups of so many columns with zero points: 32, 64 or 128.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Zeros<const COLS: usize>;

impl<const COLS: usize> Tables for Zeros<COLS> {
    const ENCODING: Encoding = Encoding::Published(match COLS {
        32 => Published::Int4Zeros32,
        64 => Published::Int4Zeros64,
        _ => Published::Int4Zeros128,
    });
    const VALUES: [f32; 16] = INTEGERS;
    /// The units of both halves.
    type Shared = [u32; 2];
    type Map<S: Simd> = Less<S::F>;

    #[inline(always)]
    fn new(_: &Matrix) -> Self {
        Zeros
    }
    #[inline(always)]
    unsafe fn shared<S: Simd>(self, _: S, scales: *const u8, b: usize, _: usize) -> [u32; 2] {
        let [low, high] = match COLS {
            32 => [2 * b, 2 * b + 1],
            64 => [b, b],
            _ => [b / 2, b / 2],
        };
        // SAFETY: by the contract of the trait.
        unsafe { [unit_at(scales, low), unit_at(scales, high)] }
    }
    #[inline(always)]
    fn map<S: Simd>(self, s: S, units: &[u32; 2], k: usize) -> Less<S::F> {
        let unit = units[k / 2 % 2];
        Less(s.splat(-zero_point(unit)), s.splat(group_scale(unit)))
    }
}

/// A number to add, then a scale.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Less<F>(F, F);

impl<S: Simd> Map<S> for Less<S::F> {
    #[inline(always)]
    fn of(self, s: S, number: S::F) -> S::F {
        s.mul(s.fma(number, s.splat(1.0), self.0), self.1)
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

/// The scales of the quarters of four blocks from `b` on, or of one.
///
/// # Safety
///
/// As for [`Decoder::block`], for all of them.
#[inline(always)]
unsafe fn sixteens<S: Simd>(s: S, scales: *const u8, b: usize, blocks: usize) -> S::F {
    let mut codes = [0u8; 16];
    // SAFETY: by this function's contract.
    unsafe {
        match blocks {
            4 => codes = scales.add(4 * b).cast::<[u8; 16]>().read_unaligned(),
            _ => {
                let of_one = scales.add(4 * b).cast::<[u8; 4]>().read_unaligned();
                codes[..4].copy_from_slice(&of_one);
            }
        }
    }
    // SAFETY: 16 bytes.
    let wide = unsafe { s.load_s8(codes.as_ptr()) };
    // A magnitude of 0x7f is NaN, the only one that carries into the next bit when one is added.
    let carries = s.add_u(s.and(wide, s.splat_u(0x7f)), s.splat_u(1));
    if s.any(s.and(carries, s.splat_u(0x80))) {
        std::hint::cold_path();
        return load(s, &rare_scales(&codes));
    }
    s.mul(s.float(s.and(s.shl::<20>(wide), s.splat_u(FIELDS))), s.splat(REBIAS))
}

/// Scales of which one is NaN.
#[cold]
#[inline(never)]
fn rare_scales(codes: &[u8; 16]) -> [f32; 16] {
    codes.map(e4m3_to_f32)
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
