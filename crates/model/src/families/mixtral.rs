//! Mixtral: w1 is the gate, w3 the up projection, w2 the down projection.

use sws_format::PieceKind;

use super::common::{Common, FamilyDefaults, moe, same_window, window};
use super::{ATTENTION, ENDS, Family, NORMS, TensorRule, expert, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{AttentionSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["mixtral"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MOE],
    spec,
};

pub(super) const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "block_sparse_moe.gate.weight"),
    expert(Role::Gate, "block_sparse_moe.experts.#.w1.weight"),
    expert(Role::Up, "block_sparse_moe.experts.#.w3.weight"),
    expert(Role::Down, "block_sparse_moe.experts.#.w2.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 1e6,
    kv_heads: Some(8),
    head_dim: None,
    rotated: None,
    context: 131_072,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let common = Common::read(config, &DEFAULTS)?;
    let window = window(config, None)?;
    same_window(config, common.layers, window)?;
    let attention = AttentionSpec { window, ..common.attention.clone() };
    let ffn = moe(config, "intermediate_size", true, None)?;
    common.model(|_| (attention.clone(), ffn))
}
