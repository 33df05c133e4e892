//! The canonical reduction on arrays that the compiler turns into vectors.

use crate::scalar::fma;

pub(crate) use crate::scalar::LANES;

/// One partial sum per lane.
pub(crate) type Lanes = [f32; LANES];

/// Folds lane i with i + 16, then + 8, + 4, + 2, + 1.
#[inline(always)]
pub(crate) fn tree(mut lanes: Lanes) -> f32 {
    for i in 0..16 {
        lanes[i] += lanes[i + 16];
    }
    for i in 0..8 {
        lanes[i] += lanes[i + 8];
    }
    for i in 0..4 {
        lanes[i] += lanes[i + 4];
    }
    for i in 0..2 {
        lanes[i] += lanes[i + 2];
    }
    lanes[0] + lanes[1]
}

/// The last, incomplete block of a row, padded with `fill`.
#[inline(always)]
pub(crate) fn padded(rest: &[f32], fill: f32) -> Lanes {
    let mut block = [fill; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// Σ a·b.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut acc = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        accumulate(&mut acc, a, b);
    }
    if !a_rest.is_empty() {
        // 0 · -0 = -0 is the one product that leaves every accumulator unchanged, even -0.
        accumulate(&mut acc, &padded(a_rest, 0.0), &padded(b_rest, -0.0));
    }
    tree(acc)
}

/// Σ x.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut acc = [0.0; LANES];
    for block in blocks {
        for i in 0..LANES {
            acc[i] += block[i];
        }
    }
    if !rest.is_empty() {
        let block = padded(rest, -0.0);
        for i in 0..LANES {
            acc[i] += block[i];
        }
    }
    tree(acc)
}

/// The largest number of a row, -inf if there is none. NaN is ignored.
#[inline(always)]
pub(crate) fn maximum(x: &[f32]) -> f32 {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    for block in blocks {
        for i in 0..LANES {
            best[i] = greater(block[i], best[i]);
        }
    }
    let mut best = best.into_iter().fold(f32::NEG_INFINITY, |m, x| greater(x, m));
    for &x in rest {
        best = greater(x, best);
    }
    best
}

/// `a` if it is greater, else `b`; hence `b` if either is NaN.
#[inline(always)]
pub(crate) fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn accumulate(acc: &mut Lanes, a: &Lanes, b: &Lanes) {
    for i in 0..LANES {
        acc[i] = fma(a[i], b[i], acc[i]);
    }
}
