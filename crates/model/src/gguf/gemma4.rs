//! Gemma 4, whose layers with and without windows have heads of other lengths, from the keys of a
//! GGUF file.

use std::collections::BTreeMap;

use sws_format::Value;

use super::{GgufKeys, GgufMap, ROPE_FREQS, damaged, int, unsupported};
use crate::config::ConfigError;
use crate::config::ROPE_DIVISORS;

/// Keys that may have a list with other values for some layers.
pub(super) const LISTS: [&str; 2] = ["attention.head_count_kv", "feed_forward_length"];

/// Keys of Gemma 4, and the corresponding entries of configurations.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("attention.key_length_swa", ""),
    ("attention.value_length", ""),
    ("attention.value_length_swa", ""),
    ("attention.sliding_window", "sliding_window"),
    ("attention.sliding_window_pattern", ""),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("rope.dimension_count", ""),
    ("rope.dimension_count_swa", ""),
    ("rope.freq_base_swa", ""),
];

impl GgufKeys<'_> {
    /// Adds the differences between layers with and without a window.
    pub(super) fn add_gemma4(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let full = self.needed("attention.key_length")?;
        let local = self.needed("attention.key_length_swa")?;
        for (key, expected) in [
            ("attention.value_length", full),
            ("attention.value_length_swa", local),
            ("rope.dimension_count", full),
            ("rope.dimension_count_swa", local),
        ] {
            if let Some(found) = self.whole(key)?.filter(|found| *found != expected) {
                return Err(unsupported(format!("`{}` = {found}", self.name(key))));
            }
        }
        entries.insert("head_dim".to_owned(), int(local));
        entries.insert("global_head_dim".to_owned(), int(full));
        entries.entry("hidden_size_per_layer_input".to_owned()).or_insert(int(0));
        let experts = self.whole("expert_count")?.unwrap_or(0) > 0;
        entries.insert("enable_moe_block".to_owned(), Value::Bool(experts));

        let pattern = self.name("attention.sliding_window_pattern");
        let given = self.given.get(&pattern);
        let given = given.ok_or_else(|| ConfigError::MissingGgufKey(pattern.clone()))?;
        let windows = self.flags(&pattern, given)?;
        let kind = |window| if window { "sliding_attention" } else { "full_attention" };
        let kinds = windows.iter().map(|window| Value::String(kind(*window).to_owned())).collect();
        entries.insert("layer_types".to_owned(), Value::List(kinds));
        self.add_key_heads(entries, &windows)?;
        self.add_widths(entries, windows.len())?;
        self.add_ropes(entries, full)
    }

    /// Adds the numbers of key heads. Models with a list of them use keys as values in layers
    /// without a window.
    fn add_key_heads(&self, entries: &mut GgufMap, windows: &[bool]) -> Result<(), ConfigError> {
        let name = self.name("attention.head_count_kv");
        let given = self.given.get(&name);
        let list = given.and_then(Value::as_list);
        entries.insert("attention_k_eq_v".to_owned(), Value::Bool(list.is_some()));
        let Some(list) = list else {
            if let Some(given) = given {
                entries.insert("num_key_value_heads".to_owned(), given.clone());
            }
            return Ok(());
        };
        let different = || unsupported(format!("`{name}` with different values for layers"));
        if list.len() != windows.len() {
            return Err(different());
        }
        for (entry, kind) in [("num_key_value_heads", true), ("num_global_key_value_heads", false)]
        {
            let of = list.iter().zip(windows).filter(|(_, window)| **window == kind);
            let mut of = of.map(|(heads, _)| heads);
            let Some(first) = of.next() else { continue };
            if of.any(|other| other != first) {
                return Err(different());
            }
            entries.insert(entry.to_owned(), first.clone());
        }
        Ok(())
    }

    /// Adds the width of the MLP. In models with a list of widths, layers that reuse keys and
    /// values are twice as wide.
    fn add_widths(&self, entries: &mut GgufMap, layers: usize) -> Result<(), ConfigError> {
        let name = self.name("feed_forward_length");
        let Some(list) = self.given.get(&name).and_then(Value::as_list) else { return Ok(()) };
        let shared = self.whole("attention.shared_kv_layers")?.unwrap_or(0);
        let own = layers.saturating_sub(usize::try_from(shared).unwrap_or(layers));
        let widths: Option<Vec<u64>> = list.iter().map(Value::as_u64).collect();
        let widths = widths.filter(|widths| widths.len() == layers && layers > 0);
        let widths = widths.ok_or_else(|| damaged(&name, &self.given[&name]))?;
        let wide = widths[0].saturating_mul(2);
        let (plain, others) = widths.split_at(own);
        let is_wide = !others.is_empty() && others.iter().all(|width| *width == wide);
        let alike = |widths: &[u64]| widths.iter().all(|width| *width == widths[0]);
        if own == 0 || !alike(plain) || !(is_wide || alike(&widths)) {
            return Err(unsupported(format!("`{name}` with different values for layers")));
        }
        entries.insert("intermediate_size".to_owned(), int(widths[0]));
        entries.insert("use_double_wide_mlp".to_owned(), Value::Bool(is_wide));
        Ok(())
    }

    /// Adds both rotary embeddings. In layers without a window only the first angles rotate
    /// anything. The others have a very large divisor.
    fn add_ropes(&self, entries: &mut GgufMap, full: u64) -> Result<(), ConfigError> {
        let missing = || ConfigError::MissingGgufKey(ROPE_FREQS.to_owned());
        let divisors = self.given.get(ROPE_FREQS).ok_or_else(missing)?;
        let all = divisors.as_list().unwrap_or_default();
        let is = |value: &Value, divisor: f64| {
            value.as_f64().is_some_and(|found| (found / divisor - 1.0).abs() < 1e-6)
        };
        let turned = all.iter().take_while(|value| is(value, 1.0)).count();
        if all.len() as u64 != full / 2 || !all[turned..].iter().all(|value| is(value, 1e30)) {
            return Err(damaged(ROPE_FREQS, divisors));
        }
        // The added half prevents that rounding removes an angle.
        let share = (turned as f64 + 0.5) / all.len().max(1) as f64;
        let theta = |key: &str, default| -> Result<Value, ConfigError> {
            Ok(self.get(key)?.cloned().unwrap_or(Value::Float(default)))
        };
        let text = |text: &str| Value::String(text.to_owned());
        let rope = |all: &[(&str, Value)]| {
            let entries = all.iter().map(|(entry, value)| ((*entry).to_owned(), value.clone()));
            Value::Map(entries.collect::<BTreeMap<_, _>>())
        };
        let ropes = rope(&[
            (
                "full_attention",
                rope(&[
                    ("rope_type", text("proportional")),
                    ("rope_theta", theta("rope.freq_base", 1e6)?),
                    ("partial_rotary_factor", Value::Float(share.min(1.0))),
                ]),
            ),
            (
                "sliding_attention",
                rope(&[
                    ("rope_type", text("default")),
                    ("rope_theta", theta("rope.freq_base_swa", 1e4)?),
                ]),
            ),
        ]);
        entries.insert("rope_parameters".to_owned(), ropes);
        for entry in ["rope_theta", "partial_rotary_factor", ROPE_DIVISORS] {
            entries.remove(entry);
        }
        Ok(())
    }
}
