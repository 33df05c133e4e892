//! Keys with a value for each layer.

use sws_format::Value;

use super::{GgufKeys, GgufMap, damaged, unsupported};
use crate::config::ConfigError;

impl<'a> GgufKeys<'a> {
    /// A list of booleans.
    pub(super) fn flags(&self, name: &str, given: &Value) -> Result<Vec<bool>, ConfigError> {
        let flags = given.as_list().and_then(|all| all.iter().map(Value::as_bool).collect());
        flags.ok_or_else(|| damaged(name, given))
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
        let whole = |value: &Value| value.as_u64().ok_or_else(|| damaged(&self.name(key), value));
        values.into_iter().map(whole).collect::<Result<_, _>>().map(Some)
    }

    /// True for the layers with attention: all others have 0 key heads.
    pub(super) fn attends(&self, layers: u64) -> Result<Vec<bool>, ConfigError> {
        let key = "attention.head_count_kv";
        let missing = || ConfigError::MissingGgufKey(self.name(key));
        let heads = self.wholes_of_layers(key, layers)?.ok_or_else(missing)?;
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
                // Some files have 0 and 1.
                let flag = |value: &Value| match (value.as_bool(), value.as_u64()) {
                    (Some(flag), _) => Some(flag),
                    (None, Some(number @ 0..=1)) => Some(number == 1),
                    _ => None,
                };
                let all = all.get(..layers as usize);
                let flags = all.and_then(|all| all.iter().map(flag).collect());
                return flags.ok_or_else(|| damaged(&name, given));
            }
            Some(given) => {
                given.as_u64().filter(|every| *every > 0).ok_or_else(|| damaged(&name, given))?
            }
            None => every,
        };
        let full = |layer: u64| layer % every == if first { 0 } else { every - 1 };
        Ok((0..layers).map(|layer| !full(layer)).collect())
    }

    /// The limit of the activations of all experts, which configurations have in one entry.
    pub(super) fn limit(&self, layers: u64) -> Result<Value, ConfigError> {
        let key = "swiglu_clamp_exp";
        let missing = || ConfigError::MissingGgufKey(self.name(key));
        let mut all = self.of_layers(key, layers)?.ok_or_else(missing)?;
        all.extend(self.of_layers("swiglu_clamp_shexp", layers)?.unwrap_or_default());
        match all.split_first() {
            Some((first, rest)) if rest.iter().all(|other| other == first) => Ok((*first).clone()),
            _ => Err(unsupported(format!("`{}` with different values for layers", self.name(key)))),
        }
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
    entries.extend(own.map(|(entry, value)| (entry.to_owned(), value)));
}
