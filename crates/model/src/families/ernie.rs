//! ERNIE 4.5: experts ranked by softmax and a correction, and rotary pairs of neighbours.

use sws_format::{PieceKind, Value};
use sws_kernels::functional::RopePairs;

use super::common::{Common, FamilyDefaults, chosen, same_window, switched_off, width};
use super::entries::{count_or, positive_or, size_or};
use super::per_layer::every_nth;
use super::ranked::{RankedLayers, shared};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, glm, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{
    Ffn, MlpSpec, ModelSpec, MoeSpec, RankedRouter, Renormalise, Router, RouterScores,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["ernie4_5_moe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, MOE, glm::MOE, EXPERTS],
    spec,
};

/// The first rule for a role is used.
const MOE: &[TensorRule] =
    &[small(PieceKind::Router, Role::RouterCorrection, "mlp.moe_statics.e_score_correction_bias")];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 500_000.0,
    kv_heads: Some(4),
    head_dim: None,
    rotated: None,
    context: 131_072,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = Common::read(config, &DEFAULTS)?;
    common.ropes[0].pairs = RopePairs::Interleaved;
    same_window(config, common.layers, None)?;
    // This would add a bias to the head, too.
    switched_off(config, "use_bias")?;
    let attention = common.attention.clone();
    let routed = routed(config, common.layers)?;
    let layers = RankedLayers::of(config, routed, "intermediate_size", experts)?;
    common.model(|l| (attention.clone(), layers.ffn(l)))
}

/// Flags of layers with experts: every `moe_layer_interval`-th layer between two bounds, where -1
/// means the last layer.
fn routed(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let start = count_or(config.get("moe_layer_start_index"), 1)?;
    let end = match config.get("moe_layer_end_index") {
        Some(entry) if *entry.value != Value::Int(-1) => entry.count(MAX_COUNT)?,
        _ => u64::MAX,
    };
    let interval = size_or(config.get("moe_layer_interval"), 1, MAX_COUNT)?;
    let mut routed = every_nth(interval, layers);
    for (l, has_experts) in (0..).zip(&mut routed) {
        *has_experts &= (start..=end).contains(&l);
    }
    Ok(routed)
}

fn experts(config: &FamilyConfig) -> Result<Ffn, ConfigError> {
    let width = width(config, "moe_intermediate_size")?;
    let least = positive_or(config.get("moe_norm_min"), 1e-12)?;
    let router = Router::Ranked(RankedRouter {
        scores: RouterScores::Softmax,
        correction: true,
        groups: None,
        renormalise: Renormalise::AtLeast(least as f32),
        scale: 1.0,
    });
    let shared = shared(config, ("moe_num_shared_experts", 2), width)?;
    let expert = MlpSpec::silu(width);
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }))
}
