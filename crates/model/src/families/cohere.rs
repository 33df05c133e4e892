//! Cohere's mixture of experts: attention and experts side by side behind one norm, and rotary
//! embeddings in windowed layers only.

use sws_kernels::functional::RopePairs;

use super::common::{Common, FamilyDefaults, absent, chosen, width, window, windows};
use super::entries::{count_or, epsilon_or, positive_or, size_or};
use super::per_layer::all_but_every;
use super::ranked::{RankedLayers, routed, shared};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, glm};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::spec::{
    AttentionSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, Norm, RankedRouter, Renormalise, Router,
    RouterScores,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["cohere2_moe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, glm::MOE, EXPERTS],
    spec,
};

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: Some(128),
    rotated: None,
    context: 8192,
};

/// Dense layers come first, with their own pattern of windows. If that pattern has no windows,
/// these layers have rotary embeddings nevertheless.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    const DENSE: (&str, u64) = ("first_k_dense_replace", 0);
    absent(config, "rope_scaling")?;
    let mut common = Common::read(config, &DEFAULTS)?;
    common.ropes[0].pairs = RopePairs::Interleaved;
    if config.get("rms_norm_eps").is_none() {
        let eps = epsilon_or(config.get("layer_norm_eps"), 1e-5)?;
        common.decoder.norm = Norm::Layer { eps: eps as f32, bias: false };
    }
    common.decoder.residual.parallel = true;
    let logits = positive_or(config.get("logit_scale"), 0.0625)?;
    common.decoder.logit_scale = logits as f32;

    let of_dense = size_or(config.get("prefix_dense_sliding_window_pattern"), 1, MAX_COUNT)?;
    let of_others = size_or(config.get("sliding_window_pattern"), 4, MAX_COUNT)?;
    let first = count_or(config.get(DENSE.0), DENSE.1)? as usize;
    let first = first.min(common.layers);
    let mut windowed = all_but_every(of_dense, first);
    windowed.extend(all_but_every(of_others, common.layers - first));
    let windows = windows(config, window(config, Some(4096))?, &windowed)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, ..common.attention.clone() };
    let wide = match config.get("prefix_dense_intermediate_size") {
        Some(entry) => entry.key,
        None => "intermediate_size",
    };
    let routed = routed(config, DENSE, common.layers)?;
    let layers = RankedLayers::of(config, routed, wide, experts)?;
    common.model(|l| {
        let turns = windows[l].is_some() || (!layers.routed[l] && of_dense == 1);
        let rope = if turns { attention.rope } else { None };
        (AttentionSpec { window: windows[l], rope, ..attention.clone() }, layers.ffn(l))
    })
}

fn experts(config: &FamilyConfig) -> Result<Ffn, ConfigError> {
    let width = width(config, "intermediate_size")?;
    let router = match config.get("expert_selection_fn") {
        None => Router::SoftmaxOfChosen,
        Some(entry) => match entry.word()? {
            "softmax" => Router::SoftmaxOfChosen,
            "sigmoid" => Router::Ranked(RankedRouter {
                scores: RouterScores::SigmoidOfRanks,
                correction: false,
                renormalise: match config.flag("norm_topk_prob", true)? {
                    true => Renormalise::Sum { plus: 0.0 },
                    false => Renormalise::None,
                },
                ..RankedRouter::sigmoid()
            }),
            _ => return Err(config.unsupported(entry, "softmax, sigmoid")),
        },
    };
    let averaged = match config.get("shared_expert_combination_strategy") {
        None => true,
        Some(entry) => match entry.word()? {
            "average" => true,
            "sum" => false,
            _ => return Err(config.unsupported(entry, "average, sum")),
        },
    };
    let mut shared = shared(config, ("num_shared_experts", 0), width)?;
    if let Some(shared) = &mut shared {
        shared.averaged = averaged;
    }
    let expert = MlpSpec::silu(width);
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }))
}
