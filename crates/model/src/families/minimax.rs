//! MiniMax M2: the names of Mixtral, and a router with a correction.

use sws_format::PieceKind;

use super::common::{
    Common, FamilyDefaults, chosen, rotated_share, same_window, switched_on, width,
};
use super::ranked::only;
use super::{ATTENTION, ENDS, Family, NORMS, TensorRule, mixtral, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{AttentionSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, QkNorm, RankedRouter, Router};

pub(super) const FAMILY: Family = Family {
    model_types: &["minimax_m2"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, mixtral::MOE, CORRECTION],
    spec,
};

pub(super) const CORRECTION: &[TensorRule] =
    &[small(PieceKind::Router, Role::RouterCorrection, "block_sparse_moe.e_score_correction_bias")];

const HEAD_DIM: usize = 128;

/// Norms over the whole width of queries and keys. The entry `rotary_dim` is the number of rotated
/// elements of a head, if no share is given.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    for key in ["use_qk_norm", "use_routing_bias"] {
        switched_on(config, key)?;
    }
    only(config, "qk_norm_type", "per_layer")?;
    only(config, "scoring_func", "sigmoid")?;
    if let Some(entry) = config.get("shared_intermediate_size")
        && entry.value.as_u64() != Some(0)
    {
        return Err(config.unsupported(entry, "0"));
    }
    if let Some(entry) = config.get("attn_type_list")
        && entry.list()?.iter().any(|kind| kind.as_u64() != Some(1))
    {
        return Err(config.unsupported(entry, "1 for every layer"));
    }
    let defaults = FamilyDefaults {
        eps: 1e-6,
        theta: 5e6,
        kv_heads: Some(8),
        head_dim: Some(HEAD_DIM),
        rotated: Some(rotated_share(config, HEAD_DIM)?.unwrap_or(1.0)),
        context: 196_608,
    };
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let attention = AttentionSpec { qk_norm: QkNorm::FullWidth, ..common.attention.clone() };
    let router = Router::Ranked(RankedRouter::sigmoid());
    let expert = MlpSpec::silu(width(config, "intermediate_size")?);
    let ffn = MoeSpec::of(chosen(config)?, expert, router);
    common.model(|_| (attention.clone(), Ffn::Moe(ffn)))
}
