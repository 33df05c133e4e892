//! Keys with a value for each layer.

use sws_format::Value;

use super::{GgufKeys, GgufMap, damaged, different, undamaged};
use crate::config::ConfigError;

impl<'a> GgufKeys<'a> {
    /// A list of booleans.
    pub(super) fn flags(&self, name: &str, given: &Value) -> Result<Vec<bool>, ConfigError> {
        let flags = given.as_list().and_then(|all| all.iter().map(Value::as_bool).collect());
        undamaged(flags, name, given)
    }

    /// The values of the first layers, which are followed by those for multi-token prediction. A
    /// value that is no list is that of all layers.
    pub(super) fn of_layers(
        &self,
        key: &str,
        layers: u64,
    ) -> Result<Option<Vec<&'a Value>>, ConfigError> {
        let name = self.name(key);
        match self.given.get(&name) {
            None => Ok(None),
            Some(list @ Value::List(all)) => match all.get(..layers as usize) {
                Some(first) => Ok(Some(first.iter().collect())),
                None => Err(damaged(&name, list)),
            },
            Some(value) => Ok(Some(vec![value; layers as usize])),
        }
    }

    /// The whole numbers of the first layers.
    pub(super) fn wholes_of_layers(
        &self,
        key: &str,
        layers: u64,
    ) -> Result<Option<Vec<u64>>, ConfigError> {
        let Some(values) = self.of_layers(key, layers)? else { return Ok(None) };
        let name = self.name(key);
        let mut numbers = Vec::with_capacity(values.len());
        for value in values {
            numbers.push(undamaged(value.as_u64(), &name, value)?);
        }
        Ok(Some(numbers))
    }

    /// True for the layers with attention: all others have 0 key heads.
    pub(super) fn attends(&self, layers: u64) -> Result<Vec<bool>, ConfigError> {
        let key = "attention.head_count_kv";
        let heads = self.present(self.wholes_of_layers(key, layers)?, key)?;
        Ok(heads.into_iter().map(|heads| heads > 0).collect())
    }

    /// True for the layers with a window. By default one layer of `every` has none: the first, or
    /// the last.
    pub(super) fn windowed(
        &self,
        layers: u64,
        every: u64,
        first: bool,
    ) -> Result<Vec<bool>, ConfigError> {
        let name = self.name("attention.sliding_window_pattern");
        let every = match self.given.get(&name) {
            Some(given @ Value::List(all)) => {
                let all = all.get(..layers as usize);
                let flags = all.and_then(|all| all.iter().map(flag).collect());
                return undamaged(flags, &name, given);
            }
            Some(given) => match given.as_u64() {
                Some(every) if every > 0 => every,
                _ => return Err(damaged(&name, given)),
            },
            None => every,
        };
        let full = if first { 0 } else { every - 1 };
        Ok((0..layers).map(|layer| layer % every != full).collect())
    }

    /// The limit of the activations of all experts, which configurations have in one entry.
    pub(super) fn limit(&self, layers: u64) -> Result<Value, ConfigError> {
        let key = "swiglu_clamp_exp";
        let mut all = self.present(self.of_layers(key, layers)?, key)?;
        all.extend(self.of_layers("swiglu_clamp_shexp", layers)?.unwrap_or_default());
        match all.split_first() {
            Some((first, rest)) if rest.iter().all(|other| other == first) => Ok((*first).clone()),
            _ => Err(different(&self.name(key))),
        }
    }
}

/// The flag of a layer. Some files have 0 and 1.
fn flag(value: &Value) -> Option<bool> {
    match (value.as_bool(), value.as_u64()) {
        (Some(flag), _) => Some(flag),
        (None, Some(number @ 0..=1)) => Some(number == 1),
        _ => None,
    }
}

/// A word, as configurations have it.
pub(super) fn word(word: &str) -> Value {
    Value::String(word.to_owned())
}

/// Adds the kinds of layers, by the words for false and true.
pub(super) fn add_kinds(entries: &mut GgufMap, flags: &[bool], words: [&str; 2]) {
    let kinds = flags.iter().map(|flag| word(words[usize::from(*flag)])).collect();
    entries.insert("layer_types".to_owned(), Value::List(kinds));
}

/// Gives entries another name.
pub(super) fn rename(entries: &mut GgufMap, names: &[(&str, &str)]) {
    for (from, to) in names {
        if let Some(value) = entries.remove(*from) {
            entries.insert((*to).to_owned(), value);
        }
    }
}

/// Adds entries.
pub(super) fn insert<const N: usize>(entries: &mut GgufMap, own: [(&str, Value); N]) {
    for (entry, value) in own {
        entries.insert(entry.to_owned(), value);
    }
}
