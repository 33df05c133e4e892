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
        by_rows(x, 1, |_, x| x.iter_mut().for_each(|x| *x *= factor));
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
        let bias = bias.filter(|_| by.has_bias()).map(|role| weights.vector(piece, role));
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
                row.iter_mut().zip(weight).for_each(|(x, weight)| *x *= 1.0 + weight);
            }
            rms_norm(tier, rows, width, NormWeight::None, eps);
        }
        Norm::Layer { eps, .. } => layer_norm(tier, rows, width, weight, bias, eps),
    }
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
