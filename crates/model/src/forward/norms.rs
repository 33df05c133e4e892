//! Norms and factors.

use sws_format::PieceId;
use sws_kernels::Tier;
use sws_kernels::functional::{NormWeight, layer_norm, rms_norm};

use super::by_rows::by_rows;
use crate::role::Role;
use crate::source::Weights;
use crate::spec::Norm;

/// Multiplies every number by `factor`.
pub(super) fn scale(factor: f32, x: &mut [f32]) {
    if factor != 1.0 {
        by_rows(x, 1, |_, x| scale_row(factor, x));
    }
}

/// Multiplies the numbers of a row by `factor`, on this thread.
#[inline]
pub(super) fn scale_row(factor: f32, row: &mut [f32]) {
    for x in row {
        *x *= factor;
    }
}

/// The weights of a norm, and its bias if it has one.
#[derive(Clone, Copy)]
pub(super) struct NormVectors<'w> {
    pub(super) weight: &'w [f32],
    bias: Option<&'w [f32]>,
}

impl<'w> From<&'w [f32]> for NormVectors<'w> {
    fn from(weight: &'w [f32]) -> Self {
        NormVectors { weight, bias: None }
    }
}

impl<'w> NormVectors<'w> {
    /// The weights for a norm of the hidden state.
    pub(super) fn of(weights: &'w dyn Weights, piece: PieceId, role: Role, by: Norm) -> Self {
        let bias = match role {
            Role::MixerNorm => Some(Role::MixerNormBias),
            Role::FfnNorm => Some(Role::FfnNormBias),
            Role::FinalNorm => Some(Role::FinalNormBias),
            _ => None,
        };
        let weight = if by.has_weight() { weights.vector(piece, role) } else { &[] };
        let bias = match bias {
            Some(role) if by.has_bias() => Some(weights.vector(piece, role)),
            _ => None,
        };
        NormVectors { weight, bias }
    }
}

/// Norms every row.
pub(super) fn norm<'w>(
    tier: Tier,
    norm: Norm,
    rows: &mut [f32],
    width: usize,
    vectors: impl Into<NormVectors<'w>>,
) {
    let NormVectors { weight, bias } = vectors.into();
    match norm {
        Norm::Rms { eps, one_plus: true } => {
            rms_norm(tier, rows, width, NormWeight::OnePlus(weight), eps);
        }
        Norm::Rms { eps, one_plus: false } => {
            rms_norm(tier, rows, width, NormWeight::Plain(weight), eps);
        }
        Norm::Unweighted { eps } => rms_norm(tier, rows, width, NormWeight::None, eps),
        Norm::OfScaled { eps } => {
            for row in rows.chunks_exact_mut(width) {
                for (x, weight) in row.iter_mut().zip(weight) {
                    *x *= 1.0 + weight;
                }
            }
            rms_norm(tier, rows, width, NormWeight::None, eps);
        }
        Norm::Layer { eps, .. } => layer_norm(tier, rows, width, weight, bias, eps),
    }
}

/// [`norm`], on several threads if there are many rows.
pub(super) fn norm_rows<'w>(
    tier: Tier,
    by: Norm,
    rows: &mut [f32],
    width: usize,
    vectors: impl Into<NormVectors<'w>>,
) {
    let vectors = vectors.into();
    by_rows(rows, width, |_, rows| norm(tier, by, rows, width, vectors));
}

/// [`rms_norm`], on several threads if there are many rows.
pub(super) fn rms_norm_rows(
    tier: Tier,
    rows: &mut [f32],
    width: usize,
    weight: NormWeight<'_>,
    eps: f32,
) {
    by_rows(rows, width, |_, rows| rms_norm(tier, rows, width, weight, eps));
}

/// Norms each stream of some tokens [tokens, streams, width] with weights of its own [streams,
/// width].
pub(super) fn norm_streams(tier: Tier, by: Norm, width: usize, weight: &[f32], x: &mut [f32]) {
    by_rows(x, weight.len(), |_, rows| {
        for (at, stream) in rows.chunks_exact_mut(width).enumerate() {
            norm(tier, by, stream, width, &weight[at * width % weight.len()..][..width]);
        }
    });
}
