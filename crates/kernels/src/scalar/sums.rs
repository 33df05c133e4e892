//! The fixed order of sums.

use super::fma;

/// Partial sums of a dot product: column `c` goes to lane `c % 32`.
pub(crate) const LANES: usize = 32;

/// Columns of a unit of codes.
pub(crate) const UNIT_COLS: usize = 64;

/// Columns of a span of codes.
pub(crate) const SPAN_COLS: usize = 256;

/// Partial sums of minima.
pub(crate) const MINIMA_LANES: usize = 8;

/// Columns of rounded activations that share a scale.
pub(crate) const ROUND_COLS: usize = 32;

/// Blocks of a span of rounded activations, each of which has a sum of its own.
pub(crate) const SPAN_BLOCKS: usize = SPAN_COLS / ROUND_COLS;

/// The canonical dot product.
pub(crate) fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    for (c, (w, x)) in w.iter().zip(x).enumerate() {
        acc[c % LANES] = fma(*w, *x, acc[c % LANES]);
    }
    reduce(acc)
}

/// The fixed tree: lane i with i+16, then +8, +4, +2, +1.
pub(crate) fn reduce(mut acc: [f32; LANES]) -> f32 {
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            acc[i] += acc[i + half];
        }
    }
    acc[0]
}

/// Smaller activations count as zero, so that none is subnormal when it is divided by a power of two.
pub(crate) const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// An activation that counts.
#[inline(always)]
pub(crate) fn counted(x: f32) -> f32 {
    if x.abs() < SMALLEST { 0.0 } else { x }
}

/// The sum of the activations of 16 columns.
#[inline(always)]
pub(crate) fn sum_of_16(x: &[f32; 16]) -> f32 {
    let mut sums = [0.0; 8];
    for i in 0..8 {
        sums[i] = x[i] + x[i + 8];
    }
    fold(sums)
}

/// The fixed tree over eight lanes.
#[inline(always)]
pub(crate) fn fold(mut sums: [f32; MINIMA_LANES]) -> f32 {
    for half in [4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}
