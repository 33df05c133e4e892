//! Decoder of fp8.

use super::{Cursor, Decoder};
use crate::reference::BLOCK;
use crate::simd::Simd;
use crate::{Encoding, Matrix};

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Fp8;

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
