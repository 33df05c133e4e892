//! Upper bounds of the spectral norms of matrices and of their encoding errors.

use rayon::prelude::*;
use sws_kernels::{EncodedRows, Encoding, Matrix};

/// Steps of the Lanczos method. After these, the estimate falls short of the norm by more than a
/// factor of [`SLACK`] with a probability of one in a billion, for any matrix of up to 32,768
/// columns and a starting vector independent of it (Kuczyński and Woźniakowski, 1992, theorem 4.2).
const STEPS: usize = 32;
/// Factor by which the estimate is raised.
const SLACK: f64 = 1.1;
/// Allowance for rounding the changes to f32, far above the actual loss.
const ROUNDING: f64 = 1.000_001;
/// Number of weights in the group of rows that one thread processes at a time. The grouping of
/// sums, and so their rounding, does not depend on the number of threads.
const GROUP: usize = 1 << 18;

/// Norms of a matrix that arrives in blocks of rows.
///
/// The bound of a block is the smaller of two: the Frobenius norm, and the Lanczos estimate raised
/// by [`SLACK`]. The root of the sum of their squares bounds the whole matrix.
#[derive(Default)]
pub(super) struct Norms {
    /// Sums of squared bounds, for the weights and for their changes.
    squares: [f64; 2],
    /// Decoded rows: weights and changes.
    wide: [Vec<f32>; 2],
}

impl Norms {
    /// Adds rows, given as in the checkpoint and as encoded, in blocks.
    pub(super) fn add(
        &mut self,
        pool: &rayon::ThreadPool,
        cols: usize,
        (source, rows): (Encoding, &[u8]),
        (encoding, blocks): (Encoding, &[EncodedRows]),
    ) {
        let weights = rows.len() / row_len(source, cols) * cols;
        let [old, change] = &mut self.wide;
        for wide in [&mut *old, &mut *change] {
            wide.resize(weights, 0.0);
        }
        decode(source, cols, &[rows], old);
        let mut rest = &mut change[..];
        for block in blocks {
            let parts = block.parts.each_ref().map(Vec::as_slice);
            let len = block.parts[0].len() / row_len(encoding, cols) * cols;
            let (now, later) = rest.split_at_mut(len);
            decode(encoding, cols, &parts[..encoding.parts().len()], now);
            rest = later;
        }
        for (new, old) in change.iter_mut().zip(&*old) {
            *new -= old;
        }
        for (square, wide) in self.squares.iter_mut().zip(&self.wide) {
            *square += pool.install(|| bound(wide, cols)).powi(2);
        }
    }

    /// The bounds for all rows: of the weights, and of their changes.
    pub(super) fn bounds(&self) -> [f64; 2] {
        self.squares.map(f64::sqrt)
    }
}

fn row_len(encoding: Encoding, cols: usize) -> usize {
    let part = encoding.parts()[0].rows(0..1, cols as u64);
    let Some(sws_kernels::PartRows::Bytes(bytes)) = part else { return 1 };
    ((bytes.end - bytes.start) as usize).max(1)
}

fn decode(encoding: Encoding, cols: usize, parts: &[&[u8]], wide: &mut [f32]) {
    let rows = wide.len() / cols;
    let matrix = Matrix::new(encoding, rows, cols, parts).expect("whole rows, just encoded");
    wide.par_chunks_mut(cols).enumerate().for_each(|(row, out)| matrix.decode_row(row, out));
}

/// Returns an upper bound of the spectral norm of `a` [.., cols].
fn bound(a: &[f32], cols: usize) -> f64 {
    let frobenius = ROUNDING * a.iter().map(|a| f64::from(*a).powi(2)).sum::<f64>().sqrt();
    let rank = cols.min(a.len() / cols).max(1);
    let found = SLACK * lanczos(a, cols);
    // The spectral norm is at least the Frobenius norm over the root of the rank. An estimate below
    // that, or NaN, comes from numbers too large or too small for f32.
    if found * ROUNDING >= frobenius / (rank as f64).sqrt() {
        found.min(frobenius)
    } else {
        frobenius
    }
}

/// Lower bound of the norm: the root of the largest eigenvalue of AᵀA in a Krylov space.
fn lanczos(a: &[f32], cols: usize) -> f64 {
    let mut v = start(cols);
    let mut before = vec![0.0; cols];
    let mut diagonal = Vec::new();
    let mut beside = Vec::new();
    let mut beta = 0.0;
    for _ in 0..STEPS.min(cols) {
        let mut next = gram(a, cols, &v);
        let alpha = product(&v, &next);
        let old = std::mem::replace(&mut before, v);
        for ((next, v), old) in next.iter_mut().zip(&before).zip(old) {
            *next -= alpha * v + beta * old;
        }
        diagonal.push(alpha);
        beta = product(&next, &next).sqrt();
        // The space is exhausted: at f32 precision the rest is noise.
        if beta.is_nan() || beta <= 1e-6 * diagonal[0].abs() {
            break;
        }
        beside.push(beta);
        v = next.into_iter().map(|x| x / beta).collect();
    }
    largest_eigenvalue(&diagonal, &beside).max(0.0).sqrt()
}

/// Returns AᵀA v. Products of rows are taken in f32; the sums of groups are added in order.
fn gram(a: &[f32], cols: usize, v: &[f64]) -> Vec<f64> {
    let v: Vec<f32> = v.iter().map(|&v| v as f32).collect();
    let group = (GROUP / cols).max(1) * cols;
    let sums: Vec<Vec<f32>> = a
        .par_chunks(group)
        .map(|rows| {
            let mut sum = vec![0.0f32; cols];
            for row in rows.chunks_exact(cols) {
                let factor = dot(row, &v);
                for (sum, a) in sum.iter_mut().zip(row) {
                    *sum += factor * a;
                }
            }
            sum
        })
        .collect();
    let mut total = vec![0.0; cols];
    for sum in sums {
        for (total, sum) in total.iter_mut().zip(sum) {
            *total += f64::from(sum);
        }
    }
    total
}

/// Dot product in lanes, so that the compiler can use wide registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (a, a_rest) = a.as_chunks::<16>();
    let (b, b_rest) = b.as_chunks::<16>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..16 {
            lanes[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Starting vector, which depends only on the number of columns. Each number is a sum of twelve
/// uniform ones, close enough to normal; no math function of the platform is involved.
fn start(cols: usize) -> Vec<f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut v = Vec::with_capacity(cols);
    for _ in 0..cols {
        let mut sum = 0.0;
        for _ in 0..12 {
            sum += uniform(&mut state);
        }
        v.push(sum - 6.0);
    }
    let len = product(&v, &v).sqrt();
    for v in &mut v {
        *v /= len;
    }
    v
}

/// Next number in [0, 1) of splitmix64.
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Largest eigenvalue of a symmetric tridiagonal matrix, by bisection.
fn largest_eigenvalue(diagonal: &[f64], beside: &[f64]) -> f64 {
    let beside = &beside[..beside.len().min(diagonal.len() - 1)];
    let mut low = f64::MIN;
    let mut high = f64::MIN;
    for (i, &on) in diagonal.iter().enumerate() {
        let before = if i > 0 { beside[i - 1] } else { 0.0 };
        let after = beside.get(i).copied().unwrap_or(0.0);
        low = low.max(on);
        high = high.max(on + (after + before));
    }
    for _ in 0..64 {
        let middle = low + (high - low) / 2.0;
        if is_above(middle, diagonal, beside) { high = middle } else { low = middle }
    }
    high
}

/// True if `x` is above every eigenvalue. Sturm: all pivots of T − x are negative there.
fn is_above(x: f64, diagonal: &[f64], beside: &[f64]) -> bool {
    let mut pivot = diagonal[0] - x;
    for (on, beside) in diagonal[1..].iter().zip(beside) {
        let negative = pivot < 0.0;
        if !negative {
            return false;
        }
        pivot = on - x - beside * beside / pivot;
    }
    pivot < 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spectral norm by many steps of the power method in f64, from another start.
    fn norm(a: &[f32], cols: usize) -> f64 {
        let mut v: Vec<f64> = (0..cols).map(|i| 1.0 + (i % 7) as f64).collect();
        let mut found = 0.0;
        for _ in 0..3000 {
            let mut next = vec![0.0; cols];
            for row in a.chunks_exact(cols) {
                let factor: f64 = row.iter().zip(&v).map(|(a, v)| f64::from(*a) * v).sum();
                next.iter_mut().zip(row).for_each(|(n, a)| *n += factor * f64::from(*a));
            }
            let len = product(&next, &next).sqrt();
            if len == 0.0 {
                return 0.0;
            }
            found = len.sqrt();
            v = next.into_iter().map(|x| x / len).collect();
        }
        found
    }

    fn random(rows: usize, cols: usize, scale: impl Fn(usize, usize) -> f64) -> Vec<f32> {
        let all = start(rows * cols + 13);
        let root = ((rows * cols) as f64).sqrt();
        (0..rows * cols).map(|i| (all[i] * root * scale(i / cols, i % cols)) as f32).collect()
    }

    #[test]
    fn bounds_are_above_and_near() {
        // Name, rows, cols, scale of each weight, and how far above the norm the bound may be.
        type Scale = fn(usize, usize) -> f64;
        let cases: [(&str, usize, usize, Scale, f64); 9] = [
            ("square", 64, 64, |_, _| 0.02, 1.11),
            ("wide", 24, 300, |_, _| 3.0, 1.11),
            ("tall", 300, 24, |_, _| 1.0, 1.11),
            ("one row", 1, 50, |_, _| 1.0, 1.01),
            ("one column", 50, 1, |_, _| 1.0, 1.01),
            ("one weight", 1, 1, |_, _| 1.0, 1.01),
            ("zeros", 8, 16, |_, _| 0.0, 1.0),
            ("one large row", 40, 40, |r, _| if r == 7 { 50.0 } else { 0.1 }, 1.11),
            ("one large weight", 40, 40, |r, c| if (r, c) == (3, 5) { 1e3 } else { 1e-3 }, 1.11),
        ];
        for (name, rows, cols, scale, near) in cases {
            let a = random(rows, cols, scale);
            let norm = norm(&a, cols);
            let bound = bound(&a, cols);
            assert!(bound >= norm && bound <= norm * near + 1e-12, "{name}: {bound} for {norm}");
        }
    }

    #[test]
    fn numbers_beyond_f32_are_bounded_too() {
        for scale in [1e-30, 1e30] {
            let a = random(20, 20, |_, _| scale);
            let small: Vec<f32> = a.iter().map(|a| (f64::from(*a) / scale) as f32).collect();
            let found = bound(&a, 20);
            let norm = norm(&small, 20) * scale;
            assert!(found >= norm * 0.999_999 && found.is_finite(), "{found} for {norm}");
        }
    }
}
