//! Encodings with four bits for each column and scales beside them.

use super::super::decode::{FIELDS, REBIAS, RowCursor};
use super::Coded;
use crate::reference::{E2M1_CODES, e4m3_to_f32};
use crate::simd::Simd;
use crate::{Encoding, Matrix, Published};

/// Scales of an encoding with two nibbles in a byte, in the order of columns.
pub(in crate::matmul) trait Scaled: Copy {
    const ENCODING: Encoding;
    /// Codes of the nibbles.
    const TABLE: [u8; 16] = IDENTITY;

    fn new(m: &Matrix) -> Self;

    /// [`Coded::scales`] of the span.
    ///
    /// # Safety
    ///
    /// The scales of a row with all columns of this span must be readable, and 16 numbers writable at each
    /// of `to`.
    unsafe fn scales<S: Simd>(self, s: S, of_row: *const u8, span: usize, to: [*mut f32; 2]);
}

const IDENTITY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// [`Coded`] of such an encoding.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct CodedPairs<S: Simd, K> {
    table: S::Table,
    scales: K,
}

impl<S: Simd, K: Scaled> Coded<S> for CodedPairs<S, K> {
    const ENCODING: Encoding = K::ENCODING;
    const BYTES: usize = 128;
    type Shared = ();

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        CodedPairs { table: s.table(&K::TABLE), scales: K::new(m) }
    }
    #[inline(always)]
    unsafe fn shared(self, _: S, _: &RowCursor, _: usize) {}
    #[inline(always)]
    unsafe fn scales(
        self,
        s: S,
        (): &(),
        at: &RowCursor,
        span: usize,
        scales: *mut f32,
        added: *mut f32,
    ) {
        // SAFETY: by the contract of the trait.
        unsafe { self.scales.scales(s, at.scales(), span, [scales, added]) };
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, (): &(), at: &RowCursor, unit: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes().add(32 * unit);
            match K::TABLE[15] {
                15 => s.plain_nibbles(self.table, p),
                _ => s.nibbles(self.table, p),
            }
        }
    }
}

macro_rules! scaled {
    ($($name:ident, $encoding:expr, $table:expr, |$s:ident, $p:ident, $span:ident| $scales:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::matmul) struct $name;

        impl Scaled for $name {
            const ENCODING: Encoding = $encoding;
            const TABLE: [u8; 16] = $table;

            #[inline(always)]
            fn new(_: &Matrix) -> Self {
                $name
            }
            #[inline(always)]
            unsafe fn scales<S: Simd>(
                self,
                $s: S,
                $p: *const u8,
                $span: usize,
                [to, _]: [*mut f32; 2],
            ) {
                // SAFETY: by the contract of the trait.
                unsafe { $s.store_h($scales, to) };
            }
        }
    )*};
}

scaled! {
    Int4, Encoding::Published(Published::Int4), IDENTITY, |s, p, span| s.bf16_h(p.add(16 * span), 1);
    Int4By128, Encoding::Published(Published::Int4By128), IDENTITY,
        |s, p, span| s.bf16_h(p.add(4 * span), 4);
}

/// Groups of so many columns with zero points: 32, 64 or 128.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Zeros<const COLS: usize>;

impl<const COLS: usize> Scaled for Zeros<COLS> {
    const ENCODING: Encoding = Encoding::Published(match COLS {
        32 => Published::Int4Zeros32,
        64 => Published::Int4Zeros64,
        _ => Published::Int4Zeros128,
    });

    #[inline(always)]
    fn new(_: &Matrix) -> Self {
        Zeros
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(
        self,
        s: S,
        of_row: *const u8,
        span: usize,
        [scales, added]: [*mut f32; 2],
    ) {
        let times = COLS / 32;
        // SAFETY: by the contract of the trait.
        unsafe {
            let [of_runs, minima] = s.zeros_h(of_row.add(32 / times * span), times);
            s.store_h(of_runs, scales);
            s.store_h(minima, added);
        }
    }
}

/// nvfp4, with half the scale of the matrix.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Nvfp4(f32);

impl Scaled for Nvfp4 {
    const ENCODING: Encoding = Encoding::Published(Published::Nvfp4);
    const TABLE: [u8; 16] = E2M1_CODES;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Nvfp4(of_matrix(m) * 0.5)
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(self, s: S, of_row: *const u8, span: usize, [to, _]: [*mut f32; 2]) {
        // SAFETY: by the contract of the trait; 16 numbers are written.
        unsafe {
            let scales = s.mul(of_e4m3(s, of_row.add(16 * span)), s.splat(self.0));
            s.store_slices(scales, to, S::TILE_LANES);
        }
    }
}

/// nvfp4, with the number of the matrix that divides its scales.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Nvfp4Divided(f32);

impl Scaled for Nvfp4Divided {
    const ENCODING: Encoding = Encoding::Published(Published::Nvfp4Divided);
    const TABLE: [u8; 16] = E2M1_CODES;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Nvfp4Divided(of_matrix(m))
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(self, s: S, of_row: *const u8, span: usize, [to, _]: [*mut f32; 2]) {
        // SAFETY: by the contract of the trait; 16 numbers are written.
        unsafe {
            let scales = s.div(of_e4m3(s, of_row.add(16 * span)), s.splat(self.0));
            let scales = s.mul(scales, s.splat(0.5));
            s.store_slices(scales, to, S::TILE_LANES);
        }
    }
}

/// The number of a whole matrix of nvfp4.
#[inline(always)]
fn of_matrix(m: &Matrix) -> f32 {
    m.part(2).first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
}

/// Sixteen numbers of e4m3.
///
/// # Safety
///
/// They must be readable.
#[inline(always)]
unsafe fn of_e4m3<S: Simd>(s: S, p: *const u8) -> S::F {
    // SAFETY: by this function's contract.
    let wide = unsafe { s.load_s8(p) };
    // A magnitude of 0x7f is NaN, the only one that carries into the next bit when one is added.
    let carries = s.add_u(s.and(wide, s.splat_u(0x7f)), s.splat_u(1));
    if s.any(s.and(carries, s.splat_u(0x80))) {
        std::hint::cold_path();
        // SAFETY: by this function's contract, and 16 numbers.
        return unsafe { s.load(rare(&p.cast::<[u8; 16]>().read_unaligned()).as_ptr()) };
    }
    s.mul(s.float(s.and(s.shl::<20>(wide), s.splat_u(FIELDS))), s.splat(REBIAS))
}

/// Scales of which one is NaN.
#[cold]
#[inline(never)]
fn rare(codes: &[u8; 16]) -> [f32; 16] {
    codes.map(e4m3_to_f32)
}

/// Codes in groups of 64 columns, of which every sixteenth one is in the same two bytes.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q4;

impl<S: Simd> Coded<S> for Q4 {
    const ENCODING: Encoding = Encoding::Q4;
    const BYTES: usize = 128;
    type Shared = ();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q4
    }
    #[inline(always)]
    unsafe fn shared(self, _: S, _: &RowCursor, _: usize) {}
    #[inline(always)]
    unsafe fn scales(
        self,
        s: S,
        (): &(),
        at: &RowCursor,
        span: usize,
        scales: *mut f32,
        _: *mut f32,
    ) {
        // SAFETY: by the contract of the trait.
        unsafe { s.store_h(s.bf16_h(at.scales().add(8 * span), 2), scales) };
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, (): &(), at: &RowCursor, unit: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe { s.apart(at.codes().add(32 * unit)) }
    }
}
