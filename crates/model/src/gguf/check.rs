//! The keys and tensors of a GGUF file that this program knows. All others are refused, as they may
//! change the logits.

use std::collections::BTreeSet;

use sws_format::{PieceKind, Value};

use super::{
    GgufKeys, GgufMap, GgufPlace, NEUTRAL, RANKED, READ_ELSEWHERE, ROPE_FREQS, SAME, find, latent,
    render, rope, unsupported,
};
use crate::config::ConfigError;
use crate::families::{self, Family};
use crate::role::Role;

impl GgufKeys<'_> {
    /// Refuses unknown keys, and keys with a value that would change the logits.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let head_dim = self.head_dim()?;
        let prefix = self.name("");
        for (name, value) in self.given {
            let Some(key) = name.strip_prefix(&prefix) else { continue };
            let neutral = NEUTRAL.iter().find(|(neutral, _)| *neutral == key);
            let fine = match (key, neutral) {
                _ if self.is_own(key) => true,
                _ if self.architecture.latent && latent::KEYS.contains(&key) => true,
                ("expert_gating_func", _) if self.architecture.name == "deepseek2" => true,
                _ if self.architecture.ranked && RANKED.iter().any(|(same, _)| *same == key) => {
                    true
                }
                ("expert_gating_func", _) => is_or_zero(value, self.architecture.gating),
                (_, Some((_, neutral))) => is_or_zero(value, *neutral),
                ("attention.value_length" | "rope.dimension_count", _) => {
                    value.as_u64().is_some() && value.as_u64() == head_dim
                }
                ("attention.causal", _) => *value == Value::Bool(true),
                ("use_parallel_residual", _) => *value == Value::Bool(false),
                _ => {
                    SAME.iter().any(|(same, _)| *same == key)
                        || READ_ELSEWHERE.contains(&key)
                        || rope::KEYS.contains(&key)
                }
            };
            if !fine {
                return Err(unsupported(format!("`{name}` = {}", render(value))));
            }
        }
        Ok(())
    }

    /// Adds options that only the tensors show, and refuses tensors that the model would ignore.
    pub(super) fn tensors(&self, entries: &mut GgufMap) -> Result<(), ConfigError> {
        let list = self.given.get("tensors").and_then(Value::as_list);
        let names: Option<BTreeSet<&str>> =
            list.and_then(|names| names.iter().map(Value::as_str).collect());
        let Some(names) = names else {
            return Err(ConfigError::MissingGgufKey("tensors".to_owned()));
        };
        let model_type = entries.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let mistral = model_type == "mistral";
        let dense = !entries.contains_key("num_experts");
        let family = families::find(model_type);
        let has_use = |name: &str| family.is_some_and(|family| self.has_use(family, name));
        for name in &names {
            // A number that does not fit its matrix is refused once their types are known.
            let is_number = || matrix_of(name).is_some_and(|matrix| has_use(&matrix));
            if !has_use(name) && !is_number() {
                return Err(unsupported(format!("the tensor `{name}`")));
            }
        }
        let qkv = names.contains("blk.#.attn_q.bias");
        let output = names.contains("blk.#.attn_output.bias");
        let mlp = names.contains("blk.#.ffn_gate.bias");
        let llama = self.architecture.paired;
        let attention = if self.architecture.no_bias {
            !qkv && !output
        } else if self.architecture.plain_output {
            !output
        } else if mistral || (llama && !dense) {
            !qkv && !output
        } else {
            qkv == output
        };
        if !attention || (mlp && (mistral || !llama || !dense)) {
            return Err(unsupported("biases that models of this type do not have"));
        }
        if names.contains("blk.#.ffn_gate_shexp.weight") && !self.has_shared()? {
            return Err(unsupported("a shared expert whose width is not given"));
        }
        let flags = [
            ("attention_bias", qkv),
            ("qkv_bias", qkv),
            ("mlp_bias", mlp),
            ("tie_word_embeddings", !names.contains("output.weight")),
            ("use_qk_norm", names.contains("blk.#.attn_q_norm.weight")),
        ];
        for (entry, flag) in flags {
            entries.entry(entry.to_owned()).or_insert(Value::Bool(flag));
        }
        Ok(())
    }

    /// True if the width of a shared expert is given.
    fn has_shared(&self) -> Result<bool, ConfigError> {
        let mut any = self.architecture.shared;
        for key in ["expert_shared_count", "expert_shared_feed_forward_length"] {
            any = any || self.whole(key)?.unwrap_or(0) > 0;
        }
        Ok(any)
    }

    /// True if a forward pass of the family uses the tensors with this name, in which `#` stands
    /// for numbers.
    pub(super) fn has_use(&self, family: &Family, name: &str) -> bool {
        if name == ROPE_FREQS {
            return self.given.contains_key(ROPE_FREQS);
        }
        // Layers of multi-token prediction are left out.
        if name.starts_with("blk.#.nextn.") {
            return true;
        }
        // The numbers do not matter.
        match find(family, &name.replace('#', "0"), 1, 1) {
            Some(GgufPlace::Piece(id, role)) => {
                let norm = matches!(role, Role::QueryNorm | Role::KeyNorm);
                (!norm || self.architecture.qk_norm)
                    && (id.layer().is_none()
                        || family.has_outside(role)
                        || family.rule(id.kind(), role).is_some())
            }
            Some(GgufPlace::Stacked(_, role)) => family.rule(PieceKind::Expert(0), role).is_some(),
            None => false,
        }
    }
}

/// The name of the matrix whose numbers or inputs are multiplied by a tensor with this name.
fn matrix_of(name: &str) -> Option<String> {
    let stem = name.strip_suffix(".scale").or_else(|| name.strip_suffix(".input_scale"))?;
    Some(format!("{stem}.weight"))
}

/// True for this number, and for 0: in some files that means that the value is absent.
fn is_or_zero(value: &Value, number: f64) -> bool {
    value.as_f64().is_some_and(|found| found == number || found == 0.0)
}
