//! Kimi Linear and Kimi K3, which have one model type.

use super::common::is_kimi_k3;
use super::deepseek::LATENT_ATTENTION;
use super::kimi_linear::{CORRECTION, DELTA, SHARED};
use super::{ENDS, Ends, Family, MLP, NORMS, kimi_k3, kimi_linear, mixtral};
use crate::config::{ConfigError, FamilyConfig};
use crate::spec::ModelSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["kimi_linear"],
    prefix: "model.",
    ends: Ends { others: kimi_k3::OUTSIDE, ..ENDS },
    layer: &[NORMS, DELTA, LATENT_ATTENTION, MLP, mixtral::MOE, CORRECTION, SHARED, kimi_k3::LAYER],
    spec,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    match is_kimi_k3(config) {
        true => kimi_k3::spec(config),
        false => kimi_linear::spec(config),
    }
}
