//! A summary of any configuration, even of an unsupported family.

use sws_format::{Configuration, Value};

use crate::config::ConfigMap;

/// Entries of a configuration that determine the size of a model, in the spelling of any family.
/// `None` for absent entries, and for entries of an unexpected type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The family. Untrusted text.
    pub model_type: Option<String>,
    /// Layers.
    pub layers: Option<u64>,
    /// Elements of the hidden state.
    pub hidden: Option<u64>,
    /// Entries of the vocabulary.
    pub vocab: Option<u64>,
    /// Maximum number of positions that the model was made for.
    pub context: Option<u64>,
    /// Experts in a layer.
    pub experts: Option<u64>,
    /// Number of experts that a token uses.
    pub top_k: Option<u64>,
    /// Inner width of an expert.
    pub expert_width: Option<u64>,
    /// The method by which weights are stored quantised. Untrusted text.
    pub quantised: Option<String>,
}

const EXPERTS: &[&str] =
    &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];
const TOP_K: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_k",
    "moe_topk",
    "moe_top_k",
    "top_k_experts",
];
const WIDTH: &[&str] = &["moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"];

impl Description {
    /// Reads a configuration. Entries of the language model are preferred.
    pub fn of(config: &Configuration) -> Description {
        let outer = &config.entries;
        let text = outer.get("text_config").and_then(Value::as_map).unwrap_or(outer);
        let levels = [text, outer];
        let experts = number(levels, EXPERTS).filter(|&experts| experts > 0);
        let quantised = entry(levels, "quantization_config").map(|value| {
            let method = value.as_map().and_then(|map| map.get("quant_method"));
            word(method).unwrap_or("unknown".to_owned())
        });
        Description {
            model_type: word(outer.get("model_type")),
            layers: number(levels, &["num_hidden_layers"]),
            hidden: number(levels, &["hidden_size"]),
            vocab: number(levels, &["vocab_size"]),
            context: number(levels, &["max_position_embeddings", "model_max_length"]),
            experts,
            top_k: experts.and(number(levels, TOP_K)),
            expert_width: experts.and(number(levels, WIDTH)),
            quantised,
        }
    }
}

/// The first of these entries that is not null.
fn entry<'a>(levels: [&'a ConfigMap; 2], key: &str) -> Option<&'a Value> {
    let mut values = levels.into_iter().filter_map(|map| map.get(key));
    values.find(|value| !value.is_null())
}

/// The number under the first of these keys that is given.
fn number(levels: [&ConfigMap; 2], keys: &[&str]) -> Option<u64> {
    keys.iter().find_map(|key| entry(levels, key))?.as_u64()
}

fn word(value: Option<&Value>) -> Option<String> {
    Some(value?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_read_and_wrong_types_are_absent() {
        let of = |json: &str| {
            Description::of(&Configuration::from_json("config.json", json.as_bytes()).unwrap())
        };
        let nested = of(r#"{"model_type": "new", "vocab_size": 7, "num_experts": null,
            "text_config": {"num_hidden_layers": 3, "moe_num_experts": 8, "moe_k": 2,
                "hidden_size": [1], "moe_intermediate_size": 5},
            "quantization_config": {"quant_method": "fp8"}}"#);
        let expected = Description {
            model_type: Some("new".to_owned()),
            layers: Some(3),
            vocab: Some(7),
            experts: Some(8),
            top_k: Some(2),
            expert_width: Some(5),
            quantised: Some("fp8".to_owned()),
            ..Description::default()
        };
        assert_eq!(nested, expected);
        let dense = of(r#"{"model_type": 1, "num_experts": 0, "intermediate_size": 5}"#);
        assert_eq!(dense, Description::default());
    }
}
