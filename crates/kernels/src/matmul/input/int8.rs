//! Activations that are rounded to eight bits: see [`CodeForm`](crate::scalar::CodeForm) for the definition.

use crate::Tier;
use crate::buffer::Buffer;
use crate::isa::Isa;
use crate::scalar::{ROUND_COLS, SMALLEST, SPAN_BLOCKS, SPAN_COLS};
use crate::simd::{Compiled, Portable, Simd, SimdJob};

/// The rounded activations of some tokens, and what products of any encoding need of them.
#[derive(Debug, Default)]
pub(in crate::matmul) struct Rounded {
    buffer: Buffer,
    tokens: usize,
    /// Columns of a token, a multiple of a span's.
    padded: usize,
}

/// The parts of them. Every token has as many of each.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct View<'a> {
    pub(in crate::matmul) tokens: usize,
    pub(in crate::matmul) padded: usize,
    /// Eight bits for each column.
    q: &'a [i8],
    /// The scale of each block.
    scales: &'a [f32],
    /// The sum of each block, times its scale.
    totals: &'a [f32],
    /// The sum of each block, without it.
    sums: &'a [i32],
    /// The sums of both runs of each block.
    of_runs: &'a [[i16; 2]],
}

impl<'a> View<'a> {
    /// The columns of a token, a span after another.
    #[inline(always)]
    pub(in crate::matmul) fn q(self, token: usize) -> &'a [[i8; SPAN_COLS]] {
        self.q[self.padded * token..][..self.padded].as_chunks().0
    }
    #[inline(always)]
    pub(in crate::matmul) fn scales(self, token: usize) -> &'a [[f32; SPAN_BLOCKS]] {
        self.of_token(self.scales, token)
    }
    #[inline(always)]
    pub(in crate::matmul) fn totals(self, token: usize) -> &'a [[f32; SPAN_BLOCKS]] {
        self.of_token(self.totals, token)
    }
    #[inline(always)]
    pub(in crate::matmul) fn sums(self, token: usize) -> &'a [[i32; SPAN_BLOCKS]] {
        self.of_token(self.sums, token)
    }
    #[inline(always)]
    pub(in crate::matmul) fn of_runs(self, token: usize) -> &'a [[[i16; 2]; SPAN_BLOCKS]] {
        self.of_token(self.of_runs, token)
    }
    #[inline(always)]
    fn of_token<T>(self, all: &'a [T], token: usize) -> &'a [[T; SPAN_BLOCKS]] {
        let blocks = self.padded / ROUND_COLS;
        all[blocks * token..][..blocks].as_chunks().0
    }
}

impl Rounded {
    /// Numbers of the buffer for so many tokens: a quarter for each column, and four for each block.
    pub(super) const fn len(tokens: usize, cols: usize) -> usize {
        let padded = cols.next_multiple_of(SPAN_COLS);
        tokens * (padded / 4 + 4 * (padded / ROUND_COLS))
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Rounds the activations of `tokens` tokens. Large inputs are rounded on all threads of the pool.
    pub(super) fn fill<'x>(
        &mut self,
        tier: Tier,
        tokens: usize,
        cols: usize,
        row: &(impl Fn(usize) -> &'x [f32] + Sync),
    ) {
        (self.tokens, self.padded) = (tokens, cols.next_multiple_of(SPAN_COLS));
        let blocks = tokens * self.padded / ROUND_COLS;
        let all = self.buffer.grown(Self::len(tokens, cols));
        let (q, rest) = all.split_at_mut(blocks * ROUND_COLS / 4);
        let (scales, rest) = rest.split_at_mut(blocks);
        let (totals, rest) = rest.split_at_mut(blocks);
        let (sums, of_runs) = rest.split_at_mut(blocks);
        // SAFETY: as many bytes of numbers for which all bits are valid, and which need no more alignment.
        let part = unsafe {
            TokenPlaces {
                q: std::slice::from_raw_parts_mut(q.as_mut_ptr().cast(), 4 * q.len()),
                scales,
                totals,
                sums: std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast(), blocks),
                of_runs: std::slice::from_raw_parts_mut(of_runs.as_mut_ptr().cast(), blocks),
            }
        };
        part.fill(tier, self.padded, 0..tokens, row);
    }

    /// The activations rounded last.
    pub(in crate::matmul) fn view(&self) -> View<'_> {
        let tokens = self.tokens;
        let padded = self.padded;
        let blocks = tokens * padded / ROUND_COLS;
        let all = self.buffer.get(Self::len(tokens, padded));
        let (q, rest) = all.split_at(blocks * ROUND_COLS / 4);
        let (scales, rest) = rest.split_at(blocks);
        let (totals, rest) = rest.split_at(blocks);
        let (sums, of_runs) = rest.split_at(blocks);
        // SAFETY: as in `fill`.
        unsafe {
            View {
                tokens,
                padded,
                q: std::slice::from_raw_parts(q.as_ptr().cast(), 4 * q.len()),
                scales,
                totals,
                sums: std::slice::from_raw_parts(sums.as_ptr().cast(), blocks),
                of_runs: std::slice::from_raw_parts(of_runs.as_ptr().cast(), blocks),
            }
        }
    }
}

/// The places of some tokens.
struct TokenPlaces<'a> {
    q: &'a mut [i8],
    scales: &'a mut [f32],
    totals: &'a mut [f32],
    sums: &'a mut [i32],
    of_runs: &'a mut [[i16; 2]],
}

impl TokenPlaces<'_> {
    fn fill<'x>(
        self,
        tier: Tier,
        padded: usize,
        tokens: std::ops::Range<usize>,
        row: &(impl Fn(usize) -> &'x [f32] + Sync),
    ) {
        let blocks = padded / ROUND_COLS;
        if tokens.len() > 1 && self.q.len() >= super::WORTH_SPLITTING {
            let middle = tokens.start + tokens.len() / 2;
            let (left, right) = self.split_at((middle - tokens.start) * blocks);
            rayon::join(
                || left.fill(tier, padded, tokens.start..middle, row),
                || right.fill(tier, padded, middle..tokens.end, row),
            );
            return;
        }
        let mut rest = self;
        for token in tokens {
            let (part, behind) = rest.split_at(blocks);
            rest = behind;
            let job = TokenRounding { x: row(token), part };
            match tier.isa() {
                Isa::Scalar => {}
                Isa::Portable => Portable.compiled(job),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(s) => s.compiled(job),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(s) => s.compiled(job),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon(s) => s.compiled(job),
            }
        }
    }

    fn split_at(self, blocks: usize) -> (Self, Self) {
        let (q, last_q) = self.q.split_at_mut(blocks * ROUND_COLS);
        let (scales, last_scales) = self.scales.split_at_mut(blocks);
        let (totals, last_totals) = self.totals.split_at_mut(blocks);
        let (sums, last_sums) = self.sums.split_at_mut(blocks);
        let (of_runs, last_of_runs) = self.of_runs.split_at_mut(blocks);
        let last = TokenPlaces {
            q: last_q,
            scales: last_scales,
            totals: last_totals,
            sums: last_sums,
            of_runs: last_of_runs,
        };
        (TokenPlaces { q, scales, totals, sums, of_runs }, last)
    }
}

/// Activations of a token to be rounded.
struct TokenRounding<'a> {
    x: &'a [f32],
    part: TokenPlaces<'a>,
}

impl<S: Simd> SimdJob<S> for TokenRounding<'_> {
    #[inline(always)]
    fn run(self, _: S) {
        let TokenRounding { x, part } = self;
        let (whole, rest) = x.as_chunks();
        let mut last = [0.0; ROUND_COLS];
        last[..rest.len()].copy_from_slice(rest);
        for (i, q) in part.q.as_chunks_mut().0.iter_mut().enumerate() {
            let scale = match whole.get(i) {
                Some(x) => round(x, q),
                None if i == whole.len() => round(&last, q),
                None => round(&[0.0; ROUND_COLS], q),
            };
            let mut of_runs = [0i16; 2];
            for run in 0..2 {
                for i in 0..16 {
                    of_runs[run] += i16::from(q[16 * run + i]);
                }
            }
            let sum = i32::from(of_runs[0]) + i32::from(of_runs[1]);
            part.scales[i] = scale;
            part.totals[i] = sum as f32 * scale;
            part.sums[i] = sum;
            part.of_runs[i] = of_runs;
        }
    }
}

/// Rounds a block, and returns its scale.
#[inline(always)]
fn round(x: &[f32; ROUND_COLS], to: &mut [i8; ROUND_COLS]) -> f32 {
    // Numbers without their signs are in the order of their bits; infinity and NaN come last.
    let mut most = 0;
    for x in x {
        most = most.max(x.to_bits() & !(1 << 31));
    }
    *to = [0; ROUND_COLS];
    if most >= f32::INFINITY.to_bits() {
        return f32::NAN;
    }
    let most = f32::from_bits(most);
    if most < SMALLEST {
        return 0.0;
    }
    let factor = 127.0 / most;
    for i in 0..ROUND_COLS {
        // The last bit of such numbers is worth one, so the addition rounds to whole numbers.
        to[i] = (x[i] * factor + 12_582_912.0).to_bits() as i8;
    }
    most / 127.0
}
