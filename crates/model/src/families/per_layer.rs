//! Entries with a value for each layer, entries that replace values in single layers, and the patterns
//! of layers that numbers describe.

use sws_format::Value;

use super::common::{Common, MAX_WIDTH};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig};
use crate::spec::AttentionSpec;

/// The values of a list with one for each layer.
pub(super) fn each_layer(entry: ConfigEntry<'_>, layers: usize) -> Result<&[Value], ConfigError> {
    let values = entry.list()?;
    match values.len() == layers {
        true => Ok(values),
        false => Err(wrong_length(entry, values.len(), layers)),
    }
}

/// The values of all layers in a list that may go on, with layers for multi-token prediction.
pub(super) fn first_layers(entry: ConfigEntry<'_>, layers: usize) -> Result<&[Value], ConfigError> {
    let values = entry.list()?;
    match values.get(..layers) {
        Some(values) => Ok(values),
        None => Err(wrong_length(entry, values.len(), layers)),
    }
}

/// An error that refuses a list with another number of values than layers.
pub(super) fn wrong_length(entry: ConfigEntry<'_>, values: usize, layers: usize) -> ConfigError {
    entry.invalid(format!("of {values} entries for {layers} layers"))
}

/// The meanings of words in a list. Words without a meaning are refused; `supported` names the others.
pub(super) fn by_words<T: Copy>(
    config: &FamilyConfig,
    entry: ConfigEntry<'_>,
    words: &[Value],
    meanings: &[(&str, T)],
    supported: &'static str,
) -> Result<Vec<T>, ConfigError> {
    let mut found = Vec::with_capacity(words.len());
    for word in words {
        match meanings.iter().find(|(name, _)| word.as_str() == Some(*name)) {
            Some((_, meaning)) => found.push(*meaning),
            None => return Err(config.unsupported(entry, supported)),
        }
    }
    Ok(found)
}

/// The numbers of layers in a list.
pub(super) fn numbers_of_layers(entry: ConfigEntry<'_>) -> Result<Vec<u64>, ConfigError> {
    let numbers: Option<Vec<u64>> = entry.list()?.iter().map(Value::as_u64).collect();
    match numbers {
        Some(numbers) => Ok(numbers),
        None => Err(entry.invalid("which must list numbers of layers")),
    }
}

/// True for the layers with these numbers.
pub(super) fn among(numbers: &[u64], layers: usize) -> Vec<bool> {
    (0..layers as u64).map(|l| numbers.contains(&l)).collect()
}

/// True for every `n`-th layer, counted from 1.
pub(super) fn every_nth(n: usize, layers: usize) -> Vec<bool> {
    (1..=layers).map(|number| number.is_multiple_of(n)).collect()
}

/// True for all layers except every `n`-th, counted from 1.
pub(super) fn all_but_every(n: usize, layers: usize) -> Vec<bool> {
    (1..=layers).map(|number| !number.is_multiple_of(n)).collect()
}

/// True for all layers except the first `count`.
pub(super) fn all_but_first(count: u64, layers: usize) -> Vec<bool> {
    (0..layers as u64).map(|l| l >= count).collect()
}

/// The window in layers that have one, and None in the others.
pub(super) fn windows_where(window: Option<usize>, windowed: &[bool]) -> Vec<Option<usize>> {
    windowed.iter().map(|windowed| if *windowed { window } else { None }).collect()
}

/// True if any layer has a window; with `windowed` false, if any layer has none.
pub(super) fn has_any(windows: &[Option<usize>], windowed: bool) -> bool {
    windows.iter().any(|window| window.is_some() == windowed)
}

/// The number of query heads of each layer: that of all, unless the entry `key` lists them.
pub(super) fn heads_of_layers(
    config: &FamilyConfig,
    key: &'static str,
    common: &Common<'_>,
) -> Result<Vec<usize>, ConfigError> {
    let AttentionSpec { heads, kv_heads, head_dim, .. } = common.attention;
    let Some(entry) = config.get(key) else { return Ok(vec![heads; common.layers]) };
    let mut all = Vec::with_capacity(common.layers);
    for value in each_layer(entry, common.layers)? {
        let heads = ConfigEntry { key, value }.size(MAX_WIDTH / head_dim as u64)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(entry.invalid(format!(
                "and {heads} is not a multiple of the {kv_heads} key and value heads"
            )));
        }
        all.push(heads);
    }
    Ok(all)
}

/// A list with a 0 or a 1 for each layer.
pub(super) fn flags_of_layers(
    entry: ConfigEntry<'_>,
    layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    let mut flags = Vec::new();
    for flag in entry.list()? {
        match flag.as_u64() {
            Some(flag @ 0..=1) => flags.push(flag == 1),
            _ => return Err(entry.invalid("which must list a 0 or a 1 for each layer")),
        }
    }
    if flags.len() < layers {
        return Err(wrong_length(entry, flags.len(), layers));
    }
    flags.truncate(layers);
    Ok(flags)
}
