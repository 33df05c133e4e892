//! Products with one token. They are bound by memory, so the weights are decoded in registers and
//! used at once.

// Loops over registers by index are unrolled; some with iterators were not.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use super::decoded::{ColumnPlaces, Decode};
use super::input::groups;
use super::output::OutputColumns;
use crate::Matrix;
use crate::encodings::{Decoder, EncodingSimd, ForDecoder, RowCursor, Take};
use crate::scalar::BLOCK;
use crate::simd::{Simd, SimdJob, load_block};

/// Prefetch distance in bytes. The processor's own prefetcher sees rows as short streams and stops
/// at the end of each. Without these requests q4 ran at half its speed, bf12 at 0.85.
pub(super) const AHEAD: usize = 12 << 10;

/// A product of all rows.
pub(super) struct OneToken<'a, 'm, 'y> {
    pub(super) m: &'a Matrix<'m>,
    /// Padded to a multiple of 64.
    pub(super) x: &'a [f32],
    pub(super) y: &'a mut OutputColumns<'y>,
}

impl<S: Simd> ForDecoder<S> for OneToken<'_, '_, '_> {
    #[inline(always)]
    fn run<D: Decoder<S>>(self, s: S) {
        s.compiled(OneTokenOf::<D>(self, PhantomData));
    }
}

/// The same with a decoder.
struct OneTokenOf<'a, 'm, 'y, D>(OneToken<'a, 'm, 'y>, PhantomData<D>);

impl<S: Simd, D: Decoder<S>> SimdJob<S> for OneTokenOf<'_, '_, '_, D> {
    #[inline(always)]
    fn run(self, s: S) {
        let OneToken { m, x, y } = self.0;
        let decoder = D::new(s, m);
        // Several rows at once hide the latency of the multiply-adds; one row after another reads
        // memory in order. Measured: four rows are faster (up to 1.6 times) where a block has few
        // bytes, one row (1.1 to 1.3 times) where it has many. bf12 lies between: two rows are 1.3
        // times as fast as one.
        match D::ROWS {
            1 => rows_by::<S, D, 1>(s, decoder, m, x, y),
            2 => rows_by::<S, D, 2>(s, decoder, m, x, y),
            _ => rows_by::<S, D, 4>(s, decoder, m, x, y),
        }
    }
}

/// Columns decoded at a time, which stay in the nearest cache.
const COLS: usize = 512;

/// A product in a tier that does not decode in registers: each row is decoded to memory, a part at a time.
pub(super) struct OneDecoded<'a, 'm, 'y>(pub(super) OneToken<'a, 'm, 'y>);

impl<S: EncodingSimd> SimdJob<S> for OneDecoded<'_, '_, '_> {
    #[inline(always)]
    fn run(self, s: S) {
        let OneToken { m, x, y } = self.0;
        one_decoded(s, m, x, y);
    }
}

#[inline(always)]
fn one_decoded<S: EncodingSimd>(s: S, m: &Matrix, x: &[f32], y: &mut OutputColumns) {
    let mut numbers = [0.0; COLS];
    for r in 0..m.row_count() {
        let mut cursors = [Some(RowCursor::new(m.encoding(), m, r))];
        let mut low = s.splat(0.0);
        let mut high = s.splat(0.0);
        for (col, cols) in groups(x.len(), COLS) {
            let cursors = &mut cursors[..];
            let places = ColumnPlaces::plain::<S>(COLS);
            s.compiled(Decode { m, cursors, cols: col..col + cols, to: &mut numbers, places });
            let weights = numbers[..cols].as_chunks::<BLOCK>().0;
            for (w, x) in weights.iter().zip(x[col..][..cols].as_chunks::<BLOCK>().0) {
                let w = load_block(s, w);
                let x = load_block(s, x);
                low = s.fma(w[0], x[0], low);
                high = s.fma(w[1], x[1], high);
                low = s.fma(w[2], x[2], low);
                high = s.fma(w[3], x[3], high);
            }
        }
        y.set(0, r, s.reduce(low, high));
    }
}

#[inline(always)]
fn rows_by<S: Simd, D: Decoder<S>, const R: usize>(
    s: S,
    decoder: D,
    m: &Matrix,
    x: &[f32],
    y: &mut OutputColumns,
) {
    let rows = m.row_count();
    let mut r = 0;
    while r + R <= rows {
        for (i, sum) in dots::<S, D, R>(s, decoder, m, r, x).into_iter().enumerate() {
            y.set(0, r + i, sum);
        }
        r += R;
    }
    for r in r..rows {
        y.set(0, r, dots::<S, D, 1>(s, decoder, m, r, x)[0]);
    }
}

#[inline(always)]
fn dots<S: Simd, D: Decoder<S>, const R: usize>(
    s: S,
    decoder: D,
    m: &Matrix,
    row: usize,
    x: &[f32],
) -> [f32; R] {
    // A loop, because the closure of `from_fn` was not inlined, which cost 6 % with rows of 192
    // columns.
    let mut at = [RowCursor::new(D::ENCODING, m, row); R];
    for i in 1..R {
        at[i] = RowCursor::new(D::ENCODING, m, row + i);
    }
    // Prefetches the next rows, or the rest of this one. Beyond the end of the matrix the request
    // is merely wasted.
    let next = if R == 1 { 0 } else { R * m.row_bytes(0, row).len() };
    let ahead = at[0].codes().wrapping_add(next.max(AHEAD));
    let mut low = [s.splat(0.0); R];
    let mut high = [s.splat(0.0); R];
    let (blocks, last) = x.as_chunks::<BLOCK>().0.split_at(m.cols() / BLOCK);
    // A few blocks of one row after those of the other: see `SPAN`.
    let span = if R == 1 { D::SPAN } else { D::SPAN.max(S::SPAN) };
    let spanned = if span == 1 { 0 } else { blocks.len() / span * span };
    let (spans, blocks) = blocks.split_at(spanned);
    // SAFETY: the cursors belong to this matrix, and all blocks of the spans are whole.
    unsafe {
        if D::SPAN > 1 {
            sums_ahead(s, decoder, &mut at, spans, ahead, [&mut low, &mut high]);
        } else {
            sums(s, decoder, &mut at, spans, ahead, [&mut low, &mut high]);
        }
    }
    for (b, x) in (spanned..).zip(blocks) {
        let x = load_block(s, x);
        prefetch::<S, D, R>(s, ahead, b, 1);
        // Not a loop, because the compiler did not unroll that over a decoder with a call, and kept
        // the sums in memory (bf11 in AVX-512 had .7 of its speed).
        macro_rules! row {
            ($i:literal) => {
                if $i < R {
                    // SAFETY: the cursor belongs to this matrix, and block `b` is whole.
                    let w = unsafe { decoder.block(s, &mut at[$i], b) };
                    low[$i] = s.fma(w[0], x[0], low[$i]);
                    high[$i] = s.fma(w[1], x[1], high[$i]);
                    low[$i] = s.fma(w[2], x[2], low[$i]);
                    high[$i] = s.fma(w[3], x[3], high[$i]);
                }
            };
        }
        row!(0);
        row!(1);
        row!(2);
        row!(3);
    }
    if let [x] = last {
        let x = load_block(s, x);
        for i in 0..R {
            let w = decoder.tail(s, &mut { at[i] }, m);
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

/// Adds the products of blocks that have nothing in common, `S::SPAN` of a row at a time.
///
/// # Safety
///
/// The cursors must belong to a matrix that has all of these blocks.
#[inline(always)]
unsafe fn sums<S: Simd, D: Decoder<S>, const R: usize>(
    s: S,
    decoder: D,
    at: &mut [RowCursor; R],
    x: &[[f32; BLOCK]],
    ahead: *const u8,
    [low, high]: [&mut [S::F; R]; 2],
) {
    for (b, x) in x.chunks_exact(S::SPAN).enumerate() {
        let b = S::SPAN * b;
        prefetch::<S, D, R>(s, ahead, b, S::SPAN);
        for i in 0..R {
            let mut sums = Sums { x, low: low[i], high: high[i] };
            for k in 0..S::SPAN {
                sums.x = &x[k..=k];
                // SAFETY: by this function's contract.
                unsafe {
                    let shared = decoder.shared(s, &at[i], b + k);
                    decoder.span(s, &mut at[i], b + k, &shared, &mut sums);
                }
            }
            (low[i], high[i]) = (sums.low, sums.high);
        }
    }
}

/// Adds the products of spans whose blocks have something in common. It is decoded a span ahead, as
/// one after another takes more instructions than a CPU looks at.
///
/// # Safety
///
/// The cursors must belong to a matrix that has all of these blocks.
#[inline(always)]
unsafe fn sums_ahead<S: Simd, D: Decoder<S>, const R: usize>(
    s: S,
    decoder: D,
    at: &mut [RowCursor; R],
    x: &[[f32; BLOCK]],
    ahead: *const u8,
    [low, high]: [&mut [S::F; R]; 2],
) {
    if x.len() < D::SPAN {
        return;
    }
    // SAFETY: by this function's contract.
    let mut shared = [unsafe { decoder.shared(s, &at[0], 0) }; R];
    for i in 1..R {
        // SAFETY: likewise.
        shared[i] = unsafe { decoder.shared(s, &at[i], 0) };
    }
    for (b, of_span) in x.chunks_exact(D::SPAN).enumerate() {
        let b = D::SPAN * b;
        prefetch::<S, D, R>(s, ahead, b, D::SPAN);
        for i in 0..R {
            // Opaque to the compiler, which would keep it in registers.
            let shared = &mut std::hint::black_box(&mut shared)[i];
            let mut sums = Sums { x: of_span, low: low[i], high: high[i] };
            // SAFETY: likewise.
            unsafe { decoder.span(s, &mut at[i], b, shared, &mut sums) };
            (low[i], high[i]) = (sums.low, sums.high);
            if b + D::SPAN < x.len() {
                // SAFETY: likewise, and this span is not the last.
                *shared = unsafe { decoder.shared(s, &at[i], b + D::SPAN) };
            }
        }
    }
}

/// Prefetches as many bytes as `blocks` blocks of all rows have.
#[inline(always)]
fn prefetch<S: Simd, D: Decoder<S>, const R: usize>(
    s: S,
    ahead: *const u8,
    b: usize,
    blocks: usize,
) {
    for line in 0..(blocks * R * D::BYTES).div_ceil(64) {
        s.prefetch(ahead.wrapping_add(b * R * D::BYTES + 64 * line));
    }
}

/// Sums of products of one row.
struct Sums<'x, S: Simd> {
    /// The activations of a span.
    x: &'x [[f32; BLOCK]],
    low: S::F,
    high: S::F,
}

impl<S: Simd> Take<S> for Sums<'_, S> {
    #[inline(always)]
    fn take(&mut self, s: S, k: usize, w: [S::F; 4]) {
        let x = load_block(s, &self.x[k]);
        self.low = s.fma(w[0], x[0], self.low);
        self.high = s.fma(w[1], x[1], self.high);
        self.low = s.fma(w[2], x[2], self.low);
        self.high = s.fma(w[3], x[3], self.high);
    }
}
