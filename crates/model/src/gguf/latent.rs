//! Latent attention and its indexers, from the keys of a GGUF file.

use sws_format::Value;

use super::architectures::{Architecture, DEEPSEEK2};
use super::layers::word;
use super::{GgufKeys, GgufMap, int, undamaged, unsupported};
use crate::config::ConfigError;
use crate::config::SPLIT_LATENTS;
use crate::rope::GROWTH;

/// Keys of architectures with latent attention.
pub(super) const KEYS: &[&str] = &[
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length",
    "attention.value_length_mla",
    "rope.dimension_count",
    "rope.scaling.yarn_log_multiplier",
];

/// Keys of architectures with indexers, and the corresponding entries of configurations.
pub(super) const INDEXERS: &[(&str, &str)] = &[
    ("attention.indexer.head_count", "index_n_heads"),
    ("attention.indexer.key_length", "index_head_dim"),
    ("attention.indexer.top_k", "index_topk"),
    ("attention.indexer.types", ""),
];

/// Queries grow by the original context, as in the published model where files do not say how fast.
pub(super) const MISTRAL: Architecture = Architecture {
    name: "mistral4",
    model_types: [None, Some("mistral4")],
    gating: 1.0,
    needed: &[&["rope.scaling.original_context_length", "rope.scaling.type"]],
    own: &[&[("attention.temperature_scale", ""), ("attention.temperature_length", "")]],
    more: Some(mistral),
    ..DEEPSEEK2
};

/// Hy4. The limit of activations is that of experts.
pub(super) const HUNYUAN: Architecture = Architecture {
    name: "hy_v4",
    model_types: [None, Some("hy_v4")],
    needed: &[&[
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.indexer.types",
        "hyper_connection.count",
        "hyper_connection.epsilon",
        "hyper_connection.magnitude",
        "swiglu_clamp_exp",
    ]],
    lists: &["swiglu_clamp_exp"],
    own: &[
        INDEXERS,
        &[
            ("hyper_connection.count", "hc_mult"),
            ("hyper_connection.epsilon", "hc_eps"),
            ("hyper_connection.magnitude", "hc_magnitude"),
            ("swiglu_clamp_exp", ""),
        ],
    ],
    more: Some(hunyuan),
    ..DEEPSEEK2
};

/// Keys, and the corresponding entries of configurations.
const SAME: [(&str, &str); 3] = [
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("rope.dimension_count", "qk_rope_head_dim"),
];

fn mistral(keys: &GgufKeys<'_>, entries: &mut GgufMap, _: u64) -> Result<(), ConfigError> {
    let length = keys.whole("attention.temperature_length")?;
    let trained = keys.needed("rope.scaling.original_context_length")?;
    if let Some(length) = length
        && length != trained
    {
        let what = "a growth of queries over another length than the first context";
        return Err(unsupported(what));
    }
    let growth = keys.get("attention.temperature_scale")?.cloned();
    if let Some(Value::Map(scaling)) = entries.get_mut("rope_scaling") {
        scaling.insert(GROWTH.to_owned(), growth.unwrap_or(Value::Float(0.1)));
    }
    Ok(())
}

fn hunyuan(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    entries.insert("swiglu_limit".to_owned(), keys.limit(layers)?);
    Ok(())
}

impl GgufKeys<'_> {
    /// Adds the entries of latent attention.
    ///
    /// Files with separate matrices describe one key head that is as long as a latent, and have the
    /// head lengths of the model under keys of their own. Older files have only the head lengths of
    /// the model.
    pub(super) fn add_latent(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        self.add_sizes(entries)?;
        self.add_groups(entries)?;
        self.add_method(entries)?;
        self.add_indexed(entries)
    }

    /// Adds the sizes of heads and latents.
    pub(super) fn add_sizes(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        entries.remove("num_key_value_heads");
        entries.remove("head_dim");
        entries.insert("q_lora_rank".to_owned(), Value::Null);
        for (key, entry) in SAME {
            if let Some(value) = self.get(key)? {
                entries.insert(entry.to_owned(), value.clone());
            }
        }
        self.needed("attention.kv_lora_rank")?;
        let rotated = self.needed("rope.dimension_count")?;
        let key = match self.whole("attention.key_length_mla")? {
            Some(own) => own,
            None => self.needed("attention.key_length")?,
        };
        let value = match self.whole("attention.value_length_mla")? {
            Some(own) => own,
            None => self.needed("attention.value_length")?,
        };
        let name = self.name("rope.dimension_count");
        let plain = undamaged(key.checked_sub(rotated), &name, &int(rotated))?;
        entries.insert("qk_nope_head_dim".to_owned(), int(plain));
        entries.insert("v_head_dim".to_owned(), int(value));
        entries.insert(
            SPLIT_LATENTS.to_owned(),
            Value::Bool(self.has_tensor("blk.#.attn_k_b.weight")),
        );
        Ok(())
    }

    /// Adds the layers with an indexer of their own.
    pub(super) fn add_indexed(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let types = self.name("attention.indexer.types");
        if let Some(given) = self.given.get(&types) {
            let own = self.flags(&types, given)?;
            let words = own.into_iter().map(|own| word(if own { "full" } else { "shared" }));
            entries.insert("indexer_types".to_owned(), Value::List(words.collect()));
        }
        Ok(())
    }

    /// Adds the groups of experts of DeepSeek V2 and V3 to files from before there were keys for
    /// them. Only these models have groups, and their number of experts identifies them.
    fn add_groups(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let kept = match self.whole("expert_count")? {
            _ if self.get("expert_group_count")?.is_some() => return Ok(()),
            Some(160) => 3,
            Some(256) => 4,
            _ => return Ok(()),
        };
        entries.insert("n_group".to_owned(), int(8));
        entries.insert("topk_group".to_owned(), int(kept));
        Ok(())
    }

    /// Adds the method by which configurations of DeepSeek V2 request groups.
    fn add_method(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let groups = entries.get("n_group").and_then(Value::as_u64).unwrap_or(1);
        if groups > 1 && self.latent_type()? == Some("deepseek_v2") {
            let method = Value::String("group_limited_greedy".to_owned());
            entries.insert("topk_method".to_owned(), method);
        }
        Ok(())
    }

    /// The model type in transformers, for an architecture with several. Routers are identified by
    /// the function that turns logits into weights, or by their corrections in files without that
    /// key.
    pub(super) fn latent_type(&self) -> Result<Option<&'static str>, ConfigError> {
        if self.architecture.name != "deepseek2" {
            return Ok(None);
        }
        Ok(Some(match self.whole("expert_gating_func")?.unwrap_or(0) {
            2 => "deepseek_v3",
            0 if self.has_tensor("blk.#.exp_probs_b.bias") => "deepseek_v3",
            0 | 1 => "deepseek_v2",
            other => {
                let key = self.name("expert_gating_func");
                return Err(unsupported(format!("`{key}` = {other}")));
            }
        }))
    }

    /// The factor of yarn for the softmax, which is also that of the angles: they are equal in all
    /// published models. Files contain a tenth of it, rounded.
    pub(super) fn yarn_factor(&self) -> Result<Option<f64>, ConfigError> {
        let key = "rope.scaling.yarn_log_multiplier";
        let Some(value) = self.get(key)? else {
            return match self.architecture.latent {
                true => Err(ConfigError::MissingGgufKey(self.name(key))),
                false => Ok(None),
            };
        };
        let tenth = undamaged(value.as_f64(), &self.name(key), value)?;
        Ok(Some((tenth * 1e7).round() / 1e6))
    }
}
