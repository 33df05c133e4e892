//! One token: bound by memory, so the weights are decoded in registers and used at once.

// Loops over registers by index are unrolled; with iterators some were not.
#![allow(clippy::needless_range_loop)]

use super::decode::{Cursor, Decoder};
use super::output::Output;
use crate::Matrix;
use crate::reference::BLOCK;
use crate::simd::Simd;

/// Rows at once: eight chains of sums hide the latency of a multiply-add, and a block of the
/// activations is loaded once for four rows.
const ROWS: usize = 4;

/// `x` is padded to a multiple of 64.
#[inline(always)]
pub(super) fn one<S: Simd, D: Decoder<S>>(s: S, m: &Matrix, x: &[f32], y: &mut Output) {
    let decoder = D::new(s, m);
    let rows = m.row_count();
    let mut r = 0;
    while r + ROWS <= rows {
        for (i, sum) in some::<S, D, ROWS>(s, decoder, m, r, x).into_iter().enumerate() {
            y.set(0, r + i, sum);
        }
        r += ROWS;
    }
    for r in r..rows {
        y.set(0, r, some::<S, D, 1>(s, decoder, m, r, x)[0]);
    }
}

#[inline(always)]
fn some<S: Simd, D: Decoder<S>, const R: usize>(
    s: S,
    decoder: D,
    m: &Matrix,
    row: usize,
    x: &[f32],
) -> [f32; R] {
    let mut at: [Cursor; R] = std::array::from_fn(|i| Cursor::new(m, row + i));
    let mut low = [s.splat(0.0); R];
    let mut high = [s.splat(0.0); R];
    let (blocks, last) = x.as_chunks::<BLOCK>().0.split_at(m.cols() / BLOCK);
    for (b, x) in blocks.iter().enumerate() {
        // SAFETY: a block of `x` is four times 16 f32.
        let x: [S::F; 4] = unsafe { load_block(s, x) };
        for i in 0..R {
            // SAFETY: the cursor is of this matrix, and block `b` is whole.
            let w = unsafe { decoder.block(s, &mut at[i], b) };
            low[i] = s.fma(w[0], x[0], low[i]);
            high[i] = s.fma(w[1], x[1], high[i]);
            low[i] = s.fma(w[2], x[2], low[i]);
            high[i] = s.fma(w[3], x[3], high[i]);
        }
    }
    if let [x] = last {
        // SAFETY: as above.
        let x: [S::F; 4] = unsafe { load_block(s, x) };
        for i in 0..R {
            // SAFETY: as above.
            let w: [S::F; 4] = unsafe { load_block(s, &at[i].tail(m)) };
            low[i] = s.fma(w[0], x[0], low[i]);
            high[i] = s.fma(w[1], x[1], high[i]);
            low[i] = s.fma(w[2], x[2], low[i]);
            high[i] = s.fma(w[3], x[3], high[i]);
        }
    }
    let mut sums = [0.0; R];
    for i in 0..R {
        sums[i] = s.reduce(low[i], high[i]);
    }
    sums
}

#[inline(always)]
pub(super) unsafe fn load_block<S: Simd>(s: S, x: &[f32; BLOCK]) -> [S::F; 4] {
    let p = x.as_ptr();
    // SAFETY: 64 f32, as the type says.
    unsafe { [s.load(p), s.load(p.add(16)), s.load(p.add(32)), s.load(p.add(48))] }
}
