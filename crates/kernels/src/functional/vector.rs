//! Vectors of 32 lanes in registers.
//!
//! Loops over `[f32; 32]` become good vector code for elementwise work and long sums, but not for
//! many short sums that each end in a tree. There the compiler kept the lanes in memory or in pairs
//! (60 ns for a query and a key of 128 elements). So attention's inner loops name their registers.

#[cfg(target_arch = "aarch64")]
mod neon;

use super::lanes::{LANES, Lanes, tree};
use crate::scalar::fma;
use crate::simd::{Compiled, Portable};

/// 32 lanes and the operations on them, with the same bits in every implementation. The implementor
/// is a proof token, as for [`Simd`](crate::simd::Simd).
pub(super) trait Wide: Compiled {
    /// 32 × f32.
    type V: Copy;
    /// Lanes added as far as vectors are added as a whole.
    type Part: Copy;
    /// Number of vectors of sums that fit in the registers besides their operands.
    const SUMS: usize;

    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
    fn splat(self, x: f32) -> Self::V;
    fn load(self, from: &Lanes) -> Self::V;
    /// Loads bf16.
    fn widen(self, from: &[u16; LANES]) -> Self::V;
    /// Loads whole numbers of 8 bits in two's complement.
    fn signed(self, from: &[u8; LANES]) -> Self::V;
    fn store(self, a: Self::V, to: &mut Lanes);
    /// Asks for a row that is read soon.
    #[inline(always)]
    fn prefetch<T>(self, _: &[T]) {}
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The lanes of `a` where all bits of `mask` are set, and those of `b` where none is.
    fn select(self, mask: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// The canonical tree.
    fn fold(self, a: Self::V) -> f32;
    /// The first levels of the tree.
    fn part(self, a: Self::V) -> Self::Part;
    /// The other levels, of eight vectors at once, at a third of the cost where vectors are added
    /// across each other.
    fn fold8(self, parts: [Self::Part; 8]) -> [f32; 8];
}

impl Wide for Portable {
    type V = Lanes;
    type Part = Lanes;
    const SUMS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &Lanes) -> Self::V {
        *from
    }

    #[inline(always)]
    fn widen(self, from: &[u16; LANES]) -> Self::V {
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = f32::from_bits(u32::from(from[i]) << 16);
        }
        lanes
    }

    #[inline(always)]
    fn signed(self, from: &[u8; LANES]) -> Self::V {
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = f32::from(from[i] as i8);
        }
        lanes
    }

    #[inline(always)]
    fn store(self, a: Self::V, to: &mut Lanes) {
        *to = a;
    }

    #[inline(always)]
    fn add(self, mut a: Lanes, b: Lanes) -> Lanes {
        for i in 0..LANES {
            a[i] += b[i];
        }
        a
    }

    #[inline(always)]
    fn fma(self, mut a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        for i in 0..LANES {
            a[i] = fma(a[i], b[i], c[i]);
        }
        a
    }

    #[inline(always)]
    fn select(self, mask: Lanes, mut a: Lanes, b: Lanes) -> Lanes {
        for i in 0..LANES {
            a[i] = if mask[i].to_bits() == 0 { b[i] } else { a[i] };
        }
        a
    }

    #[inline(always)]
    fn fold(self, a: Self::V) -> f32 {
        tree(a)
    }

    #[inline(always)]
    fn part(self, a: Lanes) -> Lanes {
        a
    }

    #[inline(always)]
    fn fold8(self, parts: [Lanes; 8]) -> [f32; 8] {
        parts.map(tree)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes, Wide};
    use crate::{Avx2, Avx512};

    /// Four registers. The token proves the CPU features that the SAFETY notes rely on.
    impl Wide for Avx2 {
        type V = [__m256; 4];
        type Part = __m256;
        const SUMS: usize = 2;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::V {
            // SAFETY: AVX2 is available.
            [unsafe { _mm256_set1_ps(x) }; 4]
        }

        #[inline(always)]
        fn load(self, from: &Lanes) -> Self::V {
            let p = from.as_ptr();
            // SAFETY: AVX2 is available; 4 · 8 floats are read from 32.
            unsafe {
                [
                    _mm256_loadu_ps(p),
                    _mm256_loadu_ps(p.add(8)),
                    _mm256_loadu_ps(p.add(16)),
                    _mm256_loadu_ps(p.add(24)),
                ]
            }
        }

        #[inline(always)]
        fn widen(self, from: &[u16; LANES]) -> Self::V {
            let p = from.as_ptr().cast::<__m128i>();
            // SAFETY: AVX2 is available; the index is below 4, and 4 · 8 numbers are read from 32.
            let part = |i| unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(i)));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            [part(0), part(1), part(2), part(3)]
        }

        #[inline(always)]
        fn signed(self, from: &[u8; LANES]) -> Self::V {
            let p = from.as_ptr();
            // SAFETY: AVX2 is available; the index is below 4, and 4 · 8 bytes are read from 32.
            let part = |i: usize| unsafe {
                let codes = _mm_loadl_epi64(p.add(8 * i).cast());
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))
            };
            [part(0), part(1), part(2), part(3)]
        }

        #[inline(always)]
        fn store(self, a: Self::V, to: &mut Lanes) {
            let p = to.as_mut_ptr();
            // SAFETY: AVX2 is available; 4 · 8 floats are written to 32.
            unsafe {
                _mm256_storeu_ps(p, a[0]);
                _mm256_storeu_ps(p.add(8), a[1]);
                _mm256_storeu_ps(p.add(16), a[2]);
                _mm256_storeu_ps(p.add(24), a[3]);
            }
        }

        #[inline(always)]
        fn prefetch<T>(self, row: &[T]) {
            prefetch(row);
        }

        #[inline(always)]
        fn add(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: AVX2 is available.
            unsafe {
                [
                    _mm256_add_ps(a[0], b[0]),
                    _mm256_add_ps(a[1], b[1]),
                    _mm256_add_ps(a[2], b[2]),
                    _mm256_add_ps(a[3], b[3]),
                ]
            }
        }

        #[inline(always)]
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            // SAFETY: FMA is available.
            unsafe {
                [
                    _mm256_fmadd_ps(a[0], b[0], c[0]),
                    _mm256_fmadd_ps(a[1], b[1], c[1]),
                    _mm256_fmadd_ps(a[2], b[2], c[2]),
                    _mm256_fmadd_ps(a[3], b[3], c[3]),
                ]
            }
        }

        #[inline(always)]
        fn select(self, mask: Self::V, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: AVX2 is available.
            unsafe {
                [
                    _mm256_blendv_ps(b[0], a[0], mask[0]),
                    _mm256_blendv_ps(b[1], a[1], mask[1]),
                    _mm256_blendv_ps(b[2], a[2], mask[2]),
                    _mm256_blendv_ps(b[3], a[3], mask[3]),
                ]
            }
        }

        #[inline(always)]
        fn fold(self, a: Self::V) -> f32 {
            let [a, b, c, d] = a;
            // SAFETY: AVX2 is available.
            unsafe { fold8(_mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d))) }
        }

        #[inline(always)]
        fn part(self, [a, b, c, d]: Self::V) -> __m256 {
            // SAFETY: AVX2 is available.
            unsafe { _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d)) }
        }

        #[inline(always)]
        fn fold8(self, [a, b, c, d, e, f, g, h]: [__m256; 8]) -> [f32; 8] {
            // SAFETY: AVX2 is available; 8 floats are written to 8.
            unsafe {
                // The halves of two vectors become one, then the pairs of four, then all of eight.
                let ab = halves8(a, b);
                let cd = halves8(c, d);
                let ef = halves8(e, f);
                let gh = halves8(g, h);
                let low = _mm256_shuffle_ps::<0x44>(ab, cd);
                let abcd = _mm256_add_ps(low, _mm256_shuffle_ps::<0xee>(ab, cd));
                let low = _mm256_shuffle_ps::<0x44>(ef, gh);
                let efgh = _mm256_add_ps(low, _mm256_shuffle_ps::<0xee>(ef, gh));
                let low = _mm256_shuffle_ps::<0x88>(abcd, efgh);
                let all = _mm256_add_ps(low, _mm256_shuffle_ps::<0xdd>(abcd, efgh));
                let order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
                let mut folded = [0.0; 8];
                let all = _mm256_permutevar8x32_ps(all, order);
                _mm256_storeu_ps(folded.as_mut_ptr(), all);
                folded
            }
        }
    }

    /// The two halves of `a` and of `b`, added: a in the lower half, b in the upper.
    ///
    /// # Safety
    /// The CPU must have AVX2.
    #[inline(always)]
    unsafe fn halves8(a: __m256, b: __m256) -> __m256 {
        // SAFETY: by this function's contract.
        unsafe {
            let low = _mm256_permute2f128_ps::<0x20>(a, b);
            _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b))
        }
    }

    /// Two registers.
    impl Wide for Avx512 {
        type V = [__m512; 2];
        type Part = __m512;
        const SUMS: usize = 8;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::V {
            // SAFETY: AVX-512 is available.
            [unsafe { _mm512_set1_ps(x) }; 2]
        }

        #[inline(always)]
        fn load(self, from: &Lanes) -> Self::V {
            let p = from.as_ptr();
            // SAFETY: AVX-512 is available; 2 · 16 floats are read from 32.
            unsafe { [_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))] }
        }

        #[inline(always)]
        fn widen(self, from: &[u16; LANES]) -> Self::V {
            let p = from.as_ptr().cast::<__m256i>();
            // SAFETY: AVX-512 is available; the index is below 2, and 2 · 16 numbers are read from
            // 32.
            let part = |i| unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.add(i)));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            };
            [part(0), part(1)]
        }

        #[inline(always)]
        fn signed(self, from: &[u8; LANES]) -> Self::V {
            let p = from.as_ptr().cast::<__m128i>();
            // SAFETY: AVX-512 is available; the index is below 2, and 2 · 16 bytes are read from 32.
            let part =
                |i| unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(i)))) };
            [part(0), part(1)]
        }

        #[inline(always)]
        fn store(self, a: Self::V, to: &mut Lanes) {
            let p = to.as_mut_ptr();
            // SAFETY: AVX-512 is available; 2 · 16 floats are written to 32.
            unsafe {
                _mm512_storeu_ps(p, a[0]);
                _mm512_storeu_ps(p.add(16), a[1]);
            }
        }

        #[inline(always)]
        fn prefetch<T>(self, row: &[T]) {
            prefetch(row);
        }

        #[inline(always)]
        fn add(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: AVX-512 is available.
            unsafe { [_mm512_add_ps(a[0], b[0]), _mm512_add_ps(a[1], b[1])] }
        }

        #[inline(always)]
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            // SAFETY: AVX-512 is available.
            unsafe { [_mm512_fmadd_ps(a[0], b[0], c[0]), _mm512_fmadd_ps(a[1], b[1], c[1])] }
        }

        #[inline(always)]
        fn select(self, mask: Self::V, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: AVX-512 F and DQ are available; the index is below 2.
            let part = |i: usize| unsafe {
                let mask = _mm512_movepi32_mask(_mm512_castps_si512(mask[i]));
                _mm512_mask_blend_ps(mask, b[i], a[i])
            };
            [part(0), part(1)]
        }

        #[inline(always)]
        fn part(self, a: Self::V) -> __m512 {
            // SAFETY: AVX-512 is available.
            unsafe { _mm512_add_ps(a[0], a[1]) }
        }

        #[inline(always)]
        fn fold8(self, [a, b, c, d, e, f, g, h]: [__m512; 8]) -> [f32; 8] {
            // SAFETY: AVX-512 is available; 8 floats are written to 8.
            unsafe {
                // Adds the halves of two vectors into one, then the quarters of four, then the
                // pairs of eight.
                let abcd = quarters(halves(a, b), halves(c, d));
                let efgh = quarters(halves(e, f), halves(g, h));
                let low = _mm512_shuffle_ps::<0x44>(abcd, efgh);
                let pairs = _mm512_add_ps(low, _mm512_shuffle_ps::<0xee>(abcd, efgh));
                let all = _mm512_add_ps(pairs, _mm512_permute_ps::<0xb1>(pairs));
                let order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 10, 6, 2, 12, 8, 4, 0);
                let all = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, all));
                let mut folded = [0.0; 8];
                _mm256_storeu_ps(folded.as_mut_ptr(), all);
                folded
            }
        }

        #[inline(always)]
        fn fold(self, a: Self::V) -> f32 {
            // SAFETY: AVX-512 F and DQ are available.
            unsafe {
                let sum = _mm512_add_ps(a[0], a[1]);
                let high = _mm512_extractf32x8_ps::<1>(sum);
                fold8(_mm256_add_ps(_mm512_castps512_ps256(sum), high))
            }
        }
    }

    #[inline(always)]
    fn prefetch<T>(row: &[T]) {
        for line in (0..size_of_val(row)).step_by(64) {
            // SAFETY: all of x86-64 have the instruction, which faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(row.as_ptr().cast::<i8>().wrapping_add(line)) };
        }
    }

    /// The two halves of `a` and of `b`, added: a in the lower half, b in the upper.
    ///
    /// # Safety
    /// The CPU must have AVX-512.
    #[inline(always)]
    unsafe fn halves(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by this function's contract.
        unsafe {
            let low = _mm512_shuffle_f32x4::<0x44>(a, b);
            _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(a, b))
        }
    }

    /// The quarters of four vectors whose [`halves`] are added: a and b come from `ab`, c and d
    /// from `cd`.
    ///
    /// # Safety
    /// The CPU must have AVX-512.
    #[inline(always)]
    unsafe fn quarters(ab: __m512, cd: __m512) -> __m512 {
        // SAFETY: by this function's contract.
        unsafe {
            let low = _mm512_shuffle_f32x4::<0x88>(ab, cd);
            _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xdd>(ab, cd))
        }
    }

    /// The last three levels of the tree, from 8 lanes on.
    ///
    /// # Safety
    /// The CPU must have AVX2.
    #[inline(always)]
    unsafe fn fold8(x: __m256) -> f32 {
        // SAFETY: by this function's contract.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
}
