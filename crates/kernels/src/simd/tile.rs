//! Tiles of products with many tokens.

// Loops over registers by index are unrolled; some with iterators were not.
#![allow(clippy::needless_range_loop)]

use super::Simd;

/// Operands of [`tile`]. Two pointers are passed in registers; a struct of all its arguments was not,
/// and took 0.6 % more instructions for a prompt of the bundled model.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) w: *const f32,
    pub(crate) x: *const f32,
}

/// `acc[m][n] += w[step][m] · x[step][n]` for all steps in order, lane by lane. In the first chunk
/// the sums start from zero.
///
/// # Safety
///
/// `w` holds `steps × M`, `x` `steps × N` and `acc` `M × N` registers.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, const M: usize, const N: usize>(
    s: S,
    steps: usize,
    Operands { w, x }: Operands,
    acc: *mut f32,
    first: bool,
) {
    let lanes = S::TILE_LANES;
    let mut sums = [[s.zero_t(); N]; M];
    // SAFETY: by this function's contract.
    unsafe {
        if !first {
            for m in 0..M {
                for n in 0..N {
                    sums[m][n] = s.load_t(acc.add((m * N + n) * lanes));
                }
            }
        }
        let mut w = w;
        let mut x = x;
        for _ in 0..steps {
            let mut xs = [s.zero_t(); N];
            for n in 0..N {
                xs[n] = s.load_t(x.add(n * lanes));
            }
            for m in 0..M {
                let w = s.load_t(w.add(m * lanes));
                for n in 0..N {
                    sums[m][n] = s.fma_t(w, xs[n], sums[m][n]);
                }
            }
            w = w.add(M * lanes);
            x = x.add(N * lanes);
        }
        for m in 0..M {
            for n in 0..N {
                s.store_t(acc.add((m * N + n) * lanes), sums[m][n]);
            }
        }
    }
}
