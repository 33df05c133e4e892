//! 32 lanes in registers.
//!
//! Loops over `[f32; 32]` become good vector code for elementwise work and long sums, but not where
//! many short sums end in a tree: there the compiler kept the lanes in memory or in pairs (60 ns for
//! a query and a key of 128 elements). So attention's inner loops name their registers.

use super::lanes::{LANES, Lanes, tree};

/// 32 lanes and the operations on them, the same bits in every implementation.
pub(super) trait Vector: Copy {
    fn zero() -> Self;
    fn splat(x: f32) -> Self;
    fn load(from: &Lanes) -> Self;
    /// Loads bf16.
    fn widen(from: &[u16; LANES]) -> Self;
    fn store(self, to: &mut Lanes);
    /// self · b + c, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The canonical tree.
    fn fold(self) -> f32;
    /// Eight of them at once, which costs a third where vectors are added across each other.
    #[inline(always)]
    fn fold8(sums: [Self; 8]) -> [f32; 8] {
        let mut folded = [0.0; 8];
        for (folded, sum) in folded.iter_mut().zip(sums) {
            *folded = sum.fold();
        }
        folded
    }
    /// How many vectors of sums the registers hold, beside what is added to them.
    const SUMS: usize;
}

impl Vector for Lanes {
    const SUMS: usize = 1;

    #[inline(always)]
    fn zero() -> Self {
        [0.0; LANES]
    }

    #[inline(always)]
    fn splat(x: f32) -> Self {
        [x; LANES]
    }

    #[inline(always)]
    fn load(from: &Lanes) -> Self {
        *from
    }

    #[inline(always)]
    fn widen(from: &[u16; LANES]) -> Self {
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = f32::from_bits(u32::from(from[i]) << 16);
        }
        lanes
    }

    #[inline(always)]
    fn store(self, to: &mut Lanes) {
        *to = self;
    }

    #[inline(always)]
    fn fma(mut self, b: Self, c: Self) -> Self {
        for i in 0..LANES {
            self[i] = self[i].mul_add(b[i], c[i]);
        }
        self
    }

    #[inline(always)]
    fn fold(self) -> f32 {
        tree(self)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{V256, V512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes, Vector};

    /// The lanes in four AVX2 registers. Named only by functions compiled for AVX2 and FMA and
    /// entered with the token for them, which is what every SAFETY note below relies on.
    #[derive(Clone, Copy)]
    pub(in super::super) struct V256([__m256; 4]);

    impl Vector for V256 {
        const SUMS: usize = 2;

        #[inline(always)]
        fn zero() -> Self {
            Self::splat(0.0)
        }

        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: AVX2 is there.
            V256([unsafe { _mm256_set1_ps(x) }; 4])
        }

        #[inline(always)]
        fn load(from: &Lanes) -> Self {
            let p = from.as_ptr();
            // SAFETY: AVX2 is there; 4 · 8 floats are read from 32.
            unsafe {
                V256([
                    _mm256_loadu_ps(p),
                    _mm256_loadu_ps(p.add(8)),
                    _mm256_loadu_ps(p.add(16)),
                    _mm256_loadu_ps(p.add(24)),
                ])
            }
        }

        #[inline(always)]
        fn widen(from: &[u16; LANES]) -> Self {
            let p = from.as_ptr().cast::<__m128i>();
            // SAFETY: AVX2 is there; the index is below 4, and 4 · 8 numbers are read from 32.
            let part = |i| unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(i)));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            V256([part(0), part(1), part(2), part(3)])
        }

        #[inline(always)]
        fn store(self, to: &mut Lanes) {
            let p = to.as_mut_ptr();
            // SAFETY: AVX2 is there; 4 · 8 floats are written to 32.
            unsafe {
                _mm256_storeu_ps(p, self.0[0]);
                _mm256_storeu_ps(p.add(8), self.0[1]);
                _mm256_storeu_ps(p.add(16), self.0[2]);
                _mm256_storeu_ps(p.add(24), self.0[3]);
            }
        }

        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            let (a, b, c) = (self.0, b.0, c.0);
            // SAFETY: FMA is there.
            unsafe {
                V256([
                    _mm256_fmadd_ps(a[0], b[0], c[0]),
                    _mm256_fmadd_ps(a[1], b[1], c[1]),
                    _mm256_fmadd_ps(a[2], b[2], c[2]),
                    _mm256_fmadd_ps(a[3], b[3], c[3]),
                ])
            }
        }

        #[inline(always)]
        fn fold(self) -> f32 {
            let [a, b, c, d] = self.0;
            // SAFETY: AVX2 is there.
            unsafe { fold8(_mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d))) }
        }
    }

    /// The lanes in two AVX-512 registers; named only where AVX-512 F and DQ are, like [`V256`].
    #[derive(Clone, Copy)]
    pub(in super::super) struct V512([__m512; 2]);

    impl Vector for V512 {
        const SUMS: usize = 8;

        #[inline(always)]
        fn zero() -> Self {
            Self::splat(0.0)
        }

        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: AVX-512 is there.
            V512([unsafe { _mm512_set1_ps(x) }; 2])
        }

        #[inline(always)]
        fn load(from: &Lanes) -> Self {
            let p = from.as_ptr();
            // SAFETY: AVX-512 is there; 2 · 16 floats are read from 32.
            unsafe { V512([_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))]) }
        }

        #[inline(always)]
        fn widen(from: &[u16; LANES]) -> Self {
            let p = from.as_ptr().cast::<__m256i>();
            // SAFETY: AVX-512 is there; the index is below 2, and 2 · 16 numbers are read from 32.
            let part = |i| unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.add(i)));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            };
            V512([part(0), part(1)])
        }

        #[inline(always)]
        fn store(self, to: &mut Lanes) {
            let p = to.as_mut_ptr();
            // SAFETY: AVX-512 is there; 2 · 16 floats are written to 32.
            unsafe {
                _mm512_storeu_ps(p, self.0[0]);
                _mm512_storeu_ps(p.add(16), self.0[1]);
            }
        }

        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            let (a, b, c) = (self.0, b.0, c.0);
            // SAFETY: AVX-512 is there.
            unsafe { V512([_mm512_fmadd_ps(a[0], b[0], c[0]), _mm512_fmadd_ps(a[1], b[1], c[1])]) }
        }

        #[inline(always)]
        fn fold8(sums: [Self; 8]) -> [f32; 8] {
            // SAFETY: AVX-512 is there; 8 floats are written to 8.
            unsafe {
                let [a, b, c, d, e, f, g, h] = sums.map(
                    #[inline(always)]
                    |sum| _mm512_add_ps(sum.0[0], sum.0[1]),
                );
                // The halves of two vectors in one, then the quarters of four, the pairs of eight.
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
        fn fold(self) -> f32 {
            // SAFETY: AVX-512 F and DQ are there.
            unsafe {
                let sum = _mm512_add_ps(self.0[0], self.0[1]);
                let high = _mm512_extractf32x8_ps::<1>(sum);
                fold8(_mm256_add_ps(_mm512_castps512_ps256(sum), high))
            }
        }
    }

    /// The two halves of `a` and of `b`, added: a in the lower half, b in the upper.
    ///
    /// # Safety
    /// AVX-512 is there.
    #[inline(always)]
    unsafe fn halves(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by this function's contract.
        unsafe {
            let low = _mm512_shuffle_f32x4::<0x44>(a, b);
            _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(a, b))
        }
    }

    /// The quarters of four vectors whose [`halves`] are added: a, b from one, c, d from the other.
    ///
    /// # Safety
    /// AVX-512 is there.
    #[inline(always)]
    unsafe fn quarters(ab: __m512, cd: __m512) -> __m512 {
        // SAFETY: by this function's contract.
        unsafe {
            let low = _mm512_shuffle_f32x4::<0x88>(ab, cd);
            _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xdd>(ab, cd))
        }
    }

    /// The tree from 8 lanes on.
    ///
    /// # Safety
    /// AVX2 is there.
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
