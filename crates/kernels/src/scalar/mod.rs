//! Numbers and orders of which everything else is made, in plain Rust: narrow numbers, the order of columns in
//! blocks, and the fixed order of sums.

mod codes;
mod fma;
mod number;
mod sums;

pub(crate) use codes::{CodeForm, Coding, Fours};
pub use fma::fma;
pub(crate) use number::{
    BELOW_SCALE, E2M1, E2M1_CODES, E8M0, bf16_at, bf16_to_f32, e4m3_to_f32, e8m0_to_f32,
    f16_to_f32, f32_at, group_scale, nibble, zero_point,
};
pub(crate) use sums::{
    LANES, MINIMA_LANES, ROUND_COLS, SMALLEST, SPAN_BLOCKS, SPAN_COLS, UNIT_COLS, counted, dot,
    fold, reduce, sum_of_16,
};

/// Columns in a block, the unit of decoding.
pub(crate) const BLOCK: usize = 64;

/// Position of column `c` in a whole block of bf12 or q4: `4i + k` for column `16k + i`.
pub(crate) fn interleaved(c: usize) -> usize {
    4 * (c % 16) + c / 16
}

/// Position of column `c` in a whole block of bf11 or nested. Bytes that are unpacked to pairs of neighbours
/// within each sixteen bytes then have their columns in order.
pub(crate) const fn paired(c: usize) -> usize {
    let k = c / 16;
    let i = c % 16;
    16 * (i / 4) + 8 * (k / 2) + 2 * (i % 4) + k % 2
}
