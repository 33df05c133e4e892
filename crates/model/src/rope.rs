//! The frequencies of rotary embeddings, as configurations specify them.

mod scaling;

use sws_format::Value;
use sws_kernels::functional::RopePairs;

use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig, ROPE_DIVISORS};
pub use scaling::RopeScaling;
pub(crate) use scaling::yarn_amplitude;

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

/// The largest head size accepted; it bounds allocations before any weight is read.
pub(crate) const MAX_HEAD_DIM: u64 = 65_536;

/// The entry for the positions of the original context.
const TRAINED: &str = "original_max_position_embeddings";

/// The entry for the growth of queries, which is one of the rotary entries.
pub(crate) const GROWTH: &str = "llama_4_scaling_beta";

/// The reason to refuse a number with which angles are not [finite](Rope::is_finite).
pub(crate) const INFINITE: &str = "by which angles of rotary embeddings become infinite";

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

/// Limits far above those of any known model, for amplitudes and for the original context.
pub(crate) const MAX_AMPLITUDE: f64 = 1e3;
const MAX_TRAINED: f64 = (1u64 << 32) as f64;

/// Refuses entries of a scaling if no entry names the scaling. They would be ignored otherwise.
pub(crate) fn check(config: &FamilyConfig<'_>) -> Result<(), ConfigError> {
    for object in ["rope_scaling", "rope_parameters"] {
        let given = config.levels().filter_map(|level| level.get(object)?.as_map());
        let of_kinds = given.clone().flat_map(|map| map.values().filter_map(Value::as_map));
        for map in given.chain(of_kinds) {
            if has(map, "rope_type") || has(map, "type") {
                continue;
            }
            // The growth of queries in Ministral uses the original context, too, whatever the
            // scaling.
            let grows = has(map, GROWTH);
            let mut given = OF_SCALINGS.into_iter().filter(|key| has(map, key));
            if let Some(key) = given.find(|key| !(*key == TRAINED && grows)) {
                let reason = format!(
                    "which only a scaling reads, and `{object}` names none by `rope_type` or `type`"
                );
                return Err(ConfigEntry { key, value: &map[key] }.invalid(reason));
            }
        }
    }
    Ok(())
}

/// True if an entry is given; null counts as absent.
fn has(map: &ConfigMap, key: &'static str) -> bool {
    ConfigEntry::of(map, key).is_some()
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
            let entry = given.and_then(|given| ConfigEntry::of(given, kind));
            given = Some(entry.ok_or(ConfigError::MissingKey(kind))?.object()?);
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
        let given = given.unwrap_or(&empty);
        let entry = |key: &'static str| ConfigEntry::of(given, key);
        let share = entry("partial_rotary_factor").or(config.get("partial_rotary_factor"));
        let dim = rotated(config, share, head_dim, default_share)?;
        let trained_entry = beside.or(entry(TRAINED));
        let theta_entry = entry("rope_theta").or(config.get("rope_theta"));
        let theta = theta_entry.map_or(Ok(default_theta), ConfigEntry::positive)?;
        let trained = match trained_entry {
            Some(entry) => entry.at_most(MAX_TRAINED)?,
            None => context as f64,
        };
        let mut scaling = RopeScaling::read(config, given, trained, context)?;
        let amplitude = scaling.amplitude(given)?;
        if let (RopeScaling::Yarn { .. }, Some(entry)) = (scaling, share)
            && dim % 2 == 1
        {
            return Err(
                entry.invalid(format!("by which {dim} elements are rotated, and yarn needs pairs"))
            );
        }
        let mut inv_freq = scaling.frequencies(theta, dim);
        let divided = entry(ROPE_DIVISORS).or(config.get(ROPE_DIVISORS));
        if let Some(entry) = divided {
            let divisors = divisors(entry, inv_freq.len())?;
            if scaling != RopeScaling::None {
                return Err(config.unsupported(entry, "without another scaling"));
            }
            scaling = RopeScaling::Divided;
            for (angle, by) in inv_freq.iter_mut().zip(divisors) {
                *angle /= by as f32;
            }
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
        if let Some(entry) = blamed
            && !rope.is_finite(context)
        {
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
    match config.get("rope_scaling") {
        Some(entry) if !entry.object()?.is_empty() => Ok(Some(entry)),
        _ => Ok(config.get("rope_parameters")),
    }
}

/// The number of elements of a head that are rotated: a share, or all where the family knows no share.
fn rotated(
    config: &FamilyConfig,
    share: Option<ConfigEntry<'_>>,
    head_dim: usize,
    default: Option<f64>,
) -> Result<usize, ConfigError> {
    let Some(default) = default else {
        return match share {
            Some(entry) if entry.positive()? != 1.0 => {
                Err(config.unsupported(entry, "1, all of each head"))
            }
            _ => Ok(head_dim),
        };
    };
    let factor = share.map_or(Ok(default), ConfigEntry::positive)?;
    let dim = (head_dim as f64 * factor) as usize;
    if (1..=head_dim).contains(&dim) && dim.next_multiple_of(2) <= head_dim {
        return Ok(dim);
    }
    let reason = format!(
        "by which {dim} of the {head_dim} elements of a head are rotated, and they must be pairs of \
         them"
    );
    let entry = share.or(config.get("head_dim"));
    Err(entry.ok_or(ConfigError::MissingKey("head_dim"))?.invalid(reason))
}

/// The divisors of the angles of so many pairs.
fn divisors(entry: ConfigEntry<'_>, pairs: usize) -> Result<Vec<f64>, ConfigError> {
    let divisors: Option<Vec<f64>> = entry.list()?.iter().map(Value::as_f64).collect();
    match divisors {
        Some(all) if all.len() == pairs && all.iter().all(|&by| by > 0.0) => Ok(all),
        _ => Err(entry.invalid("which must have a number above 0 for each pair of a head")),
    }
}
