//! The frequencies of rotary embeddings, as configurations specify them.

use sws_format::Value;
use sws_kernels::functional::RopePairs;
use sws_kernels::functional::elementary::{ln64, pow64};

use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig, ROPE_DIVISORS};

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the angles.
    pub theta: f64,
    /// The number of rotated elements of a head, as configurations count them. If it is odd, the
    /// last one forms a pair with the element after it.
    pub dim: usize,
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

/// The largest head size accepted; it bounds allocations before any weight is read.
pub(crate) const MAX_HEAD_DIM: u64 = 65_536;

/// The entry for the positions of the original context.
const TRAINED: &str = "original_max_position_embeddings";

/// The entry for the growth of queries, which is one of the rotary entries.
pub(crate) const GROWTH: &str = "llama_4_scaling_beta";

/// The reason to refuse a number with which angles are not [finite](Rope::is_finite).
pub(crate) const INFINITE: &str = "by which angles of rotary embeddings become infinite";

const SUPPORTED: &str = "default, linear, llama3, yarn";

/// Entries of any family that are read only by a scaling of angles.
const OF_SCALINGS: [&str; 16] = [
    "alpha",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "extrapolation_factor",
    "factor",
    "high_freq_factor",
    "long_factor",
    "long_mscale",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    TRAINED,
    "short_factor",
    "short_mscale",
    "truncate",
];

/// Limits far above those of any known model, for stretches of angles and for amplitudes.
const MAX_FACTOR: f64 = 1e6;
pub(crate) const MAX_AMPLITUDE: f64 = 1e3;
const MAX_TRAINED: f64 = (1u64 << 32) as f64;

/// Refuses entries of a scaling if no entry names the scaling. They would be ignored otherwise.
pub(crate) fn check(config: &FamilyConfig<'_>) -> Result<(), ConfigError> {
    for object in ["rope_scaling", "rope_parameters"] {
        let given = config.levels().filter_map(|level| level.get(object)?.as_map());
        let of_kinds = given.clone().flat_map(|map| map.values().filter_map(Value::as_map));
        for map in given.chain(of_kinds) {
            let has = |key: &str| map.get(key).is_some_and(|value| !value.is_null());
            if has("rope_type") || has("type") {
                continue;
            }
            // The growth of queries in Ministral uses the original context, too, whatever the
            // scaling.
            let reads = |key: &str| has(key) && !(key == TRAINED && has(GROWTH));
            if let Some(key) = OF_SCALINGS.into_iter().find(|key| reads(key)) {
                let reason = format!(
                    "which only a scaling reads, and `{object}` names none by `rope_type` or `type`"
                );
                return Err(ConfigEntry { key, value: &map[key] }.invalid(reason));
            }
        }
    }
    Ok(())
}

impl Rope {
    /// A rotary embedding of the first `default_share` of each head, or the share that the
    /// configuration gives; of whole heads if the family knows no share. Pairs are in halves, as in
    /// most families. `context` is the default training length of `llama3`.
    pub(crate) fn of(
        config: &FamilyConfig,
        head_dim: usize,
        default: (f64, Option<f64>),
        context: usize,
    ) -> Result<Rope, ConfigError> {
        let (given, nested) = Rope::given(config)?;
        match nested {
            Some(entry) => Err(config.unsupported(entry, "one rotary embedding for all layers")),
            None => {
                let trained = config.get(TRAINED);
                Rope::read(config, (given, trained), (head_dim, context), default)
            }
        }
    }

    /// The rotary embedding of layers of one kind, in families that may give each kind its own. An
    /// original context outside the entries of embeddings has no effect there.
    pub(crate) fn of_kind(
        config: &FamilyConfig,
        kind: &'static str,
        head_dim: usize,
        default: (f64, Option<f64>),
        context: usize,
    ) -> Result<Rope, ConfigError> {
        let (mut given, nested) = Rope::given(config)?;
        if nested.is_some() {
            let value = given.and_then(|given| given.get(kind));
            let value = value.filter(|value| !value.is_null());
            let value = value.ok_or(ConfigError::MissingKey(kind))?;
            given = Some(ConfigEntry { key: kind, value }.object()?);
        }
        Rope::read(config, (given, None), (head_dim, context), default)
    }

    /// The embedding described by these entries, independent of other entries.
    pub(crate) fn of_entries(
        config: &FamilyConfig,
        entries: &ConfigMap,
        head_dim: usize,
        default: (f64, Option<f64>),
        context: usize,
    ) -> Result<Rope, ConfigError> {
        Rope::read(config, (Some(entries), None), (head_dim, context), default)
    }

    /// The entries of rotary embeddings, and their path if each kind of layer has its own.
    fn given<'a>(
        config: &FamilyConfig<'a>,
    ) -> Result<(Option<&'a ConfigMap>, Option<ConfigEntry<'a>>), ConfigError> {
        let Some(entry) = given(config)? else { return Ok((None, None)) };
        let map = entry.object()?;
        let nested = map.values().any(|value| value.as_map().is_some());
        Ok((Some(map), nested.then_some(entry)))
    }

    /// The embedding that `given` describes. An original context `beside` it has precedence.
    fn read(
        config: &FamilyConfig,
        (given, beside): (Option<&ConfigMap>, Option<ConfigEntry<'_>>),
        (head_dim, context): (usize, usize),
        (default_theta, default_share): (f64, Option<f64>),
    ) -> Result<Rope, ConfigError> {
        let empty = ConfigMap::new();
        let given_map = given.unwrap_or(&empty);
        let entry = |key: &'static str| {
            let value = given_map.get(key).filter(|value| !value.is_null());
            value.map(|value| ConfigEntry { key, value })
        };
        let need = |key: &'static str| entry(key).ok_or(ConfigError::MissingKey(key));
        let share = entry("partial_rotary_factor").or(config.get("partial_rotary_factor"));
        let dim = match (share, default_share) {
            (Some(entry), None) if entry.positive()? != 1.0 => {
                return Err(config.unsupported(entry, "1, all of each head"));
            }
            (_, None) => head_dim,
            (share, Some(default)) => {
                let factor = share.map_or(Ok(default), ConfigEntry::positive)?;
                match (head_dim as f64 * factor) as usize {
                    dim if (1..=head_dim).contains(&dim) && dim.next_multiple_of(2) <= head_dim => {
                        dim
                    }
                    dim => {
                        let reason = format!(
                            "by which {dim} of the {head_dim} elements of a head are rotated, and \
                             they must be pairs of them"
                        );
                        let entry = share.or(config.get("head_dim"));
                        let entry = entry.ok_or(ConfigError::MissingKey("head_dim"))?;
                        return Err(entry.invalid(reason));
                    }
                }
            }
        };
        let trained_entry = beside.or(entry(TRAINED));
        let theta_entry = entry("rope_theta").or(config.get("rope_theta"));
        let theta = theta_entry.map_or(Ok(default_theta), ConfigEntry::positive)?;
        let trained = trained_entry.map_or(Ok(context as f64), |e| e.at_most(MAX_TRAINED))?;
        let mut scaling = RopeScaling::None;
        let mut amplitude = 1.0;
        if let Some(kind) = entry("rope_type").or(entry("type")) {
            match kind.word()? {
                "default" => {}
                "linear" => {
                    let factor = need("factor")?.at_most(MAX_FACTOR)?;
                    scaling = RopeScaling::Linear { factor };
                }
                "llama3" => {
                    let high_entry = need("high_freq_factor")?;
                    let high = high_entry.at_most(MAX_FACTOR)?;
                    let low = need("low_freq_factor")?.at_most(MAX_FACTOR)?;
                    // Llama 4 Scout has two equal limits, so no wave lies between them.
                    if high < low {
                        let reason = "which must not be below `low_freq_factor`";
                        return Err(high_entry.invalid(reason));
                    }
                    let factor = need("factor")?.at_most(MAX_FACTOR)?;
                    scaling = RopeScaling::Llama3 { factor, low, high, trained };
                }
                "yarn" => {
                    // Null means the ratio of the contexts. The classes of transformers have no
                    // other default.
                    let factor = match entry("factor") {
                        None if given_map.contains_key("factor") => context as f64 / trained,
                        _ => need("factor")?.at_most(MAX_FACTOR)?,
                    };
                    // Zero means absent.
                    let given = |key, limit| {
                        let entry = entry(key).filter(|entry| entry.value.as_f64() != Some(0.0));
                        entry.map(|entry| entry.at_most(limit)).transpose()
                    };
                    let fast = given("beta_fast", MAX_FACTOR)?.unwrap_or(32.0);
                    let slow = given("beta_slow", MAX_FACTOR)?.unwrap_or(1.0);
                    if let Some(entry) = entry("beta_slow").or(entry("beta_fast"))
                        && slow > fast
                    {
                        let reason = format!("where {slow} is above {fast}, the `beta_fast`");
                        return Err(entry.invalid(reason));
                    }
                    let truncate = entry("truncate").map_or(Ok(true), ConfigEntry::flag)?;
                    scaling = RopeScaling::Yarn { factor, fast, slow, trained, truncate };
                    let of = |mscale| yarn_amplitude(factor, mscale);
                    amplitude = match entry("attention_factor") {
                        Some(amplitude) => amplitude.at_most(MAX_AMPLITUDE)?,
                        None => match (
                            given("mscale", MAX_AMPLITUDE)?,
                            given("mscale_all_dim", MAX_AMPLITUDE)?,
                        ) {
                            (Some(mscale), Some(all)) => of(mscale) / of(all),
                            _ => of(1.0),
                        },
                    };
                }
                _ => return Err(config.unsupported(kind, SUPPORTED)),
            }
        }
        if let (RopeScaling::Yarn { .. }, Some(entry)) = (scaling, share.filter(|_| dim % 2 == 1)) {
            return Err(
                entry.invalid(format!("by which {dim} elements are rotated, and yarn needs pairs"))
            );
        }
        let mut inv_freq = scaling.frequencies(theta, dim);
        let divided = entry(ROPE_DIVISORS).or(config.get(ROPE_DIVISORS));
        if let Some(entry) = divided {
            let divisors: Option<Vec<f64>> = entry.list()?.iter().map(Value::as_f64).collect();
            let divisors = divisors.filter(|all| all.len() == inv_freq.len());
            let divisors = divisors.filter(|all| all.iter().all(|&divisor| divisor > 0.0));
            let divisors = divisors.ok_or_else(|| {
                entry.invalid("which must have a number above 0 for each pair of a head")
            })?;
            if scaling != RopeScaling::None {
                return Err(config.unsupported(entry, "without another scaling"));
            }
            scaling = RopeScaling::Divided;
            inv_freq.iter_mut().zip(divisors).for_each(|(angle, by)| *angle /= by as f32);
        }
        let factor = amplitude as f32;
        let offset = 0;
        let pairs = RopePairs::HalfSplit;
        let rope = Rope { theta, dim, scaling, inv_freq, factor, offset, pairs };
        let blamed = match scaling {
            RopeScaling::None => theta_entry,
            RopeScaling::Divided => divided,
            RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } | RopeScaling::Yarn { .. } => {
                entry("factor").or(trained_entry)
            }
        };
        if let Some(entry) = blamed.filter(|_| !rope.is_finite(context)) {
            return Err(entry.invalid(INFINITE));
        }
        Ok(rope)
    }

    /// True if the angles of all positions are finite.
    pub(crate) fn is_finite(&self, context: usize) -> bool {
        self.inv_freq.iter().all(|angle| (angle * context as f32).is_finite())
    }

    /// The same scaling, applied to the angles of another base.
    pub(crate) fn with_theta(&self, theta: f64) -> Rope {
        let inv_freq = self.scaling.frequencies(theta, self.dim);
        Rope { theta, inv_freq, ..self.clone() }
    }

    /// A rotary embedding of the first `dim` elements of heads, without scaling.
    pub(crate) fn plain(theta: f64, dim: usize) -> Rope {
        let scaling = RopeScaling::None;
        let inv_freq = scaling.frequencies(theta, dim);
        let pairs = RopePairs::HalfSplit;
        Rope { theta, dim, scaling, inv_freq, factor: 1.0, offset: 0, pairs }
    }
}

/// The entries of rotary embeddings. Transformers 5 writes `rope_parameters`; version 4 wrote
/// `rope_scaling` or nothing. If both are given, the entries of version 4 count.
pub(crate) fn given<'a>(config: &FamilyConfig<'a>) -> Result<Option<ConfigEntry<'a>>, ConfigError> {
    let has_entries = |entry: ConfigEntry<'_>| Ok(!entry.object()?.is_empty());
    match config.get("rope_scaling") {
        Some(entry) if has_entries(entry)? => Ok(Some(entry)),
        _ => Ok(config.get("rope_parameters")),
    }
}

/// The factor of sines and cosines for angles stretched by `factor`.
pub(crate) fn yarn_amplitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * ln64(factor) + 1.0 }
}

impl RopeScaling {
    /// theta^(-2i/dim) for each pair i, scaled. Rounded as in training: exponent, power and inverse
    /// are each an f32.
    fn frequencies(self, theta: f64, dim: usize) -> Vec<f32> {
        let wave = |i: usize| pow64(theta, f64::from((2 * i) as f32 / dim as f32)) as f32;
        (0..dim.div_ceil(2)).map(|i| self.scaled(theta, dim, i, wave(i))).collect()
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
