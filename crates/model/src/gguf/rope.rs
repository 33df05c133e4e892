//! The scaling of rotary embeddings, from the keys of a GGUF file.

use std::collections::BTreeMap;

use sws_format::Value;

use super::{GgufKeys, undamaged, unsupported};
use crate::config::ConfigError;

/// Keys of an architecture that are handled here, or have no effect.
pub(super) const KEYS: &[&str] = &[
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
];

/// Keys of scaling, and the corresponding entries of configurations.
const SAME: [(&str, &str); 4] = [
    ("factor", "factor"),
    ("original_context_length", "original_max_position_embeddings"),
    ("yarn_beta_fast", "beta_fast"),
    ("yarn_beta_slow", "beta_slow"),
];

impl GgufKeys<'_> {
    /// The entry `rope_scaling`; None for a rotary embedding without scaling.
    pub(super) fn rope_scaling(&self) -> Result<Option<Value>, ConfigError> {
        let Some(kind) = self.get("rope.scaling.type")? else { return Ok(None) };
        let word = undamaged(kind.as_str(), &self.name("rope.scaling.type"), kind)?;
        let entries: &[(&str, &str)] = match word {
            "none" => return Ok(None),
            "linear" => &SAME[..1],
            "yarn" => &SAME,
            other => {
                let shown: String = other.escape_debug().take(40).collect();
                return Err(unsupported(format!("the scaling `{shown}` of rotary embeddings")));
            }
        };
        let rounded = Value::Bool(self.architecture.rounded_yarn);
        let mut scaling = BTreeMap::from([
            ("rope_type".to_owned(), kind.clone()),
            ("truncate".to_owned(), rounded),
        ]);
        if word == "yarn"
            && let Some(factor) = self.yarn_factor()?
        {
            for entry in ["mscale", "mscale_all_dim"] {
                scaling.insert(entry.to_owned(), Value::Float(factor));
            }
        }
        for (key, entry) in entries {
            if let Some(value) = self.get(&format!("rope.scaling.{key}"))? {
                scaling.insert((*entry).to_owned(), value.clone());
            }
        }
        Ok(Some(Value::Map(scaling)))
    }
}
