//! Softmax and element-wise operations.

use super::elementary::{self, capped, exp};
use super::lanes::{LANES, Lanes, dot, maximum, padded, tree};
use super::{reference, tiered};
use crate::Tier;
use crate::scalar::fma;

/// The softmax of each row of `x` [rows, width], in place: the row's maximum, then e^(x - maximum)
/// and its sum in the canonical lanes, then one division per element.
///
/// A row that is all -inf, or holds NaN or +inf, becomes NaN: no value would be right.
pub fn softmax(tier: Tier, x: &mut [f32], width: usize) {
    assert!(width > 0 && x.len().is_multiple_of(width), "softmax: shapes");
    softmax_tiered(tier, x, width);
}

/// y = scale · x + y, fused. Adds the output of an expert to the sum.
pub fn axpy(tier: Tier, scale: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "axpy: shapes");
    axpy_tiered(tier, scale, x, y);
}

/// y = y + x. Adds the output of a branch to the residual stream.
pub fn add(tier: Tier, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "add: shapes");
    add_tiered(tier, x, y);
}

/// y_i = Σ a_i · b_i, the canonical dot of the rows of `a` and `b` [rows, width].
pub fn dots(tier: Tier, a: &[f32], b: &[f32], width: usize, y: &mut [f32]) {
    assert!(a.len() == b.len() && a.len() == y.len() * width, "dots: shapes");
    dots_tiered(tier, a, b, width, y);
}

/// x = 1 / (1 + e^-x).
pub fn sigmoid(tier: Tier, x: &mut [f32]) {
    sigmoid_tiered(tier, x);
}

/// x = √(ln(1 + e^x)).
pub fn root_softplus(tier: Tier, x: &mut [f32]) {
    root_softplus_tiered(tier, x);
}

/// x = cap · tanh(x / cap).
pub fn soft_cap(tier: Tier, x: &mut [f32], cap: f32) {
    soft_cap_tiered(tier, x, cap);
}

tiered! {
    softmax_tiered(x: &mut [f32], width: usize)
    lanes: softmax_lanes, reference: reference::softmax
}

tiered! {
    axpy_tiered(scale: f32, x: &[f32], y: &mut [f32])
    lanes: axpy_lanes, reference: reference::axpy
}

tiered! {
    add_tiered(x: &[f32], y: &mut [f32])
    lanes: add_lanes, reference: reference::add
}

tiered! {
    dots_tiered(a: &[f32], b: &[f32], width: usize, y: &mut [f32])
    lanes: dots_lanes, reference: reference::dots
}

tiered! {
    sigmoid_tiered(x: &mut [f32])
    lanes: sigmoid_lanes, reference: reference::sigmoid
}

tiered! {
    root_softplus_tiered(x: &mut [f32])
    lanes: root_softplus_lanes, reference: reference::root_softplus
}

tiered! {
    soft_cap_tiered(x: &mut [f32], cap: f32)
    lanes: soft_cap_lanes, reference: reference::soft_cap
}

#[inline(always)]
fn dots_lanes(a: &[f32], b: &[f32], width: usize, y: &mut [f32]) {
    for (row, y) in y.iter_mut().enumerate() {
        *y = dot(&a[row * width..][..width], &b[row * width..][..width]);
    }
}

#[inline(always)]
fn softmax_lanes(x: &mut [f32], width: usize) {
    for row in x.chunks_exact_mut(width) {
        let sum = exp_and_sum(row, maximum(row));
        for x in row {
            *x /= sum;
        }
    }
}

/// x = e^(x - maximum); returns the sum, lane = index mod 32.
#[inline(always)]
pub(super) fn exp_and_sum(x: &mut [f32], maximum: f32) -> f32 {
    let (blocks, rest) = x.as_chunks_mut::<LANES>();
    let mut acc = [0.0; LANES];
    for block in blocks {
        exp_block(block, maximum);
        for i in 0..LANES {
            acc[i] += block[i];
        }
    }
    if !rest.is_empty() {
        let mut block = padded(rest, f32::NEG_INFINITY);
        exp_block(&mut block, maximum);
        rest.copy_from_slice(&block[..rest.len()]);
        // A lane is never -0, so adding 0 changes none.
        for i in 0..LANES {
            acc[i] += if i < rest.len() { block[i] } else { 0.0 };
        }
    }
    tree(acc)
}

#[inline(always)]
fn exp_block(block: &mut Lanes, maximum: f32) {
    for x in block {
        *x = exp(*x - maximum);
    }
}

#[inline(always)]
fn axpy_lanes(scale: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = fma(scale, *x, *y);
    }
}

#[inline(always)]
fn add_lanes(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

#[inline(always)]
fn sigmoid_lanes(x: &mut [f32]) {
    for x in x {
        *x = elementary::sigmoid(*x);
    }
}

#[inline(always)]
fn root_softplus_lanes(x: &mut [f32]) {
    for x in x {
        *x = elementary::softplus(*x).sqrt();
    }
}

#[inline(always)]
fn soft_cap_lanes(x: &mut [f32], cap: f32) {
    for x in x {
        *x = capped(*x, cap);
    }
}
