//! Granite's mixture of experts: factors of embeddings, scores, branches and logits, and stacked
//! experts whose gates and ups are one matrix.

use sws_store::PieceKind;

use super::common::{Common, Defaults, chosen, same_window, width};
use super::{ATTENTION, ENDS, Family, NORMS, Rule, small, stacked};
use crate::config::{Config, ConfigError, Entry};
use crate::role::Role;
use crate::spec::{AttentionSpec, Ffn, GateUp, MlpSpec, ModelSpec, MoeSpec, Router};

pub(super) const FAMILY: Family = Family {
    model_types: &["granitemoe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MOE],
    spec,
};

const MOE: &[Rule] = &[
    small(PieceKind::Router, Role::Router, "block_sparse_moe.router.layer.weight"),
    stacked(Role::GateUp, "block_sparse_moe.input_linear.weight"),
    stacked(Role::Down, "block_sparse_moe.output_linear.weight"),
];

const DEFAULTS: Defaults = Defaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 2048,
};

fn spec(config: &Config) -> Result<ModelSpec, ConfigError> {
    let factor = |key| config.get(key).map_or(Ok(1.0), Entry::positive);
    let mut common = Common::read(config, &DEFAULTS)?;
    same_window(config, common.layers, None)?;
    common.decoder.embedding_scale = factor("embedding_multiplier")? as f32;
    common.decoder.residual.scale = factor("residual_multiplier")? as f32;
    common.decoder.logit_scale = (1.0 / factor("logits_scaling")?) as f32;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        scale: factor("attention_multiplier")? as f32,
        ..common.attention.clone()
    };
    let (experts, top_k) = chosen(config)?;
    let width = width(config, "intermediate_size")?;
    let expert = MlpSpec { gate_up: GateUp::Halves, ..MlpSpec::silu(width) };
    let router = Router::SoftmaxOfChosen;
    let ffn =
        Ffn::Moe(MoeSpec { experts, top_k, expert, router, router_bias: false, shared: None });
    common.model(|_| (attention.clone(), ffn))
}
