//! Kernels of nvfp4.

use crate::encodings::fp8::decode::{FIELDS, REBIAS};
use crate::encodings::int4::coded::Scaled;
use crate::scalar::{E2M1_CODES, e4m3_to_f32};
use crate::simd::Simd;
use crate::{Encoding, Matrix, Nvfp4Scale};

/// nvfp4, with half the scale of the matrix.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Times(f32);

impl Scaled for Times {
    const ENCODING: Encoding = Encoding::Nvfp4(Nvfp4Scale::Times);
    const TABLE: [u8; 16] = E2M1_CODES;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Times(of_matrix(m, 2) * 0.5)
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
pub(in crate::encodings) struct Divided(f32);

impl Scaled for Divided {
    const ENCODING: Encoding = Encoding::Nvfp4(Nvfp4Scale::Divided);
    const TABLE: [u8; 16] = E2M1_CODES;

    #[inline(always)]
    fn new(m: &Matrix) -> Self {
        Divided(of_matrix(m, 2))
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

/// The number of a whole matrix of nvfp4, which is this part.
#[inline(always)]
pub(in crate::encodings) fn of_matrix(m: &Matrix, part: usize) -> f32 {
    m.part(part).first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
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
