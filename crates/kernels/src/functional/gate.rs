//! The gated activations of MLPs and experts.

use super::elementary::{gelu_erf, gelu_tanh, sigmoid, silu, softplus};
use super::row::capped;
use super::{reference, tiered};
use crate::Tier;

/// Activation of a gate `g` that multiplies a value `u`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// sigmoid(g) · u, the output gate of gated attention.
    Sigmoid,
    /// ln(1 + e^g) · u, the same in other families.
    Softplus,
    /// g · sigmoid(g) · u.
    Silu,
    /// The same with g · sigmoid(g) cut off above `limit` and u clamped to ±`limit`.
    CappedSilu {
        /// Cut-off of both.
        limit: f32,
    },
    /// max(g, 0)², of an MLP without ups.
    ReluSquared,
    /// GELU(g) · u in the tanh approximation.
    GeluTanh,
    /// GELU(g) · u with the error function.
    GeluErf,
    /// g · sigmoid(g) · u, with g cut off above the number and u clamped to ± it.
    SiluClamped(f32),
    /// (u + 1) · g · sigmoid(alpha · g), with g cut off above `limit` and u clamped to ±`limit`.
    Clamped {
        /// The slope of the sigmoid, 1.702 in gpt-oss.
        alpha: f32,
        /// Cut-off of gate and up, 7 in gpt-oss.
        limit: f32,
    },
    /// gate · tanh(g / gate) · sigmoid(g) · up · tanh(u / up).
    Situ {
        /// The cap of the gate, 4 in Kimi K3.
        gate: f32,
        /// That of the value, 25 there; infinite if it has none.
        up: f32,
    },
}

impl Activation {
    /// The activation for one gate and its value: the definition that all tiers compile.
    #[inline(always)]
    pub fn at(self, gate: f32, up: f32) -> f32 {
        match self {
            Activation::Sigmoid => sigmoid(gate) * up,
            Activation::Softplus => softplus(gate) * up,
            Activation::Silu => silu(gate) * up,
            Activation::ReluSquared => {
                let positive = if gate < 0.0 { 0.0 } else { gate };
                positive * positive
            }
            Activation::CappedSilu { limit } => {
                let (gate, up) = cut_off(silu(gate), up, limit);
                gate * up
            }
            Activation::GeluTanh => gelu_tanh(gate) * up,
            Activation::GeluErf => gelu_erf(gate) * up,
            Activation::SiluClamped(limit) => {
                let (gate, up) = cut_off(gate, up, limit);
                silu(gate) * up
            }
            Activation::Clamped { alpha, limit } => {
                let (gate, up) = cut_off(gate, up, limit);
                (up + 1.0) * (gate * sigmoid(alpha * gate))
            }
            Activation::Situ { gate: cap, up: of_up } => {
                let up = if of_up == f32::INFINITY { up } else { capped(up, of_up) };
                capped(gate, cap) * sigmoid(gate) * up
            }
        }
    }
}

/// The gate, cut off above the limit, and the value, clamped to ± it. Comparisons, not min and max,
/// so that NaN stays NaN.
#[inline(always)]
fn cut_off(gate: f32, up: f32, limit: f32) -> (f32, f32) {
    let gate = if gate > limit { limit } else { gate };
    let up = if up > limit { limit } else { up };
    (gate, if up < -limit { -limit } else { up })
}

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
