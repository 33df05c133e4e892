//! Gemma 4, whose layers with and without windows have heads of other lengths, from the keys of a
//! GGUF file.

use sws_format::Value;

use super::layers::{add_kinds, insert, word};
use super::{GgufKeys, GgufMap, ROPE_FREQS, damaged, different, int, unsupported};
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
            if let Some(found) = self.whole(key)?
                && found != expected
            {
                return Err(unsupported(format!("`{}` = {found}", self.name(key))));
            }
        }
        entries.insert("head_dim".to_owned(), int(local));
        entries.insert("global_head_dim".to_owned(), int(full));
        entries.entry("hidden_size_per_layer_input".to_owned()).or_insert(int(0));
        let experts = self.whole("expert_count")?.unwrap_or(0) > 0;
        entries.insert("enable_moe_block".to_owned(), Value::Bool(experts));

        let key = "attention.sliding_window_pattern";
        let pattern = self.name(key);
        let given = self.present(self.given.get(&pattern), key)?;
        let windows = self.flags(&pattern, given)?;
        add_kinds(entries, &windows, ["full_attention", "sliding_attention"]);
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
        if list.len() != windows.len() {
            return Err(different(&name));
        }
        for (entry, kind) in [("num_key_value_heads", true), ("num_global_key_value_heads", false)]
        {
            let mut first = None;
            for (heads, window) in list.iter().zip(windows) {
                if *window == kind && *first.get_or_insert(heads) != heads {
                    return Err(different(&name));
                }
            }
            if let Some(heads) = first {
                entries.insert(entry.to_owned(), heads.clone());
            }
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
        let widths = match widths {
            Some(widths) if widths.len() == layers && layers > 0 => widths,
            _ => return Err(damaged(&name, &self.given[&name])),
        };
        let wide = widths[0].saturating_mul(2);
        let (plain, others) = widths.split_at(own);
        let is_wide = !others.is_empty() && others.iter().all(|width| *width == wide);
        if own == 0 || !alike(plain) || !(is_wide || alike(&widths)) {
            return Err(different(&name));
        }
        entries.insert("intermediate_size".to_owned(), int(widths[0]));
        entries.insert("use_double_wide_mlp".to_owned(), Value::Bool(is_wide));
        Ok(())
    }

    /// Adds both rotary embeddings. In layers without a window only the first angles rotate
    /// anything. The others have a very large divisor.
    fn add_ropes(&self, entries: &mut GgufMap, full: u64) -> Result<(), ConfigError> {
        let Some(divisors) = self.given.get(ROPE_FREQS) else {
            return Err(ConfigError::MissingGgufKey(ROPE_FREQS.to_owned()));
        };
        let all = divisors.as_list().unwrap_or_default();
        let turned = all.iter().take_while(|value| is_about(value, 1.0)).count();
        if all.len() as u64 != full / 2 || !all[turned..].iter().all(|value| is_about(value, 1e30))
        {
            return Err(damaged(ROPE_FREQS, divisors));
        }
        // The added half prevents that rounding removes an angle.
        let share = (turned as f64 + 0.5) / all.len().max(1) as f64;
        let theta = self.get("rope.freq_base")?.cloned().unwrap_or(Value::Float(1e6));
        let local_theta = self.get("rope.freq_base_swa")?.cloned().unwrap_or(Value::Float(1e4));
        let mut full = GgufMap::new();
        insert(
            &mut full,
            [
                ("rope_type", word("proportional")),
                ("rope_theta", theta),
                ("partial_rotary_factor", Value::Float(share.min(1.0))),
            ],
        );
        let mut local = GgufMap::new();
        insert(&mut local, [("rope_type", word("default")), ("rope_theta", local_theta)]);
        let mut ropes = GgufMap::new();
        insert(
            &mut ropes,
            [("full_attention", Value::Map(full)), ("sliding_attention", Value::Map(local))],
        );
        entries.insert("rope_parameters".to_owned(), Value::Map(ropes));
        for entry in ["rope_theta", "partial_rotary_factor", ROPE_DIVISORS] {
            entries.remove(entry);
        }
        Ok(())
    }
}

/// True if all widths are the first.
fn alike(widths: &[u64]) -> bool {
    widths.iter().all(|width| *width == widths[0])
}

/// True for this divisor, up to rounding.
fn is_about(value: &Value, divisor: f64) -> bool {
    value.as_f64().is_some_and(|found| (found / divisor - 1.0).abs() < 1e-6)
}
