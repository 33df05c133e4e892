//! State spaces of Granite 4 and Nemotron 3, from the keys of a GGUF file. Rates of decay are
//! stored as negative numbers.

use sws_format::Value;

use super::architectures::{Architecture, LLAMA, QWEN3};
use super::layers::{insert, word};
use super::{GgufKeys, GgufMap, exact, int, undamaged, unsupported};
use crate::config::ConfigError;

/// Keys of state spaces.
const SIZES: &[&str] = &[
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

const KEYS: &[(&str, &str)] = &[
    ("ssm.conv_kernel", ""),
    ("ssm.group_count", ""),
    ("ssm.inner_size", ""),
    ("ssm.state_size", ""),
    ("ssm.time_step_rank", ""),
];

/// The rows of queries and keys are those of llama.
pub(super) const GRANITE: Architecture = Architecture {
    name: "granitehybrid",
    model_types: [Some("granitemoehybrid"), Some("granitemoehybrid")],
    recurrent: true,
    no_bias: true,
    needed: &[SIZES],
    own: &[
        KEYS,
        &[
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("expert_shared_feed_forward_length", "shared_intermediate_size"),
            ("logit_scale", "logits_scaling"),
            ("residual_scale", "residual_multiplier"),
        ],
    ],
    more: Some(granite),
    ..LLAMA
};

pub(super) const NEMOTRON: Architecture = Architecture {
    name: "nemotron_h_moe",
    model_types: [None, Some("nemotron_h")],
    qk_norm: false,
    recurrent: true,
    no_bias: true,
    gating: 2.0,
    renormalise: true,
    eps: "attention.layer_norm_epsilon",
    needed: &[
        SIZES,
        &[
            "attention.key_length",
            "expert_feed_forward_length",
            "expert_shared_feed_forward_length",
            "expert_weights_scale",
            "feed_forward_length",
        ],
    ],
    lists: &["feed_forward_length"],
    own: &[
        KEYS,
        &[
            ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
            ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
            ("expert_shared_count", "n_shared_experts"),
            ("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
            ("expert_weights_scale", "routed_scaling_factor"),
            ("moe_latent_size", "moe_latent_size"),
            // Nothing is rotated.
            ("rope.dimension_count", ""),
        ],
    ],
    more: Some(nemotron),
    ..QWEN3
};

struct Sizes {
    heads: u64,
    head_dim: u64,
    inner: u64,
}

impl GgufKeys<'_> {
    fn state_space(&self) -> Result<Sizes, ConfigError> {
        let heads = self.needed("ssm.time_step_rank")?;
        let inner = self.needed("ssm.inner_size")?;
        let name = self.name("ssm.inner_size");
        let head_dim = undamaged(exact(inner, heads), &name, &int(inner))?;
        Ok(Sizes { heads, head_dim, inner })
    }
}

fn granite(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    let Sizes { heads, head_dim, inner } = keys.state_space()?;
    let hidden = keys.needed("embedding_length")?;
    let name = keys.name("ssm.inner_size");
    let expand = undamaged(exact(inner, hidden), &name, &int(inner))?;
    let finetuned = keys.name("rope.scaling.finetuned");
    let rotated = match keys.given.get(&finetuned) {
        None => true,
        Some(given) => undamaged(given.as_bool(), &finetuned, given)?,
    };
    let attends = keys.attends(layers)?.into_iter();
    let kinds = attends.map(|attends| word(if attends { "attention" } else { "mamba" })).collect();
    insert(
        entries,
        [
            ("layer_types", Value::List(kinds)),
            ("mamba_conv_bias", Value::Bool(keys.has_tensor("blk.#.ssm_conv1d.bias"))),
            ("mamba_d_conv", int(keys.needed("ssm.conv_kernel")?)),
            ("mamba_d_head", int(head_dim)),
            ("mamba_d_state", int(keys.needed("ssm.state_size")?)),
            ("mamba_expand", int(expand)),
            ("mamba_n_groups", int(keys.needed("ssm.group_count")?)),
            ("mamba_n_heads", int(heads)),
            ("mamba_proj_bias", Value::Bool(keys.has_tensor("blk.#.ssm_in.bias"))),
            ("position_embedding_type", word(if rotated { "rope" } else { "nope" })),
        ],
    );
    if keys.whole("expert_count")?.unwrap_or(0) == 0 {
        entries.insert("num_local_experts".to_owned(), int(0));
    }
    Ok(())
}

fn nemotron(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    let Sizes { heads, head_dim, .. } = keys.state_space()?;
    let widths = keys.wholes_of_layers("feed_forward_length", layers)?.unwrap_or_default();
    let mut kinds = Vec::new();
    for kind in keys.attends(layers)?.into_iter().zip(widths) {
        kinds.push(match kind {
            (true, 0) => word("attention"),
            (false, 0) => word("mamba"),
            (false, _) => word("moe"),
            (true, _) => return Err(unsupported("layers with both attention and experts")),
        });
    }
    entries.remove("partial_rotary_factor");
    insert(
        entries,
        [
            ("layers_block_type", Value::List(kinds)),
            ("conv_kernel", int(keys.needed("ssm.conv_kernel")?)),
            ("mamba_head_dim", int(head_dim)),
            ("mamba_num_heads", int(heads)),
            ("n_groups", int(keys.needed("ssm.group_count")?)),
            ("ssm_state_size", int(keys.needed("ssm.state_size")?)),
            ("use_bias", Value::Bool(keys.has_tensor("blk.#.ssm_in.bias"))),
            ("use_conv_bias", Value::Bool(keys.has_tensor("blk.#.ssm_conv1d.bias"))),
        ],
    );
    Ok(())
}
