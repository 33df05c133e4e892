//! Activations: the definition of each for one gate.

use super::elementary::{capped, gelu_erf, gelu_tanh, sigmoid, silu, softplus};

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
