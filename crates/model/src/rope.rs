//! The frequencies of rotary embeddings, as configurations give them.

use serde_json::{Map, Value};
use sws_kernels::functional::RopePairs;
use sws_kernels::functional::elementary::pow64;

use crate::config::{Config, ConfigError, Entry};

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The angle of each pair from one position to the next.
    pub inv_freq: Vec<f32>,
    /// What sines and cosines are multiplied by.
    pub factor: f32,
    /// The first element of a head that is turned.
    pub offset: usize,
    /// Which elements of a head form a pair.
    pub pairs: RopePairs,
}

/// The largest head that is believed: it bounds what is allocated before any weight is seen.
pub(crate) const MAX_HEAD_DIM: u64 = 65_536;

const SUPPORTED: &str = "default, linear, llama3";

impl Rope {
    /// Over whole heads, in halves, as most families have it. `context` is what `llama3` takes for
    /// the length of training if nothing else says.
    pub(crate) fn of(
        config: &Config,
        head_dim: usize,
        default_theta: f64,
        context: usize,
    ) -> Result<Rope, ConfigError> {
        // transformers 5 writes `rope_parameters`, 4 wrote `rope_scaling` or nothing.
        let given = config.any(&["rope_parameters", "rope_scaling"]);
        let empty = Map::new();
        let given_map = given.map(|entry| entry.object()).transpose()?.unwrap_or(&empty);
        if let (Some(entry), true) = (given, given_map.values().any(Value::is_object)) {
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
        let theta = entry("rope_theta").or(config.get("rope_theta"));
        let theta = theta.map_or(Ok(default_theta), Entry::positive)?;
        let mut inv_freq = frequencies(theta, head_dim);
        if let Some(kind) = entry("rope_type").or(entry("type")) {
            match kind.word()? {
                "default" => {}
                "linear" => {
                    let factor = need("factor")?.positive()? as f32;
                    inv_freq.iter_mut().for_each(|f| *f /= factor);
                }
                "llama3" => {
                    let trained = config
                        .get("original_max_position_embeddings")
                        .or(entry("original_max_position_embeddings"));
                    let trained = trained.map_or(Ok(context as f64), Entry::positive)?;
                    let high = need("high_freq_factor")?;
                    let bands = Llama3 {
                        factor: need("factor")?.positive()? as f32,
                        low: need("low_freq_factor")?.positive()?,
                        high: high.positive()?,
                        trained,
                    };
                    if bands.high <= bands.low {
                        return Err(high.invalid("which must be above `low_freq_factor`"));
                    }
                    inv_freq.iter_mut().for_each(|f| *f = bands.scaled(*f));
                }
                _ => return Err(config.unsupported(kind, SUPPORTED)),
            }
        }
        Ok(Rope { inv_freq, factor: 1.0, offset: 0, pairs: RopePairs::HalfSplit })
    }
}

/// theta^(-2i/dim), rounded where the models were trained with rounded numbers: the exponent, the
/// power, and its inverse are each an f32.
fn frequencies(theta: f64, head_dim: usize) -> Vec<f32> {
    let exponent = |i: usize| f64::from((2 * i) as f32 / head_dim as f32);
    (0..head_dim / 2).map(|i| 1.0 / pow64(theta, exponent(i)) as f32).collect()
}

/// Long waves are stretched, short ones are kept, and those between are interpolated.
struct Llama3 {
    factor: f32,
    low: f64,
    high: f64,
    /// The context of the first training.
    trained: f64,
}

impl Llama3 {
    fn scaled(&self, inv_freq: f32) -> f32 {
        let wave = 2.0 * std::f32::consts::PI / inv_freq;
        if wave > (self.trained / self.low) as f32 {
            return inv_freq / self.factor;
        }
        if wave < (self.trained / self.high) as f32 {
            return inv_freq;
        }
        let share = (self.trained as f32 / wave - self.low as f32) / (self.high - self.low) as f32;
        (1.0 - share) * inv_freq / self.factor + share * inv_freq
    }
}
