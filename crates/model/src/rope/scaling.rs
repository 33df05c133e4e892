//! Changes to the angles of rotary embeddings.

use sws_kernels::functional::elementary::{ln64, pow64};

/// Changes to the angles of a rotary embedding for texts longer than the original context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// No change.
    None,
    /// All angles are divided by one number.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Long waves are stretched, short ones are kept, and those between are interpolated.
    Llama3 {
        /// The factor by which long waves are stretched.
        factor: f64,
        /// Waves that fit fewer than this many times into the original context are long.
        low: f64,
        /// Waves that fit more than this many times into the original context are short.
        high: f64,
        /// Positions of the original context.
        trained: f64,
    },
    /// Pairs that turn slowly are stretched, those that turn fast are kept, and those between are
    /// interpolated by their number.
    Yarn {
        /// The factor by which slow pairs are stretched.
        factor: f64,
        /// Pairs that turn more than this many times over the original context are fast.
        fast: f64,
        /// Pairs that turn fewer than this many times over the original context are slow.
        slow: f64,
        /// Positions of the original context.
        trained: f64,
        /// True if both limits are moved outwards, to whole pairs.
        truncate: bool,
    },
    /// Each pair's angle is divided by a number of its own.
    Divided,
}

impl RopeScaling {
    /// theta^(-2i/dim) for each pair i, scaled. Rounded as in training: exponent, power and inverse
    /// are each an f32.
    pub(super) fn frequencies(self, theta: f64, dim: usize) -> Vec<f32> {
        let mut angles = Vec::with_capacity(dim.div_ceil(2));
        for i in 0..dim.div_ceil(2) {
            let wave = pow64(theta, f64::from((2 * i) as f32 / dim as f32)) as f32;
            angles.push(self.scaled(theta, dim, i, wave));
        }
        angles
    }

    /// The angle of pair `i`, for theta^(2i/dim) rounded.
    fn scaled(self, theta: f64, dim: usize, i: usize, wave: f32) -> f32 {
        let inv_freq = 1.0 / wave;
        match self {
            // Divisors are not functions of the angle.
            RopeScaling::None | RopeScaling::Divided => inv_freq,
            RopeScaling::Linear { factor } => inv_freq / factor as f32,
            RopeScaling::Yarn { factor, fast, slow, trained, truncate } => {
                // The pair that turns this many times over the original context.
                let pair = |turns: f64| {
                    let turn = turns * 2.0 * std::f64::consts::PI;
                    dim as f64 * ln64(trained / turn) / (2.0 * ln64(theta))
                };
                let mut low = pair(fast);
                let mut high = pair(slow);
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let stretched = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let kept = 1.0 - stretched;
                1.0 / (factor as f32 * wave) * (1.0 - kept) + inv_freq * kept
            }
            RopeScaling::Llama3 { factor, low, high, trained } => {
                let factor = factor as f32;
                let wave = 2.0 * std::f32::consts::PI / inv_freq;
                if wave > (trained / low) as f32 {
                    return inv_freq / factor;
                }
                if wave < (trained / high) as f32 {
                    return inv_freq;
                }
                let share = (trained as f32 / wave - low as f32) / (high - low) as f32;
                (1.0 - share) * inv_freq / factor + share * inv_freq
            }
        }
    }
}

/// The factor of sines and cosines for angles stretched by `factor`.
pub(crate) fn yarn_amplitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * ln64(factor) + 1.0 }
}
