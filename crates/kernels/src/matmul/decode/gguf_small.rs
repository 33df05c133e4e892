//! The formats of GGUF files with codes of two and three bits, in blocks of 256 columns.

use super::gguf_quarters::{Quarter, both, eight, four, less_32, negated, scaled, times};
use super::{Times, TimesPlus, in_memory};
use crate::GgufBlocks;
use crate::simd::{Simd, UNIT};

/// The unit of numbers that scales are multiplied by.
const fn unit<S: Simd>() -> f32 {
    if S::LOOKS_UP_LANES { 1.0 } else { UNIT }
}

/// The codes of two bits of a quarter, of which four runs of 32 columns share 32 bytes from `p` on.
///
/// # Safety
///
/// 64 bytes must be readable at `p`, and `q` must be below four.
#[inline(always)]
unsafe fn two_bits<S: Simd>(s: S, p: *const u8, q: usize) -> S::B {
    let by = 4 * (q % 2) as u32;
    // SAFETY: by this function's contract.
    s.and_b(unsafe { s.load_b_shifted(p.add(32 * (q / 2)), [by, by + 2]) }, 3)
}

/// By two low bits of four, and by the two others.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q2K<S: Simd>([S::Sixteen; 2]);

impl<S: Simd> Quarter<S> for Q2K<S> {
    const FORMAT: GgufBlocks = GgufBlocks::Q2K;
    /// Scales, and minima with the other sign.
    type Shared = [[f32; 16]; 2];

    #[inline(always)]
    fn new(s: S) -> Self {
        const LOW: [f32; 16] = [0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3.];
        const HIGH: [f32; 16] = [0., 0., 0., 0., 1., 1., 1., 1., 2., 2., 2., 2., 3., 3., 3., 3.];
        Q2K([s.sixteen(&LOW), s.sixteen(&HIGH)])
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, p: *const u8) -> Self::Shared {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        // SAFETY: by the contract of the trait.
        unsafe {
            let (first, second) = (eight(p), eight(p.add(8)));
            let scales = scaled(s, p.add(80), [first & LOW, second & LOW]);
            let minima = negated(s, p.add(82), [first >> 4 & LOW, second >> 4 & LOW]);
            [in_memory(s, s.mul(scales, s.splat(unit::<S>()))), in_memory(s, minima)]
        }
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, shared: &Self::Shared, p: *const u8, q: usize) -> [S::F; 4] {
        let [scales, minima] = shared;
        if S::LOOKS_UP_LANES {
            let mut numbers = [s.splat(0.0); 4];
            for k in 0..4 {
                let maps = [TimesPlus(s.splat(scales[4 * q + k]), s.splat(minima[4 * q + k])); 2];
                // SAFETY: by the contract of the trait.
                unsafe {
                    let codes = p.add(16 + 32 * (q / 2) + 16 * (k % 2));
                    numbers[k] = s.halves(self.0[k / 2], maps, codes)[q % 2];
                }
            }
            return numbers;
        }
        // SAFETY: by the contract of the trait.
        let mut numbers = s.numbers(unsafe { two_bits(s, p.add(16), q) });
        for k in 0..4 {
            let (scale, minimum) = (s.splat(scales[4 * q + k]), s.splat(minima[4 * q + k]));
            numbers[k] = s.fma(numbers[k], scale, minimum);
        }
        numbers
    }
}

#[derive(Clone, Copy)]
pub(in crate::matmul) struct Q3K<S: Simd>(S::Sixteen);

impl<S: Simd> Quarter<S> for Q3K<S> {
    const FORMAT: GgufBlocks = GgufBlocks::Q3K;
    /// Scales, and the third bits of all quarters, or nibbles with whole codes: those of the first 32
    /// columns of quarters, and of the last.
    type Shared = ([f32; 16], [S::B; 2]);

    #[inline(always)]
    fn new(s: S) -> Self {
        const NUMBERS: [f32; 16] =
            [-4., -3., -2., -1., 0., 1., 2., 3., -4., -3., -2., -1., 0., 1., 2., 3.];
        Q3K(s.sixteen(&NUMBERS))
    }
    #[inline(always)]
    unsafe fn shared(self, s: S, p: *const u8) -> Self::Shared {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        // SAFETY: by the contract of the trait.
        let (low, high) = unsafe { (eight(p.add(96)), four(p.add(104))) };
        // Two bits each, in the four bytes of every two bits' place.
        let upper = both(high & 0x0303_0303, high >> 2 & 0x0303_0303) << 4;
        let last = both(high >> 4 & 0x0303_0303, high >> 6 & 0x0303_0303) << 4;
        let codes = [less_32(low & LOW | upper), less_32(low >> 4 & LOW | last)];
        // SAFETY: by the contract of the trait.
        unsafe {
            let scales = s.mul(scaled(s, p.add(108), codes), s.splat(unit::<S>()));
            let bits = match S::LOOKS_UP_LANES {
                true => nibbles(s, s.load_b(p.add(32)), s.load_b_shifted(p, [0, 4])),
                false => [s.load_b_shifted(p, [0, 0]); 2],
            };
            (in_memory(s, scales), bits)
        }
    }
    #[inline(always)]
    unsafe fn quarter(self, s: S, shared: &Self::Shared, p: *const u8, q: usize) -> [S::F; 4] {
        let (scales, [thirds, _]) = shared;
        if S::LOOKS_UP_LANES {
            let mut numbers = [s.splat(0.0); 4];
            for k in 0..4 {
                let maps = [Times(s.splat(scales[4 * q + k])); 2];
                // SAFETY: each register has 64 bytes.
                unsafe {
                    let codes = (&raw const shared.1[k / 2]).cast::<u8>();
                    let codes = codes.add(32 * (q / 2) + 16 * (k % 2));
                    numbers[k] = s.halves(self.0, maps, codes)[q % 2];
                }
            }
            return numbers;
        }
        // SAFETY: by the contract of the trait.
        let codes = s.add_b(unsafe { two_bits(s, p.add(32), q) }, -4i8 as u8);
        let codes = s.add_tested(codes, *thirds, [1 << (2 * q), 2 << (2 * q)], 4);
        times(s, s.numbers(codes), scales, q)
    }
}

/// Codes of three bits in nibbles, from two bits of four runs of 32 columns in each half, and third bits
/// of which each half has its own in its four lowest.
#[inline(always)]
fn nibbles<S: Simd>(s: S, twos: S::B, thirds: S::B) -> [S::B; 2] {
    let thirds = s.shl4_b(s.and_b(thirds, 15));
    let first = s.or_b(s.and_b(s.shr_b(thirds, 2), 0x04), s.and_b(thirds, 0x40));
    let second = s.or_b(s.and_b(s.shr_b(thirds, 3), 0x04), s.and_b(s.shr_b(thirds, 1), 0x40));
    [s.or_b(s.and_b(twos, 0x33), first), s.or_b(s.and_b(s.shr_b(twos, 2), 0x33), second)]
}
