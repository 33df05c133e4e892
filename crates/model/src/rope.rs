//! The frequencies of rotary embeddings, as configurations specify them.

use std::collections::BTreeMap;

use sws_kernels::functional::RopePairs;
use sws_kernels::functional::elementary::pow64;

use crate::config::{Config, ConfigError, Entry};

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the angles.
    pub theta: f64,
    /// The change applied to those angles.
    pub scaling: RopeScaling,
    /// The resulting angle of each pair from one position to the next.
    pub inv_freq: Vec<f32>,
    /// The factor applied to sines and cosines.
    pub factor: f32,
    /// The first element of a head that is rotated.
    pub offset: usize,
    /// The pairing of elements in a head.
    pub pairs: RopePairs,
}

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
        /// Waves that fit more than this many times into it are short.
        high: f64,
        /// Positions of the original context.
        trained: f64,
    },
}

/// The largest head size accepted; it bounds allocations before any weight is read.
pub(crate) const MAX_HEAD_DIM: u64 = 65_536;

const SUPPORTED: &str = "default, linear, llama3";

impl Rope {
    /// A rotary embedding over whole heads, paired in halves as in most families. `context` is the
    /// default training length of `llama3`.
    pub(crate) fn of(
        config: &Config,
        head_dim: usize,
        default_theta: f64,
        context: usize,
    ) -> Result<Rope, ConfigError> {
        // transformers 5 writes `rope_parameters`; 4 wrote `rope_scaling` or nothing.
        let given = config.any(&["rope_parameters", "rope_scaling"]);
        let empty = BTreeMap::new();
        let given_map = given.map(|entry| entry.object()).transpose()?.unwrap_or(&empty);
        if let (Some(entry), true) =
            (given, given_map.values().any(|value| value.as_map().is_some()))
        {
            return Err(config.unsupported(entry, "one rotary embedding for all layers"));
        }
        let entry = |key: &'static str| {
            let value = given_map.get(key).filter(|value| !value.is_null());
            value.map(|value| Entry { key, value })
        };
        let need = |key: &'static str| entry(key).ok_or(ConfigError::MissingKey(key));
        if let Some(entry) = entry("partial_rotary_factor").or(config.get("partial_rotary_factor"))
            && entry.positive()? != 1.0
        {
            return Err(config.unsupported(entry, "1, all of each head"));
        }
        let theta_entry = entry("rope_theta").or(config.get("rope_theta"));
        let theta = theta_entry.map_or(Ok(default_theta), Entry::positive)?;
        let mut scaling = RopeScaling::None;
        if let Some(kind) = entry("rope_type").or(entry("type")) {
            match kind.word()? {
                "default" => {}
                "linear" => {
                    scaling = RopeScaling::Linear { factor: need("factor")?.positive()? };
                }
                "llama3" => {
                    let trained = config
                        .get("original_max_position_embeddings")
                        .or(entry("original_max_position_embeddings"));
                    let trained = trained.map_or(Ok(context as f64), Entry::positive)?;
                    let high = need("high_freq_factor")?;
                    let low = need("low_freq_factor")?.positive()?;
                    if high.positive()? <= low {
                        return Err(high.invalid("which must be above `low_freq_factor`"));
                    }
                    let factor = need("factor")?.positive()?;
                    let high = high.positive()?;
                    scaling = RopeScaling::Llama3 { factor, low, high, trained };
                }
                _ => return Err(config.unsupported(kind, SUPPORTED)),
            }
        }
        let mut inv_freq = frequencies(theta, head_dim);
        inv_freq.iter_mut().for_each(|f| *f = scaling.scaled(*f));
        if inv_freq.iter().any(|f| !(f * context as f32).is_finite())
            && let Some(entry) = entry("factor").or(theta_entry)
        {
            return Err(entry.invalid("by which angles of rotary embeddings become infinite"));
        }
        let (factor, offset, pairs) = (1.0, 0, RopePairs::HalfSplit);
        Ok(Rope { theta, scaling, inv_freq, factor, offset, pairs })
    }
}

/// theta^(-2i/dim), rounded as in training: the exponent, the power and its inverse are each an
/// f32.
fn frequencies(theta: f64, head_dim: usize) -> Vec<f32> {
    let exponent = |i: usize| f64::from((2 * i) as f32 / head_dim as f32);
    (0..head_dim / 2).map(|i| 1.0 / pow64(theta, exponent(i)) as f32).collect()
}

impl RopeScaling {
    fn scaled(self, inv_freq: f32) -> f32 {
        match self {
            RopeScaling::None => inv_freq,
            RopeScaling::Linear { factor } => inv_freq / factor as f32,
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
