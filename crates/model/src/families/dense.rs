//! Decoders without experts.

use super::{ATTENTION, Family, MLP, NORMS};

pub(super) const FAMILY: Family = Family {
    model_types: &["llama", "mistral", "qwen2", "qwen3"],
    prefix: "model.",
    layer: &[NORMS, ATTENTION, MLP],
};
