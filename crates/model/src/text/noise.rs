//! The noise of sampling.

use sws_kernels::functional::elementary::{exp, ln1p64};

use super::SplitMix64;

/// The name of the way in which a seed becomes a text. The next one has another name.
pub const SAMPLER: &str = "gumbel-1";

/// A random number for each token that may come at a position: a function of seed, position and token,
/// without any state. A position can be drawn in any order, any number of times, and by several models:
/// what a draft draws is what the model itself draws wherever their probabilities agree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    key: u64,
}

impl Noise {
    pub(super) fn new(seed: u64, position: usize) -> Noise {
        Noise { key: mixed(mixed(seed) ^ position as u64) }
    }

    /// The token of least E / w, of equals the first: each has a time E = -ln(1 - u) of its own and the
    /// weight w = e^-x, where x is how far its logit lies below the largest. A token is first with the
    /// probability of its share of all weights. `likeliest` is one whose x is 0.
    ///
    /// As E is at least u, and e^x at least 1 + x + x²/2 + x³/6, nearly all tokens are passed over
    /// without a logarithm or an exponential. All rounding together is less than a third of `SLACK`.
    pub(super) fn first(self, below: impl Iterator<Item = (u32, f32)>, likeliest: u32) -> u32 {
        const SLACK: f64 = 1e-6;
        let (mut first, mut least) = (likeliest, f64::INFINITY);
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

    /// The token's number, from 2^-53 to 1 - 2^-53: the upper 52 bits and a half, exactly.
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
