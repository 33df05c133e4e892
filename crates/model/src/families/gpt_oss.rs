//! gpt-oss: attention with sinks, windows in every other layer, and experts whose gates and ups
//! alternate in one matrix. Its checkpoints in bf16 stack the experts of a layer and store their
//! matrices as [columns, rows]. GGUF files have gates and ups apart, and rows as rows.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, chosen, width, window, windows};
use super::entries::positive_or;
use super::per_layer::all_but_every;
use super::{ATTENTION, ENDS, Family, NORMS, TensorRule, small, stacked};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::rope;
use crate::spec::{AttentionSpec, Ffn, GateUp, MlpSpec, ModelSpec, MoeSpec, Router};

pub(super) const FAMILY: Family = Family {
    model_types: &["gpt_oss"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, SINKS, MOE],
    spec,
};

const SINKS: &[TensorRule] = &[small(PieceKind::Attention, Role::Sinks, "self_attn.sinks")];

const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "mlp.router.weight"),
    small(PieceKind::Router, Role::RouterBias, "mlp.router.bias"),
    stacked(Role::Gate, "mlp.experts.gate_proj"),
    stacked(Role::GateBias, "mlp.experts.gate_proj_bias"),
    stacked(Role::Up, "mlp.experts.up_proj"),
    stacked(Role::UpBias, "mlp.experts.up_proj_bias"),
    stacked(Role::GateUp, "mlp.experts.gate_up_proj").transposed(),
    stacked(Role::GateUpBias, "mlp.experts.gate_up_proj_bias"),
    stacked(Role::Down, "mlp.experts.down_proj").transposed(),
    stacked(Role::DownBias, "mlp.experts.down_proj_bias"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 150_000.0,
    kv_heads: Some(8),
    head_dim: Some(64),
    rotated: None,
    context: 131_072,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    // Without this entry the class has a default scaling, with the numbers of one published model.
    if rope::given(config)?.is_none() {
        return Err(ConfigError::MissingKey("rope_scaling"));
    }
    let common = Common::read(config, &DEFAULTS)?;
    let window = window(config, Some(128))?;
    let windows = windows(config, window, &all_but_every(2, common.layers))?;
    let bias = config.flag("attention_bias", true)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        sinks: true,
        ..common.attention.clone()
    };
    let alpha = positive_or(config.get("swiglu_alpha"), 1.702)?;
    let limit = positive_or(config.get("swiglu_limit"), 7.0)?;
    let expert = MlpSpec {
        width: width(config, "intermediate_size")?,
        bias: true,
        activation: Activation::Clamped { alpha: alpha as f32, limit: limit as f32 },
        gate_up: if config.is_gguf() { GateUp::Separate } else { GateUp::Interleaved },
    };
    let moe = MoeSpec::of(chosen(config)?, expert, Router::SoftmaxOfChosen);
    let ffn = Ffn::Moe(MoeSpec { router_bias: true, ..moe });
    common.model(|l| (AttentionSpec { window: windows[l], ..attention.clone() }, ffn))
}
