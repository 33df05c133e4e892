//! Ministral 3 and Mistral 4, whose queries grow with their position.

use super::common::{Common, FamilyDefaults, dense, same_window, window};
use super::deepseek::{LATENT_ATTENTION, latent};
use super::mistral_rope::temperature;
use super::{ENDS, EXPERTS, Family, MLP, NORMS, glm, qwen_next};
use crate::config::{ConfigError, FamilyConfig};
use crate::spec::{AttentionExtras, AttentionSpec, ModelSpec};

/// Mistral 4: the tensor names of DeepSeek V3, with stacked experts.
pub(super) const LATENT: Family = Family {
    model_types: &["mistral4"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, LATENT_ATTENTION, MLP, glm::MOE, EXPERTS, qwen_next::STACKED],
    spec: latent,
};

/// Ministral 3: Mistral without a window, whose queries grow with their position.
pub(super) fn ministral(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults {
        eps: 1e-5,
        theta: 10_000.0,
        kv_heads: Some(8),
        head_dim: Some(128),
        rotated: None,
        context: 262_144,
    };
    let common = Common::read(config, &defaults)?;
    let window = window(config, None)?;
    same_window(config, common.layers, window)?;
    let temperature = temperature(config)?;
    let extras = AttentionExtras { temperature, ..common.attention.extras };
    let attention = AttentionSpec { window, extras, ..common.attention.clone() };
    let mlp = dense(config, "intermediate_size", false)?;
    common.model(|_| (attention.clone(), mlp))
}
