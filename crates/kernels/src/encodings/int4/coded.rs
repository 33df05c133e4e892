//! Kernels of encodings with four bits for each column and scales beside them.

use crate::encodings::{Coded, RowCursor};
use crate::simd::Simd;
use crate::{Encoding, Int4Groups, Matrix, ZerosGroup};

/// Scales of an encoding with two nibbles in a byte, in the order of columns.
pub(in crate::encodings) trait Scaled: Copy {
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
pub(in crate::encodings) struct Pairs<S: Simd, K> {
    table: S::Table,
    scales: K,
}

impl<S: Simd, K: Scaled> Coded<S> for Pairs<S, K> {
    const ENCODING: Encoding = K::ENCODING;
    const BYTES: usize = 128;
    type Shared = ();

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        Pairs { table: s.table(&K::TABLE), scales: K::new(m) }
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

/// Codes less 8 in groups of so many columns: 32 or 128.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Symmetric<const COLS: usize>;

impl<const COLS: usize> Scaled for Symmetric<COLS> {
    const ENCODING: Encoding = Encoding::Int4(Int4Groups::symmetric(COLS));

    #[inline(always)]
    fn new(_: &Matrix) -> Self {
        Symmetric
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(self, s: S, of_row: *const u8, span: usize, [to, _]: [*mut f32; 2]) {
        // SAFETY: by the contract of the trait.
        unsafe { s.store_h(s.bf16_h(of_row.add(512 / COLS * span), COLS / 32), to) };
    }
}

/// Groups of so many columns with zero points: 32, 64 or 128.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Zeros<const COLS: usize>;

impl<const COLS: usize> Scaled for Zeros<COLS> {
    const ENCODING: Encoding = Encoding::Int4(Int4Groups::Zeros(ZerosGroup::of(COLS)));

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
