//! Ling 1 and 2, and Hunyuan 3, from the keys of a GGUF file.

use sws_format::Value;

use super::architectures::{Architecture, LLAMA, PARTIAL, QWEN3};
use super::layers::rename;
use super::{GgufKeys, GgufMap, damaged, exact, int, render, undamaged, unsupported};
use crate::config::ConfigError;

/// Queries, keys and values have a matrix each, whose rows are those of llama.
pub(super) const FIRST: Architecture = Architecture {
    name: "bailingmoe",
    model_types: [None, Some("bailing_moe")],
    no_bias: true,
    needed: &[&["expert_feed_forward_length", "expert_shared_count"]],
    own: &[&[
        ("expert_shared_count", "num_shared_experts"),
        ("leading_dense_block_count", "first_k_dense_replace"),
    ]],
    more: Some(apart),
    ..LLAMA
};

pub(super) const SECOND: Architecture = Architecture {
    name: "bailingmoe2",
    model_types: [None, Some("bailing_moe_v2")],
    no_bias: true,
    gating: 2.0,
    renormalise: true,
    ranked: true,
    shared: true,
    needed: &[&[
        "expert_feed_forward_length",
        "expert_gating_func",
        "expert_shared_count",
        "expert_weights_scale",
    ]],
    own: &[PARTIAL, &[("expert_shared_feed_forward_length", "")]],
    more: Some(second),
    ..QWEN3
};

pub(super) const HUNYUAN: Architecture = Architecture {
    name: "hy_v3",
    model_types: [None, Some("hy_v3")],
    no_bias: true,
    gating: 2.0,
    renormalise: true,
    shared: true,
    needed: &[&[
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "expert_weights_scale",
    ]],
    own: &[&[
        ("expert_shared_count", ""),
        ("expert_shared_feed_forward_length", ""),
        ("expert_weights_scale", "router_scaling_factor"),
        ("leading_dense_block_count", "first_k_dense_replace"),
    ]],
    more: Some(hunyuan),
    ..QWEN3
};

/// The switch for queries, keys and values in matrices of their own.
const APART: &str = "using_split_qkv_in_self_attention";

fn apart(_: &GgufKeys<'_>, entries: &mut GgufMap, _: u64) -> Result<(), ConfigError> {
    entries.insert(APART.to_owned(), Value::Bool(true));
    Ok(())
}

fn second(keys: &GgufKeys<'_>, entries: &mut GgufMap, _: u64) -> Result<(), ConfigError> {
    keys.check_shared()?;
    rename(entries, &[("n_shared_experts", "num_shared_experts")]);
    Ok(())
}

/// All layers but the first have experts, and files of the published models have no key for it.
fn hunyuan(keys: &GgufKeys<'_>, entries: &mut GgufMap, _: u64) -> Result<(), ConfigError> {
    let name = "expert_shared_feed_forward_length";
    let given = keys.needed(name)?;
    let width = keys.needed("expert_feed_forward_length")?;
    let count = undamaged(exact(given, width), &keys.name(name), &int(given))?;
    keys.always_renormalises()?;
    entries.insert("num_shared_experts".to_owned(), int(count));
    Ok(())
}

impl GgufKeys<'_> {
    /// Refuses a width of shared experts that is not that of as many routed ones.
    pub(super) fn check_shared(&self) -> Result<(), ConfigError> {
        let name = self.name("expert_shared_feed_forward_length");
        let count = self.whole("expert_shared_count")?.unwrap_or(0);
        let width = self.needed("expert_feed_forward_length")?.saturating_mul(count);
        match self.given.get(&name) {
            Some(given) if given.as_u64() != Some(width) => Err(damaged(&name, given)),
            _ => Ok(()),
        }
    }

    /// Refuses weights of experts that are not divided by their sum.
    pub(super) fn always_renormalises(&self) -> Result<(), ConfigError> {
        let key = "expert_weights_norm";
        match self.get(key)? {
            Some(given) if given.as_bool() != Some(true) => {
                Err(unsupported(format!("`{}` = {}", self.name(key), render(given))))
            }
            _ => Ok(()),
        }
    }
}
