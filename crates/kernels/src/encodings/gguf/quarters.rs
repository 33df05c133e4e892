//! The formats of GGUF files with codes of two to six bits in blocks of 256 columns.

use crate::encodings::{Coded, RowCursor};
use crate::simd::Simd;
use crate::{Encoding, GgufBlocks, Matrix};

/// A number of `N` bytes.
macro_rules! number {
    ($name:ident, $number:ty) => {
        /// A number of that many bits.
        ///
        /// # Safety
        ///
        /// Its bytes must be readable.
        #[inline(always)]
        pub(in crate::encodings) unsafe fn $name(p: *const u8) -> $number {
            // SAFETY: by this function's contract.
            <$number>::from_le(unsafe { p.cast::<$number>().read_unaligned() })
        }
    };
}

number!(of_16, u16);
number!(of_32, u32);
number!(of_64, u64);

/// Writes an f16 scale at `p`, with the bits of `sign` inverted, times each of these signed bytes: 16
/// numbers to `to`.
///
/// # Safety
///
/// Two bytes must be readable at `p`, and 16 numbers writable at `to`.
#[inline(always)]
pub(super) unsafe fn scaled<S: Simd>(s: S, p: *const u8, sign: u16, bytes: [u64; 2], to: *mut f32) {
    // SAFETY: by this function's contract; 16 numbers are written, in slices one after another.
    unsafe {
        let scales = s.times_bytes(s.splat_f16(of_16(p) ^ sign), bytes);
        s.store_slices(scales, to, S::TILE_LANES);
    }
}

/// Declares a decoder of blocks of 256 columns, given `p` at its block and the number of the unit in it.
macro_rules! quarters {
    ($($name:ident, |$s:ident, $p:ident, $to:ident, $added:ident| $scales:block, |$q:ident| $unit:block)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::encodings) struct $name;

        impl<S: Simd> Coded<S> for $name {
            const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::$name);
            const BYTES: usize = GgufBlocks::$name.bytes();
            type Shared = ();

            #[inline(always)]
            fn new(_: S, _: &Matrix) -> Self {
                $name
            }
            #[inline(always)]
            unsafe fn shared(self, _: S, _: &RowCursor, _: usize) {}
            #[inline(always)]
            unsafe fn scales(
                self,
                $s: S,
                (): &(),
                at: &RowCursor,
                span: usize,
                $to: *mut f32,
                $added: *mut f32,
            ) {
                // SAFETY: by the contract of the trait.
                unsafe {
                    let $p = at.codes().add(GgufBlocks::$name.bytes() * span);
                    $scales
                }
            }
            #[inline(always)]
            unsafe fn unit(self, $s: S, (): &(), at: &RowCursor, unit: usize) -> [S::F; 4] {
                // SAFETY: by the contract of the trait.
                unsafe {
                    let $p = at.codes().add(GgufBlocks::$name.bytes() * (unit / 4));
                    let $q = unit % 4;
                    $unit
                }
            }
        }
    )*};
}

const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;

quarters! {
    Q2K, |s, p, to, added| {
        let codes = [of_64(p), of_64(p.add(8))];
        scaled(s, p.add(80), 0, [codes[0] & LOW, codes[1] & LOW], to);
        let minima = [codes[0] >> 4 & LOW, codes[1] >> 4 & LOW];
        scaled(s, p.add(82), 0x8000, minima, added);
    }, |q| {
        s.fields(two_bits(s, p.add(16), q), 3)
    }
    Q3K, |s, p, to, _added| {
        scaled(s, p.add(108), 0, q3_k_runs(p), to);
    }, |q| {
        let codes = s.and_b(two_bits(s, p.add(32), q), 3);
        let thirds = s.load_b_shifted(p, [0, 0]);
        s.fields(s.add_tested(codes, thirds, [1 << (2 * q), 2 << (2 * q)], 4), 7)
    }
    Q4K, |s, p, to, added| {
        let [scales, minima] = s.scales_and_minima(p);
        s.store_h(scales, to);
        s.store_h(minima, added);
    }, |q| {
        s.fields(s.load_b_shifted(p.add(16 + 32 * q), [0, 4]), 15)
    }
    Q5K, |s, p, to, added| {
        let [scales, minima] = s.scales_and_minima(p);
        s.store_h(scales, to);
        s.store_h(minima, added);
    }, |q| {
        let codes = s.and_b(s.load_b_shifted(p.add(48 + 32 * q), [0, 4]), 15);
        let fifths = s.load_b_shifted(p.add(16), [0, 0]);
        s.fields(s.add_tested(codes, fifths, [1 << (2 * q), 2 << (2 * q)], 16), 31)
    }
    Q6K, |s, p, to, _added| {
        scaled(s, p.add(208), 0, [of_64(p.add(192)), of_64(p.add(200))], to);
    }, |q| {
        let odd = 4 * (q % 2) as u32;
        // The halves of a block, whose lower bits are in 64 bytes and upper ones in 32.
        let low = s.and_b(s.shr_b(s.load_b(p.add(64 * (q / 2))), odd), 15);
        let high = s.and_b(s.load_b_shifted(p.add(128 + 32 * (q / 2)), [odd, odd + 2]), 3);
        s.fields(s.or_b(low, s.shl4_b(high)), 63)
    }
    Tq2_0, |s, p, to, _added| {
        s.store_slices(s.splat_f16(of_16(p.add(64))), to, S::TILE_LANES);
    }, |q| {
        s.fields(two_bits(s, p, q), 3)
    }
}

/// The codes of two bits of a unit, of which four runs of 32 columns share 32 bytes from `p` on.
///
/// # Safety
///
/// 64 bytes must be readable at `p`, and `q` must be below four.
#[inline(always)]
unsafe fn two_bits<S: Simd>(s: S, p: *const u8, q: usize) -> S::B {
    let by = 4 * (q % 2) as u32;
    // SAFETY: by this function's contract.
    unsafe { s.load_b_shifted(p.add(32 * (q / 2)), [by, by + 2]) }
}

/// The whole numbers that scale the runs of a block of q3_k, as signed bytes.
///
/// # Safety
///
/// The block must be readable.
#[inline(always)]
pub(in crate::encodings) unsafe fn q3_k_runs(p: *const u8) -> [u64; 2] {
    // SAFETY: by this function's contract.
    let (low, high) = unsafe { (of_64(p.add(96)), of_32(p.add(104))) };
    // Two bits each, in the four bytes of every two bits' place.
    let upper = both(high & 0x0303_0303, high >> 2 & 0x0303_0303) << 4;
    let last = both(high >> 4 & 0x0303_0303, high >> 6 & 0x0303_0303) << 4;
    [less_32(low & LOW | upper), less_32(low >> 4 & LOW | last)]
}

#[inline(always)]
pub(in crate::encodings) fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Eight codes of six bits, less 32 each, as signed bytes.
#[inline(always)]
pub(super) fn less_32(codes: u64) -> u64 {
    // No byte borrows from another: each is at least 0x80 before.
    const TOP: u64 = 0x8080_8080_8080_8080;
    ((codes | TOP) - 0x2020_2020_2020_2020) ^ TOP
}
