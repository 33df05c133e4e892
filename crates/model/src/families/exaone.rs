//! K-EXAONE: windows in most layers, rotary embeddings only there, and the experts of DeepSeek V3.

use sws_format::{PieceKind, Value};

use super::common::{Common, FamilyDefaults, window, windows};
use super::per_layer::all_but_every;
use super::ranked::{RANKED, RankedKeys, RankedLayers, sigmoid};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, glm, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{AttentionSpec, ModelSpec, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_types: &["exaone_moe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, CORRECTION, glm::MOE, EXPERTS],
    spec,
};

/// The first rule for a role is used.
const CORRECTION: &[TensorRule] =
    &[small(PieceKind::Router, Role::RouterCorrection, "mlp.e_score_correction_bias")];

/// Three of four layers have a window, and only these have rotary embeddings.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    const KEYS: RankedKeys = RankedKeys {
        shared: ("num_shared_experts", 1),
        scale: ("routed_scaling_factor", 2.5),
        ..RANKED
    };
    let defaults = FamilyDefaults {
        eps: 1e-5,
        theta: 10_000.0,
        kv_heads: Some(32),
        head_dim: None,
        rotated: None,
        context: 2048,
    };
    let common = Common::read(config, &defaults)?;
    let window = window(config, Some(4096))?;
    // Without a window the pattern has no effect.
    let has_effect = window.is_some() && config.get("layer_types").is_none();
    let pattern = match config.get("sliding_window_pattern") {
        Some(entry) if has_effect && entry.value.as_u64().is_none() => {
            return Err(config.unsupported(entry, "a number, or a list in `layer_types`"));
        }
        Some(entry) if has_effect => entry.size(MAX_COUNT)?,
        _ => 4,
    };
    let windows = windows(config, window, &all_but_every(pattern, common.layers))?;
    let attention = AttentionSpec { qk_norm: QkNorm::PerHead, ..common.attention.clone() };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, common.layers)?;
    if let Some(entry) = config.get("is_moe_layer") {
        let given = entry.list()?.iter().map(Value::as_bool);
        if !given.eq(layers.routed.iter().copied().map(Some)) {
            return Err(entry.invalid("which differs from `first_k_dense_replace`"));
        }
    }
    common.model(|l| {
        let rope = (window.is_none() || windows[l].is_some()).then_some(0);
        let attention = AttentionSpec { window: windows[l], rope, ..attention.clone() };
        (attention, layers.ffn(l))
    })
}
