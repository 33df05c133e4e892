//! Gated short convolutions, from the keys of a GGUF file.

use sws_format::Value;

use super::layers::add_kinds;
use super::{GgufKeys, GgufMap, unsupported};
use crate::config::ConfigError;

impl GgufKeys<'_> {
    /// Adds the kinds of layers, which follow from the number of key heads of each layer, and the
    /// entries that only this family has.
    pub(super) fn add_convolutions(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let heads = self.name("attention.head_count_kv");
        let Some(layers) = self.given.get(&heads).and_then(Value::as_list) else {
            return Err(unsupported(format!("`{heads}` without a list")));
        };
        let attends: Vec<bool> = layers.iter().map(|heads| heads.as_u64() != Some(0)).collect();
        add_kinds(entries, &attends, ["conv", "full_attention"]);
        if let Some(eps) = entries.get("rms_norm_eps").cloned() {
            entries.insert("norm_eps".to_owned(), eps);
        }
        let correction = Value::Bool(self.has_tensor("blk.#.exp_probs_b.bias"));
        entries.insert("use_expert_bias".to_owned(), correction);
        Ok(())
    }
}
