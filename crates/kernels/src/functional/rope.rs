//! Rotary position embedding.
//!
//! The caller handles the frequency scaling of a model family (linear, llama3, yarn, longrope) and
//! passes a list of inverse frequencies and one factor.

use super::elementary::turn;
use super::shapes::{RopePairs, RopeShape};
use super::{elementary, reference, tiered};
use crate::Tier;

/// Fills `cos` and `sin`, both [tokens, pairs], for tokens at consecutive absolute positions.
///
/// The angle position · inv_freq is rounded to f32, as it was in the training and the reference
/// implementations of these models; its cosine and sine are rounded once each, then multiplied by
/// `factor`.
pub fn rope_tables(
    inv_freq: &[f32],
    factor: f32,
    first_position: usize,
    cos: &mut [f32],
    sin: &mut [f32],
) {
    let pairs = inv_freq.len();
    assert!(
        pairs > 0 && cos.len().is_multiple_of(pairs) && sin.len() == cos.len(),
        "rope_tables: shapes"
    );
    let rows = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
    for (position, (cos, sin)) in (first_position..).zip(rows) {
        for ((&f, cos), sin) in inv_freq.iter().zip(cos).zip(sin) {
            let angle = f64::from(position as f32 * f);
            *cos = elementary::cos64(angle) as f32 * factor;
            *sin = elementary::sin64(angle) as f32 * factor;
        }
    }
}

/// Rotates each pair (a, b) to (a · cos - b · sin, b · cos + a · sin), in place, by the tables of
/// its token.
pub fn rope(tier: Tier, x: &mut [f32], shape: RopeShape, cos: &[f32], sin: &[f32]) {
    let row = shape.heads * shape.head_dim;
    assert!(row > 0 && x.len().is_multiple_of(row) && cos.len() == sin.len(), "rope: shapes");
    let tokens = x.len() / row;
    if tokens == 0 {
        return;
    }
    let pairs = cos.len() / tokens;
    assert!(
        cos.len() == tokens * pairs && shape.offset + 2 * pairs <= shape.head_dim,
        "rope: {pairs} pairs do not fit"
    );
    if pairs > 0 {
        rope_tiered(tier, x, shape, pairs, cos, sin);
    }
}

tiered! {
    rope_tiered(x: &mut [f32], shape: RopeShape, pairs: usize, cos: &[f32], sin: &[f32])
    lanes: rope_lanes, reference: reference::rope
}

#[inline(always)]
fn rope_lanes(x: &mut [f32], shape: RopeShape, pairs: usize, cos: &[f32], sin: &[f32]) {
    let tables = cos.chunks_exact(pairs).zip(sin.chunks_exact(pairs));
    for (row, (cos, sin)) in x.chunks_exact_mut(shape.heads * shape.head_dim).zip(tables) {
        for head in row.chunks_exact_mut(shape.head_dim) {
            let turned = &mut head[shape.offset..shape.offset + 2 * pairs];
            match shape.pairs {
                RopePairs::HalfSplit => {
                    let (first, second) = turned.split_at_mut(pairs);
                    for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                        (*a, *b) = turn(*a, *b, *c, *s);
                    }
                }
                RopePairs::Interleaved => {
                    let (turned, _) = turned.as_chunks_mut::<2>();
                    for (([a, b], c), s) in turned.iter_mut().zip(cos).zip(sin) {
                        (*a, *b) = turn(*a, *b, *c, *s);
                    }
                }
            }
        }
    }
}
