//! Activations for weights that are summed as codes.
//!
//! The columns of a unit lie in the order in which fours take them: the first columns of the 16 fours, then
//! the second ones and so on. A unit's columns of the tokens of a group follow each other, then the next
//! unit's. Behind all groups are the sums of runs of 16 columns, then of 32, of each token.

use super::{CHUNK, GROUP, InputShape, PackedInput};
use crate::buffer::Buffer;
use crate::scalar::{Fours, LANES, SPAN_COLS, UNIT_COLS, counted, sum_of_16};

/// Columns of two units, which fill all lanes.
pub(in crate::matmul) const PAIR: usize = 2 * UNIT_COLS;

/// Maximum number of tokens in a group. Its activations of a span fill half of the first-level cache.
pub(in crate::matmul) const TOKENS: usize = 16;

/// Activations as [`PackedInput::coded`] packs them.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct CodedInput<'a> {
    pub(in crate::matmul) tokens: usize,
    /// Columns of a token, a multiple of [`PAIR`].
    pub(in crate::matmul) padded: usize,
    columns: &'a [f32],
    sums: &'a [f32],
}

/// Sums of the runs of a token: of 16 and of 32 columns.
const fn sums_of(cols: usize) -> usize {
    cols.div_ceil(SPAN_COLS) * (SPAN_COLS / 16 + SPAN_COLS / 32)
}

impl<'a> CodedInput<'a> {
    /// Numbers of so many tokens.
    pub(super) const fn len(tokens: usize, cols: usize) -> usize {
        tokens * (cols.next_multiple_of(PAIR) + sums_of(cols))
    }

    pub(super) fn of(input: &PackedInput, buffer: &'a Buffer) -> Self {
        let tokens = input.tokens;
        let padded = input.cols.next_multiple_of(PAIR);
        let (columns, sums) = buffer.get(Self::len(tokens, input.cols)).split_at(tokens * padded);
        CodedInput { tokens, padded, columns, sums }
    }

    /// The activations of all tokens.
    #[inline(always)]
    pub(in crate::matmul) fn columns(self) -> &'a [f32] {
        self.columns
    }

    /// The sums of the runs of the tokens from `first` on, eight at a time, and how many of these there are
    /// from one token to the next.
    #[inline(always)]
    pub(in crate::matmul) fn sums(self, first: usize, run: usize) -> (&'a [[f32; 8]], usize) {
        let of_token = self.sums.len() / self.tokens;
        let before = if run == 16 { 0 } else { of_token / 3 * 2 };
        (self.sums[of_token * first + before..].as_chunks().0, of_token / 8)
    }
}

/// Packs the activations of an input.
pub(super) fn pack(input: &PackedInput, fours: Fours, buffer: &mut Buffer) {
    let tokens = input.tokens;
    let cols = input.cols;
    let padded = cols.next_multiple_of(PAIR);
    let (columns, sums) = buffer.grown(CodedInput::len(tokens, cols)).split_at_mut(tokens * padded);
    let of_token = sums_of(cols);
    sums.fill(0.0);
    let order = match fours {
        Fours::Neighbours => order::<8>,
        Fours::Apart => order::<4>,
    };
    for token in 0..tokens {
        let group = token / TOKENS * TOKENS;
        let in_group = TOKENS.min(tokens - group);
        let columns = &mut columns[group * padded..];
        let sums = &mut sums[of_token * token..][..of_token];
        for pair in 0..padded / PAIR {
            let x = read(input, token, PAIR * pair);
            add_sums(&x, PAIR / 16 * pair, sums);
            for (unit, x) in order(&x).as_chunks::<UNIT_COLS>().0.iter().enumerate() {
                let at = (2 * pair + unit) * in_group + token - group;
                columns[UNIT_COLS * at..][..UNIT_COLS].copy_from_slice(x);
            }
        }
    }
}

/// The columns of two units in the order of fours, divided by powers of two.
#[inline(always)]
fn order<const BITS: i32>(x: &[f32; PAIR]) -> [f32; PAIR] {
    let fours = if BITS == 8 { Fours::Neighbours } else { Fours::Apart };
    let mut ordered = [0.0; PAIR];
    for unit in 0..2 {
        for k in 0..4 {
            let unit_of = f32::from_bits(((127 - fours.bits() * k) as u32) << 23);
            for i in 0..16 {
                ordered[UNIT_COLS * unit + 16 * k + i] =
                    x[UNIT_COLS * unit + fours.col(i, k)] * unit_of;
            }
        }
    }
    ordered
}

/// Adds the sums of the runs of two units, of which the first of 16 columns has this number.
fn add_sums(x: &[f32; PAIR], first: usize, sums: &mut [f32]) {
    let (of_16, of_32) = sums.split_at_mut(sums.len() / 3 * 2);
    for (i, x) in x.as_chunks().0.iter().enumerate() {
        of_16[first + i] = sum_of_16(x);
    }
    for i in 0..PAIR / 32 {
        of_32[first / 2 + i] = of_16[first + 2 * i] + of_16[first + 2 * i + 1];
    }
}

/// Two units of a token, from column `col` on.
fn read(input: &PackedInput, token: usize, col: usize) -> [f32; PAIR] {
    let packed = input.packed();
    let padded = input.padded_cols();
    let mut x = [0.0; PAIR];
    let there = PAIR.min(padded - col);
    let InputShape { lanes, tile_tokens } = input.shape;
    if lanes == 0 {
        x[..there].copy_from_slice(&packed[token * padded + col..][..there]);
    } else {
        let group = token / GROUP * GROUP;
        let chunk = col / CHUNK * CHUNK;
        let in_group = GROUP.min(input.tokens - group);
        let tile = (token - group) / tile_tokens * tile_tokens;
        let in_tile = tile_tokens.min(in_group - tile);
        let steps = CHUNK.min(padded - chunk) / LANES;
        let base = group * padded + in_group * chunk + tile * steps * lanes;
        let base = base + (token - group - tile) * lanes;
        for at in (0..there).step_by(lanes) {
            let step = (col - chunk + at) / LANES;
            let slice = at % LANES / lanes;
            let from = base + slice * steps * in_group * lanes + step * in_tile * lanes;
            x[at..at + lanes].copy_from_slice(&packed[from..][..lanes]);
        }
    }
    x.map(counted)
}
