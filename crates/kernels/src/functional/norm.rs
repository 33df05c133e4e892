//! RMSNorm and LayerNorm.

use super::lanes::{LANES, dot, padded, sum, tree};
use super::shapes::NormWeight;
use super::{reference, tiered};
use crate::Tier;
use crate::scalar::fma;

/// x = x / √(mean(x²) + eps) · weight for each row of `x` [rows, width], in place.
pub fn rms_norm(tier: Tier, x: &mut [f32], width: usize, weight: NormWeight, eps: f32) {
    assert!(width > 0 && x.len().is_multiple_of(width) && weight.fits(width), "rms_norm: shapes");
    rms_norm_tiered(tier, x, width, weight, eps);
}

/// x = (x - mean) / √(variance + eps) · weight + bias for each row of `x` [rows, width], in place.
pub fn layer_norm(
    tier: Tier,
    x: &mut [f32],
    width: usize,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) {
    assert!(
        width > 0
            && x.len().is_multiple_of(width)
            && weight.len() == width
            && bias.is_none_or(|b| b.len() == width),
        "layer_norm: shapes"
    );
    layer_norm_tiered(tier, x, width, weight, bias, eps);
}

tiered! {
    rms_norm_tiered(x: &mut [f32], width: usize, weight: NormWeight, eps: f32)
    lanes: rms_norm_lanes, reference: reference::rms_norm
}

tiered! {
    layer_norm_tiered(x: &mut [f32], width: usize, weight: &[f32], bias: Option<&[f32]>, eps: f32)
    lanes: layer_norm_lanes, reference: reference::layer_norm
}

#[inline(always)]
fn rms_norm_lanes(x: &mut [f32], width: usize, weight: NormWeight, eps: f32) {
    for row in x.chunks_exact_mut(width) {
        let scale = 1.0 / (dot(row, row) / width as f32 + eps).sqrt();
        match weight {
            NormWeight::None => {
                for x in row {
                    *x *= scale;
                }
            }
            NormWeight::Plain(w) => {
                for (x, w) in row.iter_mut().zip(w) {
                    *x = *x * scale * w;
                }
            }
            NormWeight::OnePlus(w) => {
                for (x, w) in row.iter_mut().zip(w) {
                    *x = *x * scale * (1.0 + w);
                }
            }
        }
    }
}

#[inline(always)]
fn layer_norm_lanes(x: &mut [f32], width: usize, weight: &[f32], bias: Option<&[f32]>, eps: f32) {
    for row in x.chunks_exact_mut(width) {
        let mean = sum(row) / width as f32;
        let scale = 1.0 / (squared_distances(row, mean) / width as f32 + eps).sqrt();
        match bias {
            None => {
                for (x, w) in row.iter_mut().zip(weight) {
                    *x = (*x - mean) * scale * w;
                }
            }
            Some(bias) => {
                for ((x, w), b) in row.iter_mut().zip(weight).zip(bias) {
                    *x = fma((*x - mean) * scale, *w, *b);
                }
            }
        }
    }
}

/// Σ (x - mean)².
#[inline(always)]
fn squared_distances(x: &[f32], mean: f32) -> f32 {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut acc = [0.0; LANES];
    for block in blocks {
        for i in 0..LANES {
            let d = block[i] - mean;
            acc[i] = fma(d, d, acc[i]);
        }
    }
    // Squares are never -0, so neither is a lane, and adding 0² = 0 changes none.
    let block = padded(rest, mean);
    for i in 0..LANES {
        let d = if i < rest.len() { block[i] - mean } else { 0.0 };
        acc[i] = fma(d, d, acc[i]);
    }
    tree(acc)
}
