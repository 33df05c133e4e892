//! The gated activations of MLPs and experts.

use super::activation::Activation;
use super::{reference, tiered};
use crate::Tier;

/// gate = activation(gate, up), element by element, in place.
pub fn gate(tier: Tier, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate: shapes");
    gate_tiered(tier, activation, gate, up);
}

/// `y[i] = activation(gate_up[2i], gate_up[2i + 1])`, for alternating gates and ups, as gpt-oss
/// stores them.
pub fn gate_interleaved(tier: Tier, activation: Activation, gate_up: &[f32], y: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * y.len(), "gate_interleaved: shapes");
    gate_interleaved_tiered(tier, activation, gate_up, y);
}

tiered! {
    gate_tiered(activation: Activation, gate: &mut [f32], up: &[f32])
    lanes: gate_lanes, reference: reference::gate
}

tiered! {
    gate_interleaved_tiered(activation: Activation, gate_up: &[f32], y: &mut [f32])
    lanes: gate_interleaved_lanes, reference: reference::gate_interleaved
}

/// Runs `$body` with `$it` known to be one variant. A loop that matches per element would not be
/// vectorised.
macro_rules! per_variant {
    ($activation:ident => $it:ident, $body:expr) => {
        match $activation {
            Activation::Sigmoid => {
                let $it = Activation::Sigmoid;
                $body
            }
            Activation::Softplus => {
                let $it = Activation::Softplus;
                $body
            }
            Activation::Silu => {
                let $it = Activation::Silu;
                $body
            }
            Activation::ReluSquared => {
                let $it = Activation::ReluSquared;
                $body
            }
            Activation::CappedSilu { limit } => {
                let $it = Activation::CappedSilu { limit };
                $body
            }
            Activation::GeluTanh => {
                let $it = Activation::GeluTanh;
                $body
            }
            Activation::GeluErf => {
                let $it = Activation::GeluErf;
                $body
            }
            Activation::SiluClamped(limit) => {
                let $it = Activation::SiluClamped(limit);
                $body
            }
            Activation::Clamped { alpha, limit } => {
                let $it = Activation::Clamped { alpha, limit };
                $body
            }
            Activation::Situ { gate, up: f32::INFINITY } => {
                let $it = Activation::Situ { gate, up: f32::INFINITY };
                $body
            }
            Activation::Situ { gate, up } => {
                let $it = Activation::Situ { gate, up };
                $body
            }
        }
    };
}

#[inline(always)]
fn gate_lanes(activation: Activation, gate: &mut [f32], up: &[f32]) {
    per_variant!(activation => it, {
        for (g, &u) in gate.iter_mut().zip(up) {
            *g = it.at(*g, u);
        }
    });
}

#[inline(always)]
fn gate_interleaved_lanes(activation: Activation, gate_up: &[f32], y: &mut [f32]) {
    let (pairs, _) = gate_up.as_chunks::<2>();
    per_variant!(activation => it, {
        for (y, &[g, u]) in y.iter_mut().zip(pairs) {
            *y = it.at(g, u);
        }
    });
}
