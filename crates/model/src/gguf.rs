//! Models in GGUF files: their configuration in the spelling of transformers, and the roles of
//! their tensors.
//!
//! The meanings of keys and tensors are defined once for all families. Differences between
//! architectures are in [`ARCHITECTURES`].

mod architectures;
mod check;
mod convolutions;
mod deepseek4;
mod delta;
mod dots3;
mod elements;
mod gemma4;
mod latent;
mod layers;
mod ling;
mod llama4;
mod minimax;
mod muse;
mod names;
mod qwen4;
mod rope;
mod state_space;
mod unknown;
mod windows;

use std::collections::BTreeMap;

use sws_format::Value;

use crate::config::{ConfigError, MAX_LAYERS, PAIRED, ROPE_DIVISORS};
use architectures::{ARCHITECTURES, Architecture};

pub(crate) use names::{GgufPlace, find};

type GgufMap = BTreeMap<String, Value>;

/// The tensor with those numbers, whose values the configuration of a GGUF file has by its name.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// Keys of an architecture, without its name, and the corresponding entries of configurations.
const SAME: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("context_length", "max_position_embeddings"),
    ("feed_forward_length", "intermediate_size"),
    ("vocab_size", "vocab_size"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("rope.freq_base", "rope_theta"),
];

/// Further keys of architectures with ranked experts, and the corresponding entries.
const RANKED: &[(&str, &str)] = &[
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_shared_count", "n_shared_experts"),
    ("leading_dense_block_count", "first_k_dense_replace"),
];

/// Keys without a usable default.
const NEEDED: [&str; 4] =
    ["embedding_length", "block_count", "attention.head_count", "context_length"];

/// Keys that have an effect, and the number with which they have none.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_weights_scale", 1.0),
    ("expert_group_count", 1.0),
    ("expert_group_used_count", 1.0),
    ("leading_dense_block_count", 0.0),
    ("moe_every_n_layers", 1.0),
    ("interleave_moe_layer_step", 1.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("rope.scaling.attn_factor", 1.0),
];

/// Keys without effect on logits, or read elsewhere.
const READ_ELSEWHERE: &[&str] =
    &["block_count", "nextn_predict_layers", "expert_shared_count", "tensor_data_layout"];

/// The entries that families read, from the keys of a GGUF file. None for a configuration of
/// another format.
pub(crate) fn translated(given: &GgufMap) -> Result<Option<GgufMap>, ConfigError> {
    let Some(name) = given.get("general.architecture") else { return Ok(None) };
    let name = undamaged(name.as_str(), "general.architecture", name)?;
    let known = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
    let Some(architecture) = known else { return Err(unknown::unknown(name, given)) };
    let keys = GgufKeys { architecture, given };
    let mut entries = keys.entries()?;
    keys.tensors(&mut entries)?;
    Ok(Some(entries))
}

struct GgufKeys<'a> {
    architecture: &'static Architecture,
    given: &'a GgufMap,
}

impl<'a> GgufKeys<'a> {
    /// The value of a key of the architecture. If it is a list with a value for each layer, all
    /// values must be equal.
    fn get(&self, key: &str) -> Result<Option<&'a Value>, ConfigError> {
        let name = self.name(key);
        let Some(Value::List(layers)) = self.given.get(&name) else {
            return Ok(self.given.get(&name));
        };
        if self.architecture.lists.contains(&key) {
            return Ok(None);
        }
        // Layers without attention have no key heads.
        let zero = self.architecture.recurrent && key == "attention.head_count_kv";
        let mut layers = layers.iter().filter(|value| !zero || value.as_u64() != Some(0));
        let first = layers.next();
        match (first.is_some() || zero) && layers.all(|other| Some(other) == first) {
            true => Ok(first),
            false => Err(different(&name)),
        }
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    fn whole(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        match self.get(key)? {
            Some(value) => Ok(Some(undamaged(value.as_u64(), &self.name(key), value)?)),
            None => Ok(None),
        }
    }

    fn needed(&self, key: &str) -> Result<u64, ConfigError> {
        self.present(self.whole(key)?, key)
    }

    /// The value of a key without a usable default. Fails if it is absent.
    fn present<T>(&self, value: Option<T>, key: &str) -> Result<T, ConfigError> {
        value.ok_or_else(|| ConfigError::MissingGgufKey(self.name(key)))
    }

    fn entries(&self) -> Result<GgufMap, ConfigError> {
        let Architecture { eps, needed, .. } = self.architecture;
        for key in NEEDED.iter().chain([eps]).chain(needed.iter().copied().flatten()) {
            if !self.given.contains_key(&self.name(key)) {
                return Err(ConfigError::MissingGgufKey(self.name(key)));
            }
        }
        self.check()?;
        let mut entries = GgufMap::new();
        let ranked = if self.architecture.ranked { RANKED } else { &[] };
        let own = self.architecture.own.iter().copied().flatten();
        let own = own.filter(|(_, entry)| !entry.is_empty());
        for (key, entry) in SAME.iter().chain(ranked).chain(own) {
            if let Some(value) = self.get(key)? {
                // In some files 0 means that the value is absent.
                let none = NEUTRAL.iter().any(|(of, neutral)| of == key && *neutral != 0.0)
                    && value.as_f64() == Some(0.0);
                if !none {
                    entries.insert((*entry).to_owned(), value.clone());
                }
            }
        }
        let layers = self.whole("block_count")?.unwrap_or(0);
        if layers > MAX_LAYERS {
            return Err(damaged(&self.name("block_count"), &int(layers)));
        }
        let layers = layers.saturating_sub(self.whole("nextn_predict_layers")?.unwrap_or(0));
        let mut default = |entry: &str, value: Value| {
            entries.entry(entry.to_owned()).or_insert(value);
        };
        default("num_hidden_layers", int(layers));
        let heads = self.whole("attention.head_count")?.unwrap_or(0);
        let hidden = self.whole("embedding_length")?.unwrap_or(0);
        default("num_key_value_heads", int(heads));
        if let Some(elements) = hidden.checked_div(heads) {
            default("head_dim", int(elements));
        }
        if let (true, Some(dim)) = (self.is_own("rope.dimension_count"), self.head_dim()?)
            && let Some(rotated) = self.whole("rope.dimension_count")?
        {
            default("partial_rotary_factor", Value::Float(rotated as f64 / dim.max(1) as f64));
        }
        default("norm_topk_prob", Value::Bool(self.architecture.renormalise));
        let tokens = self.given.get("tokenizer.ggml.tokens").and_then(Value::as_map);
        if let Some(length) = tokens.and_then(|tokens| tokens.get("length")) {
            default("vocab_size", length.clone());
        }
        default("rope_theta", Value::Float(10_000.0));
        default(PAIRED, Value::Bool(self.architecture.paired));
        if let Some(divisors) = self.given.get(ROPE_FREQS) {
            default(ROPE_DIVISORS, divisors.clone());
        }
        if let Some(scaling) = self.rope_scaling()? {
            default("rope_scaling", scaling);
        }
        if self.architecture.ranked {
            for (entry, value) in [("n_group", 1), ("topk_group", 1), ("n_shared_experts", 0)] {
                default(entry, int(value));
            }
            default("sliding_window", Value::Null);
            default("first_k_dense_replace", int(0));
            default("routed_scaling_factor", Value::Float(1.0));
        }
        if self.architecture.latent {
            self.add_latent(&mut entries)?;
        }
        if let Some(more) = self.architecture.more {
            more(self, &mut entries, layers)?;
        }
        if let Some(largest) = self.architecture.largest {
            // Scores are divided by the root of the head size. The largest model uses the share of
            // each head in the hidden state instead.
            let scalar = match hidden.checked_div(heads) {
                Some(share) if layers == largest => Some(share),
                _ => self.head_dim()?,
            };
            entries.insert("query_pre_attn_scalar".to_owned(), int(scalar.unwrap_or(0)));
            if self.architecture.name == "gemma3" {
                entries.entry("sliding_window".to_owned()).or_insert(Value::Null);
            }
        }

        let experts = self.whole("expert_count")?.unwrap_or(0) > 0;
        let Some(mut model_type) = self.architecture.model_types[usize::from(experts)] else {
            let experts = if experts { "experts" } else { "no experts" };
            let name = self.architecture.name;
            return Err(unsupported(format!("{experts} in a model of type `{name}`")));
        };
        if !experts {
            entries.remove("num_experts");
            if model_type == "llama" && entries.contains_key("sliding_window") {
                model_type = "mistral";
            }
        }
        let model_type = self.latent_type()?.unwrap_or(model_type);
        entries.insert("model_type".to_owned(), Value::String(model_type.to_owned()));
        Ok(entries)
    }

    /// Elements of a head of queries and keys.
    fn head_dim(&self) -> Result<Option<u64>, ConfigError> {
        match self.whole("attention.key_length")? {
            Some(dim) => Ok(Some(dim)),
            None => {
                let heads = self.whole("attention.head_count")?;
                let hidden = self.whole("embedding_length")?;
                let (Some(hidden), Some(heads)) = (hidden, heads) else { return Ok(None) };
                Ok(hidden.checked_div(heads))
            }
        }
    }

    /// True if the file has tensors with this name, in which `#` stands for numbers.
    fn has_tensor(&self, name: &str) -> bool {
        let names = self.given.get("tensors").and_then(Value::as_list).unwrap_or_default();
        names.iter().any(|other| other.as_str() == Some(name))
    }

    fn is_own(&self, key: &str) -> bool {
        self.architecture.own.iter().copied().flatten().any(|(own, _)| *own == key)
    }
}

fn int(number: u64) -> Value {
    Value::Int(number.into())
}

fn damaged(key: &str, value: &Value) -> ConfigError {
    ConfigError::Damaged(format!("`{key}` is {}", render(value)))
}

/// The result of reading the value of a key. Fails if there is none.
fn undamaged<T>(found: Option<T>, key: &str, value: &Value) -> Result<T, ConfigError> {
    found.ok_or_else(|| damaged(key, value))
}

/// The quotient of two numbers, if it has no remainder.
fn exact(number: u64, by: u64) -> Option<u64> {
    let quotient = number.checked_div(by)?;
    (quotient * by == number).then_some(quotient)
}

/// The refusal of a list whose values have to be equal.
fn different(name: &str) -> ConfigError {
    unsupported(format!("`{name}` with different values for layers"))
}

fn unsupported(what: impl Into<String>) -> ConfigError {
    ConfigError::UnsupportedGguf(what.into())
}

fn render(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
