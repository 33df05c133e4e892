//! Ministral 3 and Mistral 4, whose queries grow with their position.

use sws_store::Value;

use super::common::{Common, FamilyDefaults, dense, same_window, window};
use super::deepseek::{LATENT_ATTENTION, latent};
use super::{ENDS, EXPERTS, Family, MLP, NORMS, glm, qwen_next};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig};
use crate::rope::{self, Rope};
use crate::spec::{AttentionExtras, AttentionSpec, ModelSpec, Temperature};

/// The names of DeepSeek V3 with stacked experts.
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

/// The growth of queries beyond the context of the first training.
pub(super) fn temperature(config: &FamilyConfig) -> Result<Option<Temperature>, ConfigError> {
    let given = rope_entries(config)?.object()?;
    let positive = |key| {
        let value = given.get(key).filter(|value| !value.is_null());
        value.map(|value| ConfigEntry { key, value }.positive()).transpose()
    };
    // Devstral 2 has no growth.
    if given.get(rope::GROWTH).and_then(Value::as_f64) == Some(0.0) {
        return Ok(None);
    }
    // The classes have no default.
    let scale = positive(rope::GROWTH)?.ok_or(ConfigError::MissingKey(rope::GROWTH))?;
    let key = "original_max_position_embeddings";
    let length = positive(key)?.ok_or(ConfigError::MissingKey(key))?;
    Ok(Some(Temperature { scale, length, first: 0, smooth: false }))
}

/// The entries of rotary embeddings, which have others among them.
fn rope_entries<'a>(config: &FamilyConfig<'a>) -> Result<ConfigEntry<'a>, ConfigError> {
    rope::given(config)?.ok_or(ConfigError::MissingKey("rope_parameters"))
}

/// The rotary embedding of the last part of each head, which configurations may also give as a share
/// of the head.
pub(super) fn rope(
    config: &FamilyConfig,
    (plain, rotated): (usize, usize),
    theta: f64,
    context: usize,
) -> Result<Rope, ConfigError> {
    let given = rope_entries(config)?.object()?;
    let share = given.get("partial_rotary_factor").filter(|value| !value.is_null());
    let Some(value) = share else { return Rope::of(config, rotated, (theta, None), context) };
    let rope = Rope::of(config, plain + rotated, (theta, Some(1.0)), context)?;
    if rope.dim != rotated {
        let entry = ConfigEntry { key: "partial_rotary_factor", value };
        return Err(entry.invalid(format!("where {rotated} elements of a head are rotated")));
    }
    Ok(rope)
}
