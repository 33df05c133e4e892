//! Changes to the angles of rotary embeddings.

use sws_kernels::functional::elementary::{ln64, pow64};

use super::MAX_AMPLITUDE;
use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig};

const SUPPORTED: &str = "default, linear, llama3, yarn";

/// Limit far above that of any known model, for stretches of angles.
const MAX_FACTOR: f64 = 1e6;

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
    /// The change that these entries describe, for `trained` positions of the original context.
    pub(super) fn read(
        config: &FamilyConfig,
        given: &ConfigMap,
        trained: f64,
        context: usize,
    ) -> Result<RopeScaling, ConfigError> {
        let entry = |key: &'static str| ConfigEntry::of(given, key);
        let Some(kind) = entry("rope_type").or(entry("type")) else { return Ok(RopeScaling::None) };
        match kind.word()? {
            "default" => Ok(RopeScaling::None),
            "linear" => {
                let factor = need(given, "factor")?.at_most(MAX_FACTOR)?;
                Ok(RopeScaling::Linear { factor })
            }
            "llama3" => llama3(given, trained),
            "yarn" => yarn(given, trained, context),
            _ => Err(config.unsupported(kind, SUPPORTED)),
        }
    }

    /// The factor that these entries give to sines and cosines, which only yarn changes.
    pub(super) fn amplitude(self, given: &ConfigMap) -> Result<f64, ConfigError> {
        let RopeScaling::Yarn { factor, .. } = self else { return Ok(1.0) };
        let entry = |key: &'static str| ConfigEntry::of(given, key);
        if let Some(amplitude) = entry("attention_factor") {
            return amplitude.at_most(MAX_AMPLITUDE);
        }
        let mscale = unless_zero(entry("mscale"), MAX_AMPLITUDE)?;
        let all = unless_zero(entry("mscale_all_dim"), MAX_AMPLITUDE)?;
        Ok(match (mscale, all) {
            (Some(mscale), Some(all)) => {
                yarn_amplitude(factor, mscale) / yarn_amplitude(factor, all)
            }
            _ => yarn_amplitude(factor, 1.0),
        })
    }

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

fn llama3(given: &ConfigMap, trained: f64) -> Result<RopeScaling, ConfigError> {
    let high_entry = need(given, "high_freq_factor")?;
    let high = high_entry.at_most(MAX_FACTOR)?;
    let low = need(given, "low_freq_factor")?.at_most(MAX_FACTOR)?;
    // Llama 4 Scout has two equal limits, so no wave lies between them.
    if high < low {
        return Err(high_entry.invalid("which must not be below `low_freq_factor`"));
    }
    let factor = need(given, "factor")?.at_most(MAX_FACTOR)?;
    Ok(RopeScaling::Llama3 { factor, low, high, trained })
}

fn yarn(given: &ConfigMap, trained: f64, context: usize) -> Result<RopeScaling, ConfigError> {
    let entry = |key: &'static str| ConfigEntry::of(given, key);
    // Null means the ratio of the contexts. The classes of transformers have no other default.
    let factor = match entry("factor") {
        None if given.contains_key("factor") => context as f64 / trained,
        _ => need(given, "factor")?.at_most(MAX_FACTOR)?,
    };
    let fast = unless_zero(entry("beta_fast"), MAX_FACTOR)?.unwrap_or(32.0);
    let slow = unless_zero(entry("beta_slow"), MAX_FACTOR)?.unwrap_or(1.0);
    if let Some(entry) = entry("beta_slow").or(entry("beta_fast"))
        && slow > fast
    {
        let reason = format!("where {slow} is above {fast}, the `beta_fast`");
        return Err(entry.invalid(reason));
    }
    let truncate = entry("truncate").map_or(Ok(true), ConfigEntry::flag)?;
    Ok(RopeScaling::Yarn { factor, fast, slow, trained, truncate })
}

fn need<'a>(given: &'a ConfigMap, key: &'static str) -> Result<ConfigEntry<'a>, ConfigError> {
    ConfigEntry::of(given, key).ok_or(ConfigError::MissingKey(key))
}

/// The number of an entry; 0 means that it is absent.
fn unless_zero(entry: Option<ConfigEntry<'_>>, limit: f64) -> Result<Option<f64>, ConfigError> {
    match entry {
        Some(entry) if entry.value.as_f64() != Some(0.0) => Ok(Some(entry.at_most(limit)?)),
        _ => Ok(None),
    }
}
