//! Rotary embeddings of Ministral 3 and Mistral 4, and the growth of their queries.

use sws_format::Value;

use super::entries::entry_in;
use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig};
use crate::rope::{self, Rope};
use crate::spec::Temperature;

/// The growth of queries beyond the context of the first training.
pub(super) fn temperature(config: &FamilyConfig) -> Result<Option<Temperature>, ConfigError> {
    let given = rope_entries(config)?.object()?;
    // Devstral 2 has no growth.
    if given.get(rope::GROWTH).and_then(Value::as_f64) == Some(0.0) {
        return Ok(None);
    }
    // The classes have no default.
    let scale = positive_in(given, rope::GROWTH)?;
    let length = positive_in(given, "original_max_position_embeddings")?;
    Ok(Some(Temperature { scale, length, first: 0, smooth: false }))
}

/// A number above zero, which must be given.
fn positive_in(given: &ConfigMap, key: &'static str) -> Result<f64, ConfigError> {
    entry_in(Some(given), key).ok_or(ConfigError::MissingKey(key))?.positive()
}

/// The entries of rotary embeddings, which have others among them.
fn rope_entries<'a>(config: &FamilyConfig<'a>) -> Result<ConfigEntry<'a>, ConfigError> {
    rope::given(config)?.ok_or(ConfigError::MissingKey("rope_parameters"))
}

/// The rotary embedding of the last part of each head, which configurations may also give as a share
/// of the head.
pub(super) fn rope(
    config: &FamilyConfig,
    (plain, rotated): (usize, usize),
    theta: f64,
    context: usize,
) -> Result<Rope, ConfigError> {
    let given = rope_entries(config)?.object()?;
    let Some(share) = entry_in(Some(given), "partial_rotary_factor") else {
        return Rope::of(config, rotated, (theta, None), context);
    };
    let rope = Rope::of(config, plain + rotated, (theta, Some(1.0)), context)?;
    if rope.dim != rotated {
        return Err(share.invalid(format!("where {rotated} elements of a head are rotated")));
    }
    Ok(rope)
}
