//! Delta nets with a decay for each element of a key, beside latent attention: Kimi Linear, GLM 5.3
//! Flash and Ling 3, from the keys of a GGUF file.

use sws_format::Value;

use super::architectures::{Architecture, QWEN3};
use super::deepseek4::STREAMS;
use super::latent::INDEXERS;
use super::layers::{add_kinds, insert};
use super::{GgufKeys, GgufMap, int, render, unsupported};
use crate::config::ConfigError;

/// Keys of both kinds of layers.
const KEYS: &[(&str, &str)] = &[
    ("attention.key_length_mla", ""),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.value_length", ""),
    ("attention.value_length_mla", ""),
    ("kda.head_dim", "linear_head_dim"),
    ("rope.dimension_count", "qk_rope_head_dim"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
];

const LIMITS: &[(&str, &str)] = &[("swiglu_clamp_exp", ""), ("swiglu_clamp_shexp", "")];

/// Keys without a usable default.
const NEEDED: &[&str] = &[
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.value_length_mla",
    "expert_feed_forward_length",
    "expert_weights_scale",
    "kda.head_dim",
    "rope.dimension_count",
    "ssm.conv_kernel",
];

pub(super) const KIMI: Architecture = Architecture {
    name: "kimi-linear",
    model_types: [None, Some("kimi_linear")],
    qk_norm: false,
    no_bias: true,
    gating: 2.0,
    ranked: true,
    recurrent: true,
    needed: &[NEEDED],
    own: &[KEYS],
    more: Some(kimi),
    ..QWEN3
};

pub(super) const GLM: Architecture = Architecture {
    name: "glm5-next",
    model_types: [None, Some("glm5_next_text")],
    renormalise: true,
    needed: &[
        NEEDED,
        &[
            "attention.indexer.head_count",
            "attention.indexer.key_length",
            "attention.indexer.kpool",
            "attention.indexer.top_k",
            "attention.q_lora_rank",
            "hyper_connection.count",
            "hyper_connection.epsilon",
            "hyper_connection.sinkhorn_iterations",
            "swiglu_clamp_exp",
        ],
    ],
    lists: &["swiglu_clamp_exp", "swiglu_clamp_shexp"],
    own: &[
        KEYS,
        LIMITS,
        STREAMS,
        INDEXERS,
        &[
            ("attention.indexer.kpool", "index_kpool"),
            ("attention.indexer.kpool_select_tail", "index_kpool_always_select_tail"),
            ("attention.layer_norm_epsilon", ""),
            ("kda.gate_lower_bound", "linear_lower_bound"),
        ],
    ],
    more: Some(glm),
    ..KIMI
};

pub(super) const LING: Architecture = Architecture {
    name: "bailingmoe3",
    model_types: [None, Some("bailing_hybrid")],
    renormalise: true,
    shared: true,
    needed: &[NEEDED, &["kda.gate_lower_bound"]],
    lists: &["swiglu_clamp_exp", "swiglu_clamp_shexp"],
    own: &[
        KEYS,
        LIMITS,
        &[
            ("expert_shared_feed_forward_length", ""),
            ("kda.gate_lower_bound", "kda_lower_bound"),
            ("kda.safe_gate", "kda_safe_gate"),
            // Sections for positions in pictures. For text all three positions are equal.
            ("rope.dimension_sections", ""),
        ],
    ],
    more: Some(ling),
    ..KIMI
};

impl GgufKeys<'_> {
    /// Adds the kinds of layers, and the sizes of latent attention.
    fn add_elements(
        &self,
        entries: &mut GgufMap,
        layers: u64,
        full: &str,
    ) -> Result<(), ConfigError> {
        entries.remove("partial_rotary_factor");
        self.add_sizes(entries)?;
        add_kinds(entries, &self.attends(layers)?, ["linear_attention", full]);
        let shared = self.whole("expert_shared_count")?.unwrap_or(0);
        insert(
            entries,
            [
                ("linear_num_heads", int(self.needed("attention.head_count")?)),
                ("n_shared_experts", int(shared)),
                ("num_shared_experts", int(shared)),
            ],
        );
        Ok(())
    }
}

fn kimi(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.add_elements(entries, layers, "full_attention")?;
    // Files have no key, as all models divide weights by their sum.
    let given = keys.get("expert_weights_norm")?.cloned();
    let renormalise = given.unwrap_or(Value::Bool(true));
    entries.remove("norm_topk_prob");
    entries.insert("moe_renormalize".to_owned(), renormalise);
    Ok(())
}

fn glm(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.add_elements(entries, layers, "indexed_attention")?;
    let eps = "attention.layer_norm_epsilon";
    if let Some(given) = keys.get(eps)?
        && given.as_f64() != Some(1e-6)
    {
        return Err(unsupported(format!("`{}` = {}", keys.name(eps), render(given))));
    }
    if keys.get("kda.gate_lower_bound")?.is_none() {
        entries.insert("linear_lower_bound".to_owned(), Value::Null);
    }
    keys.add_indexed(entries)?;
    entries.insert("swiglu_limit".to_owned(), keys.limit(layers)?);
    Ok(())
}

fn ling(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.add_elements(entries, layers, "full_attention")?;
    keys.check_shared()?;
    for (key, entry) in [
        ("swiglu_clamp_exp", "expert_swiglu_limit_list"),
        ("swiglu_clamp_shexp", "share_expert_swiglu_limit_list"),
    ] {
        if let Some(limits) = keys.of_layers(key, layers)? {
            let limits = limits.into_iter().cloned().collect();
            entries.insert(entry.to_owned(), Value::List(limits));
        }
    }
    entries.insert("no_kda_lora".to_owned(), Value::Bool(true));
    Ok(())
}
