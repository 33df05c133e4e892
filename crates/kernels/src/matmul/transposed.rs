//! Products with the transpose of a matrix, whose rows are added up.

// Loops over registers by index are unrolled; some with iterators were not.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use super::decoded::{ColumnPlaces, Decode};
use super::input::groups;
use super::reference;
use crate::encodings::{Decoder, EncodingSimd, ForDecoder, RowCursor, for_common_decoder};
use crate::isa::Isa;
use crate::scalar::BLOCK;
use crate::simd::{Portable, Simd, SimdJob, load_block};
use crate::{Matrix, Tier};

/// Vectors of several tokens: the first begins at the start, each `stride` after the one before.
#[derive(Clone, Copy, Debug)]
pub struct Strided<T> {
    /// The numbers.
    pub numbers: T,
    /// Distance from one token to the next.
    pub stride: usize,
}

/// Rows that are decoded at once, so that results are loaded and stored once for all of them.
const ROWS: usize = 4;

/// `y[t] += Σ x[t][r] · weights[r]` for `tokens` tokens: a fused multiply-add for each row, in
/// ascending order. So a matrix in blocks of rows gives the same bits if blocks come in ascending
/// order, and so do all tiers, and a token alone or among others.
///
/// Runs on the calling thread.
///
/// # Panics
///
/// If `x` or `y` is too short for the shapes.
pub fn matmul_transposed(
    tier: Tier,
    weights: &Matrix,
    tokens: usize,
    x: Strided<&[f32]>,
    y: Strided<&mut [f32]>,
) {
    let rows = weights.row_count();
    let cols = weights.cols();
    let Some(before) = tokens.checked_sub(1) else { return };
    let holds = |len: usize, stride: usize, width: usize| {
        let end = before.checked_mul(stride).and_then(|start| start.checked_add(width));
        end.is_some_and(|end| end <= len) && (before == 0 || stride >= width)
    };
    assert!(holds(x.numbers.len(), x.stride, rows), "activations of {tokens} x {rows}");
    assert!(holds(y.numbers.len(), y.stride, cols), "results of {tokens} x {cols}");
    let job = TransposedCall { m: weights, tokens, x, y };
    match tier.isa() {
        Isa::Scalar => {
            let TransposedCall { m, x, y, .. } = job;
            reference::matmul_transposed(m, tokens, (x.numbers, x.stride), (y.numbers, y.stride));
        }
        Isa::Portable => by_encoding(Portable, job),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => by_encoding(token, job),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => by_encoding(token, job),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(token) => by_encoding(token, job),
    }
}

/// One call, with lengths that were checked.
struct TransposedCall<'a> {
    m: &'a Matrix<'a>,
    tokens: usize,
    x: Strided<&'a [f32]>,
    y: Strided<&'a mut [f32]>,
}

fn by_encoding<S: EncodingSimd>(s: S, job: TransposedCall) {
    let rest = match S::IN_REGISTERS {
        true => for_common_decoder(s, job.m.encoding(), job),
        false => Some(job),
    };
    if let Some(job) = rest {
        s.compiled(TransposedDecoded(job));
    }
}

impl<S: Simd> ForDecoder<S> for TransposedCall<'_> {
    #[inline(always)]
    fn run<D: Decoder<S>>(self, s: S) {
        s.compiled(TransposedOf::<D>(self, PhantomData));
    }
}

/// The same with a decoder.
struct TransposedOf<'a, D>(TransposedCall<'a>, PhantomData<D>);

impl<S: Simd, D: Decoder<S>> SimdJob<S> for TransposedOf<'_, D> {
    #[inline(always)]
    fn run(self, s: S) {
        let mut job = self.0;
        let decoder = D::new(s, job.m);
        let rows = job.m.row_count();
        let mut r = 0;
        while r + ROWS <= rows {
            add_rows::<S, D, ROWS>(s, decoder, &mut job, r);
            r += ROWS;
        }
        for r in r..rows {
            add_rows::<S, D, 1>(s, decoder, &mut job, r);
        }
    }
}

/// Adds `R` rows from `row` on to the results of all tokens.
#[inline(always)]
fn add_rows<S: Simd, D: Decoder<S>, const R: usize>(
    s: S,
    decoder: D,
    job: &mut TransposedCall,
    row: usize,
) {
    let m = job.m;
    let mut at = [RowCursor::new(D::ENCODING, m, row); R];
    for i in 1..R {
        at[i] = RowCursor::new(D::ENCODING, m, row + i);
    }
    let whole = m.cols() / BLOCK;
    let rest = m.cols() % BLOCK;
    let mut weights = [[s.splat(0.0); 4]; R];
    for b in 0..whole {
        for i in 0..R {
            // SAFETY: the cursor belongs to this matrix, and block `b` is whole.
            weights[i] = unsafe { decoder.block(s, &mut at[i], b) };
        }
        add_whole::<S, R>(s, &weights, job, row, b * BLOCK);
    }
    if rest > 0 {
        for i in 0..R {
            weights[i] = decoder.tail(s, &mut at[i], m);
        }
        add_rest::<S, R>(s, &weights, job, row);
    }
}

/// Columns decoded at a time, which stay in the nearest cache.
const COLS: usize = 256;

/// A product in an encoding without a kernel: a few rows are decoded to memory at a time.
struct TransposedDecoded<'a>(TransposedCall<'a>);

impl<S: EncodingSimd> SimdJob<S> for TransposedDecoded<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        by_decoded(s, self.0);
    }
}

#[inline(always)]
fn by_decoded<S: EncodingSimd>(s: S, mut job: TransposedCall) {
    let m = job.m;
    let all = m.row_count();
    let padded = m.cols().next_multiple_of(BLOCK);
    let mut numbers = [0.0; ROWS * COLS];
    for row in (0..all).step_by(ROWS) {
        let count = ROWS.min(all - row);
        let mut cursors = [None; ROWS];
        for (i, cursor) in cursors[..count].iter_mut().enumerate() {
            *cursor = Some(RowCursor::new(m.encoding(), m, row + i));
        }
        for (col, cols) in groups(padded, COLS) {
            let cursors = &mut cursors[..];
            let places = ColumnPlaces::plain::<S>(COLS);
            s.compiled(Decode { m, cursors, cols: col..col + cols, to: &mut numbers, places });
            for at in (0..cols).step_by(BLOCK) {
                if count == ROWS {
                    add_decoded::<S, ROWS>(s, &numbers[at..], &mut job, row, col + at);
                    continue;
                }
                for i in 0..count {
                    let numbers = &numbers[i * COLS + at..];
                    add_decoded::<S, 1>(s, numbers, &mut job, row + i, col + at);
                }
            }
        }
    }
}

/// Adds a block of each of `R` rows that were decoded to memory.
#[inline(always)]
fn add_decoded<S: Simd, const R: usize>(
    s: S,
    numbers: &[f32],
    job: &mut TransposedCall,
    row: usize,
    col: usize,
) {
    let mut weights = [[s.splat(0.0); 4]; R];
    for i in 0..R {
        weights[i] = load_block(s, numbers[i * COLS..].first_chunk().expect("a block"));
    }
    if col + BLOCK <= job.m.cols() {
        add_whole::<S, R>(s, &weights, job, row, col);
    } else {
        add_rest::<S, R>(s, &weights, job, row);
    }
}

/// Adds the whole block from column `col` on of `R` rows to the results of all tokens.
#[inline(always)]
fn add_whole<S: Simd, const R: usize>(
    s: S,
    weights: &[[S::F; 4]; R],
    job: &mut TransposedCall,
    row: usize,
    col: usize,
) {
    let TransposedCall { tokens, x, y, .. } = job;
    for t in 0..*tokens {
        let factors = &x.numbers[t * x.stride + row..][..R];
        let to = &mut y.numbers[t * y.stride + col..];
        let to = to.first_chunk_mut().expect("a whole block");
        add_block::<S, R>(s, weights, factors, to);
    }
}

/// Adds the columns behind the last whole block.
#[inline(always)]
fn add_rest<S: Simd, const R: usize>(
    s: S,
    weights: &[[S::F; 4]; R],
    job: &mut TransposedCall,
    row: usize,
) {
    let TransposedCall { m, tokens, x, y } = job;
    let rest = m.cols() % BLOCK;
    for t in 0..*tokens {
        let factors = &x.numbers[t * x.stride + row..][..R];
        let to = &mut y.numbers[t * y.stride + m.cols() - rest..][..rest];
        let mut block = [0.0; BLOCK];
        block[..rest].copy_from_slice(to);
        add_block::<S, R>(s, weights, factors, &mut block);
        to.copy_from_slice(&block[..rest]);
    }
}

/// Adds a block of each of `R` rows to the results of a token.
#[inline(always)]
fn add_block<S: Simd, const R: usize>(
    s: S,
    weights: &[[S::F; 4]; R],
    factors: &[f32],
    to: &mut [f32; BLOCK],
) {
    let mut sums = load_block(s, to);
    for i in 0..R {
        let factor = s.splat(factors[i]);
        for k in 0..4 {
            sums[k] = s.fma(weights[i][k], factor, sums[k]);
        }
    }
    let p = to.as_mut_ptr();
    for k in 0..4 {
        // SAFETY: 16 numbers are written from 16 · k on, and the array has 64.
        unsafe { s.store_slices(sums[k], p.add(16 * k), S::TILE_LANES) };
    }
}
