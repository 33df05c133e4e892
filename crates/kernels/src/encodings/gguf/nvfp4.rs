//! nvfp4 in blocks of 64 columns: four scales, and codes whose low nibbles are those of eight columns, and high
//! ones of the next eight.

use std::marker::PhantomData;

use super::reference::ue4m3_to_f32;
use crate::encodings::fp8::decode::REBIAS;
use crate::encodings::nvfp4::coded::of_matrix;
use crate::encodings::{Coded, RowCursor};
use crate::scalar::E2M1_CODES;
use crate::simd::Simd;
use crate::{Encoding, GgufBlocks, Matrix, Nvfp4Scale};

const BYTES: usize = GgufBlocks::Nvfp4.bytes();

/// What all scales of a matrix are multiplied by.
pub(in crate::encodings) trait Factor: Copy {
    const ENCODING: Encoding;

    /// Half of it.
    fn half(m: &Matrix) -> f32;
}

/// Nothing.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct One;

impl Factor for One {
    const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::Nvfp4);

    #[inline(always)]
    fn half(_: &Matrix) -> f32 {
        0.5
    }
}

/// The number of the matrix.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Number;

impl Factor for Number {
    const ENCODING: Encoding = Encoding::Nvfp4(Nvfp4Scale::OfBlocks);

    #[inline(always)]
    fn half(m: &Matrix) -> f32 {
        of_matrix(m, 1) * 0.5
    }
}

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Nvfp4<S: Simd, F> {
    table: S::Table,
    half: f32,
    factor: PhantomData<F>,
}

impl<S: Simd, F: Factor> Coded<S> for Nvfp4<S, F> {
    const ENCODING: Encoding = F::ENCODING;
    const BYTES: usize = 4 * BYTES;
    type Shared = ();

    #[inline(always)]
    fn new(s: S, m: &Matrix) -> Self {
        Nvfp4 { table: s.table(&E2M1_CODES), half: F::half(m), factor: PhantomData }
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
        let mut codes = [[0; 4]; 4];
        // SAFETY: by the contract of the trait; 16 numbers are written.
        unsafe {
            let p = at.codes().add(4 * BYTES * span);
            for block in 0..4 {
                codes[block] = p.add(BYTES * block).cast::<[u8; 4]>().read();
            }
            let of_runs = s.mul(of_ue4m3(s, &codes), s.splat(self.half));
            s.store_slices(of_runs, scales, S::TILE_LANES);
        }
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, (): &(), at: &RowCursor, unit: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe { s.looked_up(self.table, s.load_eighths(at.codes().add(BYTES * unit + 4))) }
    }
}

/// Sixteen numbers of e4m3 without signs, four of each block.
#[inline(always)]
fn of_ue4m3<S: Simd>(s: S, codes: &[[u8; 4]; 4]) -> S::F {
    // SAFETY: 16 bytes.
    let wide = s.and(unsafe { s.load_u8(codes.as_ptr().cast()) }, s.splat_u(0x7f));
    // Only a magnitude of 0x7f carries into the next bit when one is added.
    if s.any(s.and(s.add_u(wide, s.splat_u(1)), s.splat_u(0x80))) {
        std::hint::cold_path();
        // SAFETY: 16 numbers.
        return unsafe { s.load(rare(codes).as_ptr()) };
    }
    s.mul(s.float(s.shl::<20>(wide)), s.splat(REBIAS))
}

/// Scales of which one is zero by the code of NaN, or larger than all others.
#[cold]
#[inline(never)]
fn rare(codes: &[[u8; 4]; 4]) -> [f32; 16] {
    let mut numbers = [0.0; 16];
    for (number, code) in numbers.iter_mut().zip(codes.as_flattened()) {
        *number = ue4m3_to_f32(*code);
    }
    numbers
}
