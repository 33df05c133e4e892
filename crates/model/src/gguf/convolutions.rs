//! Gated short convolutions, from the keys of a GGUF file.

use sws_format::Value;

use super::{GgufKeys, GgufMap, unsupported};
use crate::config::ConfigError;

impl GgufKeys<'_> {
    /// Adds the kinds of layers, which follow from the number of key heads of each layer, and the
    /// entries that only this family has.
    pub(super) fn add_convolutions(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let heads = self.name("attention.head_count_kv");
        let layers = self.given.get(&heads).and_then(Value::as_list);
        let layers = layers.ok_or_else(|| unsupported(format!("`{heads}` without a list")))?;
        let kind = |heads: &Value| match heads.as_u64() {
            Some(0) => "conv",
            _ => "full_attention",
        };
        let kinds = layers.iter().map(|heads| Value::String(kind(heads).to_owned())).collect();
        entries.insert("layer_types".to_owned(), Value::List(kinds));
        if let Some(eps) = entries.get("rms_norm_eps").cloned() {
            entries.insert("norm_eps".to_owned(), eps);
        }
        let correction = Value::Bool(self.has_tensor("blk.#.exp_probs_b.bias"));
        entries.insert("use_expert_bias".to_owned(), correction);
        Ok(())
    }
}
