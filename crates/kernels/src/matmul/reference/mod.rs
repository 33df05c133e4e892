//! The scalar reference of products: the canonical sums, written as plainly as possible. All tiers are tested
//! against it, bit for bit.

mod coded;
mod int8;

use crate::encodings::decode_row;
use crate::scalar::{dot, fma};
use crate::{Activations, Matrix};

/// Calls `y(t, r, weights[r] · x[t])` for all tokens and rows. Tokens are `stride` apart in `x`.
pub(crate) fn matmul(
    activations: Activations,
    weights: &Matrix,
    x: &[f32],
    stride: usize,
    mut y: impl FnMut(usize, usize, f32),
) {
    let coding = weights.encoding().coding();
    let cols = weights.cols();
    let form = match activations {
        Activations::F32 => None,
        Activations::Int8 => weights.encoding().form(),
    };
    let mut row = vec![0.0; cols];
    for r in 0..weights.row_count() {
        if coding.is_none() && form.is_none() {
            decode_row(weights, r, &mut row);
        }
        for (t, x) in x.chunks_exact(stride).enumerate() {
            y(
                t,
                r,
                match (form, coding) {
                    (Some(form), _) => int8::dot(form, weights, r, &x[..cols]),
                    (None, Some(coding)) => coded::dot(coding, weights, r, &x[..cols]),
                    (None, None) => dot(&row, x),
                },
            );
        }
    }
}

/// `y[t] += Σ x[t][r] · weights[r]`. Tokens are a stride apart, the second of each pair.
pub(crate) fn matmul_transposed(
    weights: &Matrix,
    tokens: usize,
    (x, x_stride): (&[f32], usize),
    (y, y_stride): (&mut [f32], usize),
) {
    let mut row = vec![0.0; weights.cols()];
    for r in 0..weights.row_count() {
        decode_row(weights, r, &mut row);
        for t in 0..tokens {
            let to = &mut y[t * y_stride..][..row.len()];
            for (y, w) in to.iter_mut().zip(&row) {
                *y = fma(*w, x[t * x_stride + r], *y);
            }
        }
    }
}
