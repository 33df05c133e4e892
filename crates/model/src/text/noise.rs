//! The noise of sampling.

use sws_kernels::functional::elementary::ln1p64;

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

    /// The token of least E / w, of equals the first, where each has a time E = -ln(1 - u) of its own.
    /// A token is first with the probability of its share of all weights. None if all weights are 0.
    ///
    /// As -ln(1 - u) is never less than u, most tokens are passed over without a logarithm. Where
    /// rounding may matter none is: the product and the quotient err by less than a millionth of `SLACK`.
    pub(super) fn first(self, weights: impl Iterator<Item = (u32, f32)>) -> Option<u32> {
        const SLACK: f64 = 1.0 + 1e-9;
        let (mut first, mut least, mut bound) = (None, f64::INFINITY, f64::MAX);
        for (token, weight) in weights {
            let (unit, weight) = (self.unit(token), f64::from(weight));
            if unit > bound * weight {
                continue;
            }
            let time = -ln1p64(-unit) / weight;
            if time < least {
                (first, least, bound) = (Some(token), time, time * SLACK);
            }
        }
        first
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
