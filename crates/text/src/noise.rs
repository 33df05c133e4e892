//! The noise of sampling.

use sws_kernels::functional::elementary::{exp, ln1p64};

use super::SplitMix64;

/// Name of the method that derives a text from a seed. A different method needs a new name.
pub const SAMPLER: &str = "gumbel-1";

/// A random number for each token at a position: a function of seed, position and token, without
/// any state. Positions can be drawn in any order, any number of times, and by several models. A
/// draft model draws the same token as the model itself wherever their probabilities agree.
#[derive(Clone, Copy, Debug)]
pub(super) struct GumbelNoise {
    key: u64,
}

impl GumbelNoise {
    pub(super) fn new(seed: u64, position: usize) -> GumbelNoise {
        GumbelNoise { key: mixed(mixed(seed) ^ position as u64) }
    }

    /// Returns the token with the smallest E / w, the first one on ties. Each token has its own
    /// time E = -ln(1 - u) and the weight w = e^-x, where x is the distance of its logit below the
    /// largest. A token comes first with a probability equal to its share of the total weight.
    /// `likeliest` is a token whose x is 0.
    ///
    /// Since E is at least u, and e^x at least 1 + x + x²/2 + x³/6, nearly all tokens are skipped
    /// without a logarithm or an exponential. The sum of all rounding errors is less than a third
    /// of `SLACK`.
    pub(super) fn first(self, below: impl Iterator<Item = (u32, f32)>, likeliest: u32) -> u32 {
        const SLACK: f64 = 1e-6;
        let mut first = likeliest;
        let mut least = f64::INFINITY;
        let mut bound = self.time(likeliest) * (1.0 + SLACK);
        for (token, below) in below {
            let x = f64::from(below);
            if self.unit(token) * (1.0 + x * (1.0 + x * (0.5 + x / 6.0))) > bound {
                continue;
            }
            let time = self.time(token) / f64::from(exp(-below));
            if time < least {
                (first, least, bound) = (token, time, time * (1.0 + SLACK));
            }
        }
        first
    }

    fn time(self, token: u32) -> f64 {
        -ln1p64(-self.unit(token))
    }

    /// The token's random number, between 2^-53 and 1 - 2^-53: the upper 52 bits plus a half,
    /// exactly.
    fn unit(self, token: u32) -> f64 {
        const ONE: u64 = 1.0f64.to_bits();
        let place = u64::from(token).wrapping_mul(SplitMix64::STEP);
        let bits = mixed(self.key.wrapping_add(place));
        f64::from_bits(ONE | bits >> 12) - (1.0 - f64::EPSILON / 2.0)
    }
}

fn mixed(bits: u64) -> u64 {
    SplitMix64::new(bits).next_u64()
}
