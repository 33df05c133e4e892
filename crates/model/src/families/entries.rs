//! Entries that may be absent: their values, or the defaults of a family.

use crate::config::{ConfigEntry, ConfigError, ConfigMap, MAX_COUNT};

/// A size from 1 to `limit`.
pub(super) fn size_or(
    entry: Option<ConfigEntry<'_>>,
    default: usize,
    limit: u64,
) -> Result<usize, ConfigError> {
    match entry {
        Some(entry) => entry.size(limit),
        None => Ok(default),
    }
}

/// A number of things, which may be 0.
pub(super) fn count_or(entry: Option<ConfigEntry<'_>>, default: u64) -> Result<u64, ConfigError> {
    match entry {
        Some(entry) => entry.count(MAX_COUNT),
        None => Ok(default),
    }
}

/// A number above zero.
pub(super) fn positive_or(
    entry: Option<ConfigEntry<'_>>,
    default: f64,
) -> Result<f64, ConfigError> {
    match entry {
        Some(entry) => entry.positive(),
        None => Ok(default),
    }
}

/// The number added to a sum before its root is taken.
pub(super) fn epsilon_or(entry: Option<ConfigEntry<'_>>, default: f64) -> Result<f64, ConfigError> {
    match entry {
        Some(entry) => entry.epsilon(),
        None => Ok(default),
    }
}

/// A size from 1 to `limit`, without a default.
pub(super) fn optional_size(
    entry: Option<ConfigEntry<'_>>,
    limit: u64,
) -> Result<Option<usize>, ConfigError> {
    match entry {
        Some(entry) => Ok(Some(entry.size(limit)?)),
        None => Ok(None),
    }
}

/// A number above zero, without a default.
pub(super) fn optional_positive(
    entry: Option<ConfigEntry<'_>>,
) -> Result<Option<f32>, ConfigError> {
    match entry {
        Some(entry) => Ok(Some(entry.positive()? as f32)),
        None => Ok(None),
    }
}

/// An entry of an object that may itself be absent; null counts as absent.
pub(super) fn entry_in<'a>(
    object: Option<&'a ConfigMap>,
    key: &'static str,
) -> Option<ConfigEntry<'a>> {
    let value = object?.get(key)?;
    if value.is_null() { None } else { Some(ConfigEntry { key, value }) }
}
