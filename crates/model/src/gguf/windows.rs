//! Mixtures of experts with a window in some layers, from the keys of a GGUF file.

use std::collections::BTreeMap;

use sws_format::Value;

use super::architectures::{Architecture, QWEN3, WINDOW};
use super::layers::{add_kinds, insert, rename, word};
use super::{GgufKeys, GgufMap, ROPE_FREQS, different, int, undamaged};
use crate::config::{ConfigError, ROPE_DIVISORS};

const PATTERN: &[(&str, &str)] = &[("attention.sliding_window_pattern", "")];

const ROUTED: Architecture =
    Architecture { no_bias: true, gating: 2.0, renormalise: true, ..QWEN3 };

/// Embeddings are scaled, as in all published models.
pub(super) const AFMOE: Architecture = Architecture {
    name: "afmoe",
    model_types: [None, Some("afmoe")],
    needed: &[&["attention.sliding_window", "expert_feed_forward_length", "expert_shared_count"]],
    own: &[
        WINDOW,
        PATTERN,
        &[
            ("expert_shared_count", "num_shared_experts"),
            ("expert_weights_scale", "route_scale"),
            ("leading_dense_block_count", "num_dense_layers"),
        ],
    ],
    more: Some(afmoe),
    ..ROUTED
};

pub(super) const LAGUNA: Architecture = Architecture {
    name: "laguna",
    model_types: [None, Some("laguna")],
    needed: &[&[
        "attention.key_length",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "leading_dense_block_count",
        "rope.dimension_count",
    ]],
    lists: &["attention.head_count"],
    own: &[
        WINDOW,
        PATTERN,
        &[
            ("expert_shared_count", ""),
            ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
            ("expert_weights_scale", "moe_routed_scaling_factor"),
            ("leading_dense_block_count", "first_k_dense_replace"),
            ("rope.dimension_count", ""),
            ("rope.dimension_count_swa", ""),
            ("rope.freq_base_swa", ""),
            ("rope.scaling.yarn_attn_factor", ""),
        ],
    ],
    more: Some(laguna),
    ..ROUTED
};

/// The softmax of transformers, and experts in all layers.
pub(super) const MELLUM: Architecture = Architecture {
    name: "mellum",
    model_types: [None, Some("mellum")],
    gating: 1.0,
    needed: &[&["expert_feed_forward_length", "rope.freq_base"]],
    own: &[WINDOW, PATTERN, &[("rope.freq_base_swa", ""), ("rope.scaling.yarn_attn_factor", "")]],
    more: Some(mellum),
    ..ROUTED
};

pub(super) const COHERE: Architecture = Architecture {
    name: "cohere2moe",
    model_types: [None, Some("cohere2_moe")],
    qk_norm: false,
    renormalise: false,
    shared: true,
    eps: "attention.layer_norm_epsilon",
    needed: &[&["attention.sliding_window", "expert_feed_forward_length", "logit_scale"]],
    own: &[
        WINDOW,
        PATTERN,
        &[
            ("attention.layer_norm_epsilon", "layer_norm_eps"),
            ("expert_shared_count", "num_shared_experts"),
            ("expert_shared_feed_forward_length", ""),
            ("leading_dense_block_count", "first_k_dense_replace"),
            ("logit_scale", "logit_scale"),
        ],
    ],
    more: Some(cohere),
    ..ROUTED
};

pub(super) const EXAONE: Architecture = Architecture {
    name: "exaone-moe",
    model_types: [None, Some("exaone_moe")],
    ranked: true,
    shared: true,
    needed: &[&[
        "attention.sliding_window",
        "expert_feed_forward_length",
        "expert_shared_count",
        "expert_weights_scale",
    ]],
    own: &[WINDOW, PATTERN, &[("expert_shared_feed_forward_length", "")]],
    more: Some(exaone),
    ..ROUTED
};

/// Norm weights in files are those of the hub plus one. Half of each head is rotated in layers
/// without a window.
pub(super) const STEP: Architecture = Architecture {
    name: "step35",
    model_types: [None, Some("step3p5")],
    needed: &[&[
        "attention.key_length",
        "attention.head_count_kv",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "leading_dense_block_count",
        "rope.freq_base",
        "rope.freq_base_swa",
    ]],
    lists: &["attention.head_count", "swiglu_clamp_exp", "swiglu_clamp_shexp"],
    own: &[
        WINDOW,
        PATTERN,
        &[
            ("expert_shared_feed_forward_length", "share_expert_dim"),
            ("expert_weights_scale", "moe_router_scaling_factor"),
            ("leading_dense_block_count", "first_k_dense_replace"),
            ("rope.freq_base_swa", ""),
            ("swiglu_clamp_exp", ""),
            ("swiglu_clamp_shexp", ""),
        ],
    ],
    more: Some(step),
    ..ROUTED
};

/// The window does not count the query itself.
pub(super) const MIMO: Architecture = Architecture {
    name: "mimo2",
    model_types: [None, Some("mimo_v2_flash")],
    qk_norm: false,
    ranked: true,
    needed: &[&[
        "attention.head_count_kv",
        "attention.key_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.value_length",
        "expert_feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base_swa",
    ]],
    lists: &["attention.head_count_kv"],
    own: &[
        PATTERN,
        &[
            ("attention.sliding_window", ""),
            ("attention.value_length", "v_head_dim"),
            ("attention.value_scale", ""),
            ("rope.dimension_count", ""),
            ("rope.freq_base_swa", ""),
        ],
    ],
    more: Some(mimo),
    ..ROUTED
};

const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

fn afmoe(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.always_renormalises()?;
    add_kinds(entries, &keys.windowed(layers, 4, false)?, KINDS);
    entries.insert("mup_enabled".to_owned(), Value::Bool(true));
    entries.entry("num_dense_layers".to_owned()).or_insert(int(0));
    Ok(())
}

/// Gates are for heads or for elements, which the weights show.
fn laguna(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.always_renormalises()?;
    let key = "attention.head_count";
    let heads = keys.wholes_of_layers(key, layers)?.unwrap_or_default();
    let first = heads.first().copied().unwrap_or(0);
    if keys.get("attention.head_count_kv")?.is_none() {
        return Err(ConfigError::MissingGgufKey(keys.name("attention.head_count_kv")));
    }
    let windows = match keys.whole("attention.sliding_window")?.unwrap_or(0) {
        0 => vec![false; layers as usize],
        _ => keys.windowed(layers, 4, true)?,
    };
    let heads = heads.into_iter().map(int).collect();
    let full = keys.scaled_rope(entries, Some("rope.dimension_count"))?;
    let local = keys.rope(("rope.freq_base_swa", 10_000.0), Some("rope.dimension_count_swa"))?;
    add_kinds(entries, &windows, KINDS);
    add_ropes(entries, full, local);
    insert(
        entries,
        [
            ("num_attention_heads", int(first)),
            ("num_attention_heads_per_layer", Value::List(heads)),
        ],
    );
    Ok(())
}

fn mellum(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.always_renormalises()?;
    let windows = match keys.whole("attention.sliding_window")?.unwrap_or(0) {
        0 => vec![false; layers as usize],
        _ => keys.windowed(layers, 4, false)?,
    };
    let full = keys.scaled_rope(entries, None)?;
    let theta = full.get("rope_theta").and_then(Value::as_f64).unwrap_or(10_000.0);
    let local = keys.rope(("rope.freq_base_swa", theta), None)?;
    add_kinds(entries, &windows, KINDS);
    add_ropes(entries, full, local);
    Ok(())
}

fn cohere(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.check_shared()?;
    rename(
        entries,
        &[
            ("intermediate_size", "prefix_dense_intermediate_size"),
            ("moe_intermediate_size", "intermediate_size"),
        ],
    );
    add_kinds(entries, &keys.windowed(layers, 4, true)?, KINDS);
    entries.insert("expert_selection_fn".to_owned(), word("sigmoid"));
    Ok(())
}

fn exaone(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.check_shared()?;
    rename(entries, &[("n_shared_experts", "num_shared_experts")]);
    add_kinds(entries, &keys.windowed(layers, 4, false)?, KINDS);
    Ok(())
}

fn step(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    keys.always_renormalises()?;
    let windows = keys.windowed(layers, 4, true)?;
    let [full, local] = keys.by_kind("attention.head_count", &windows)?;
    let dim = keys.needed("attention.key_length")?;
    let mut rope = keys.rope(("rope.freq_base", 10_000.0), None)?;
    rope.insert("partial_rotary_factor".to_owned(), Value::Float(0.5));
    // The divisors behind those of the rotated half have no effect.
    if let Some(divisors) = entries.remove(ROPE_DIVISORS) {
        let some = divisors.as_list().and_then(|all| all.get(..(dim / 4) as usize));
        let some = undamaged(some, ROPE_FREQS, &divisors)?;
        rope.insert(ROPE_DIVISORS.to_owned(), Value::List(some.to_vec()));
    }
    rename(entries, &[("num_key_value_heads", "num_attention_groups")]);
    if let Some(full) = full.or(local) {
        entries.insert("num_attention_heads".to_owned(), int(full));
    }
    if let Some(local) = local {
        let other = BTreeMap::from([("num_attention_heads".to_owned(), int(local))]);
        entries.insert("attention_other_setting".to_owned(), Value::Map(other));
    }
    for (key, entry) in
        [("swiglu_clamp_exp", "swiglu_limits"), ("swiglu_clamp_shexp", "swiglu_limits_shared")]
    {
        if let Some(limits) = keys.of_layers(key, layers)? {
            let limits = limits.into_iter().cloned().collect();
            entries.insert(entry.to_owned(), Value::List(limits));
        }
    }
    add_kinds(entries, &windows, KINDS);
    let local = keys.rope(("rope.freq_base_swa", 10_000.0), None)?;
    add_ropes(entries, rope, local);
    Ok(())
}

/// All layers but the first have experts, as in all published models.
fn mimo(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    let windows = keys.windowed(layers, 6, true)?;
    let [full, local] = keys.by_kind("attention.head_count_kv", &windows)?;
    let share = "rope.dimension_count";
    let rope = keys.rope(("rope.freq_base", 10_000.0), Some(share))?;
    add_ropes(entries, rope, keys.rope(("rope.freq_base_swa", 10_000.0), Some(share))?);
    add_kinds(entries, &windows, KINDS);
    let scale = keys.get("attention.value_scale")?.cloned();
    let scale = scale.filter(|scale| scale.as_f64() != Some(0.0)).unwrap_or(Value::Null);
    insert(
        entries,
        [
            ("attention_value_scale", scale),
            ("sliding_window_size", int(keys.needed("attention.sliding_window")?)),
        ],
    );
    entries.remove("sliding_window");
    for (entry, heads) in [("num_key_value_heads", full), ("swa_num_key_value_heads", local)] {
        if let Some(heads) = heads {
            entries.insert(entry.to_owned(), int(heads));
        }
    }
    if keys.get("leading_dense_block_count")?.is_none() {
        entries.insert("first_k_dense_replace".to_owned(), int(1));
    }
    Ok(())
}

impl GgufKeys<'_> {
    /// A number that layers without and with a window have in common.
    pub(super) fn by_kind(
        &self,
        key: &str,
        windows: &[bool],
    ) -> Result<[Option<u64>; 2], ConfigError> {
        let all = self.wholes_of_layers(key, windows.len() as u64)?.unwrap_or_default();
        let mut kinds = [None; 2];
        for (number, windowed) in all.into_iter().zip(windows) {
            let kind = &mut kinds[usize::from(*windowed)];
            if kind.is_some_and(|other| other != number) {
                return Err(different(&self.name(key)));
            }
            *kind = Some(number);
        }
        Ok(kinds)
    }

    /// The rotary embedding of layers without a window, with its scaling.
    fn scaled_rope(
        &self,
        entries: &mut GgufMap,
        rotated: Option<&str>,
    ) -> Result<GgufMap, ConfigError> {
        let mut full = self.rope(("rope.freq_base", 10_000.0), rotated)?;
        if let Some(Value::Map(scaling)) = entries.remove("rope_scaling") {
            full.extend(scaling);
            if let Some(factor) = self.get("rope.scaling.yarn_attn_factor")? {
                full.insert("attention_factor".to_owned(), factor.clone());
            }
        }
        Ok(full)
    }

    /// A rotary embedding, by the key of its base and that of its rotated elements.
    fn rope(
        &self,
        (key, default): (&str, f64),
        rotated: Option<&str>,
    ) -> Result<BTreeMap<String, Value>, ConfigError> {
        let theta = self.get(key)?.cloned().unwrap_or(Value::Float(default));
        let mut entries = GgufMap::new();
        insert(&mut entries, [("rope_type", word("default")), ("rope_theta", theta)]);
        if let Some(key) = rotated
            && let Some(rotated) = self.whole(key)?
        {
            let dim = self.needed("attention.key_length")?.max(1);
            // The added half prevents that rounding removes an element.
            let share = (rotated as f64 + 0.5) / dim as f64;
            insert(&mut entries, [("partial_rotary_factor", Value::Float(share.min(1.0)))]);
        }
        Ok(entries)
    }
}

/// Adds the rotary embeddings of layers without and with a window.
fn add_ropes(entries: &mut GgufMap, full: GgufMap, local: GgufMap) {
    for entry in ["rope_theta", "partial_rotary_factor", "rope_scaling"] {
        entries.remove(entry);
    }
    let mut ropes = GgufMap::new();
    insert(&mut ropes, [(KINDS[0], Value::Map(full)), (KINDS[1], Value::Map(local))]);
    insert(entries, [("rope_parameters", Value::Map(ropes))]);
}
