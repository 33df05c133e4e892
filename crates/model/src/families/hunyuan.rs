//! Hunyuan A13B, with a shared expert as wide as a routed one, and Hunyuan 3, with the experts of
//! DeepSeek V3.

use sws_format::PieceKind;
use sws_kernels::functional::elementary::pow64;

use super::common::{
    Common, FamilyDefaults, chosen, same_window, switched_off, switched_on, width,
};
use super::entries::{entry_in, positive_or};
use super::ranked::{RANKED, RankedKeys, RankedLayers, sigmoid};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig};
use crate::role::Role;
use crate::rope::{self, INFINITE, Rope};
use crate::spec::{AttentionSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, QkNorm, Router, SharedSpec};

pub(super) const V1: Family = Family {
    model_types: &["hunyuan_v1_moe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, V1_NORMS, ATTENTION, MOE, EXPERTS],
    spec: v1,
};

pub(super) const V3: Family = Family {
    model_types: &["hy_v3"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, CORRECTION, MOE, EXPERTS],
    spec: v3,
};

/// The first rule for a role is used.
const V1_NORMS: &[TensorRule] = &[
    small(PieceKind::Attention, Role::QueryNorm, "self_attn.query_layernorm.weight"),
    small(PieceKind::Attention, Role::KeyNorm, "self_attn.key_layernorm.weight"),
    small(PieceKind::Router, Role::Router, "mlp.gate.wg.weight"),
];

pub(super) const CORRECTION: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "mlp.router.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.expert_bias"),
];

const MOE: &[TensorRule] = &[
    matrix(PieceKind::SharedExpert, Role::Gate, "mlp.shared_mlp.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "mlp.shared_mlp.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "mlp.shared_mlp.down_proj.weight"),
];

/// Hunyuan A13B: norms on heads after rotation. Lists with a number per layer must have equal
/// numbers.
fn v1(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults {
        eps: 1e-5,
        theta: 10_000.0,
        kv_heads: None,
        head_dim: None,
        rotated: None,
        context: 2048,
    };
    switched_on(config, "use_qk_norm")?;
    switched_off(config, "use_cla")?;
    let mut common = Common::unrotated(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let dim = common.attention.head_dim;
    let context = common.decoder.context;
    let rope = match stretched(config, (dim, context), defaults.theta)? {
        Some(rope) => rope,
        None => Rope::of(config, dim, (defaults.theta, defaults.rotated), context)?,
    };
    common.ropes.push(rope);
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerRotatedHead,
        ..common.attention.clone()
    };
    let mlp = MlpSpec::silu(width(config, "intermediate_size")?);
    for key in ["num_shared_expert", "moe_intermediate_size"] {
        let expected = if key == "num_shared_expert" { 1 } else { mlp.width as u64 };
        if let Some(entry) = config.get(key)
            && entry.alike()?.value.as_u64() != Some(expected)
        {
            let supported = "1 shared expert as wide as `intermediate_size`, like the others";
            return Err(config.unsupported(entry, supported));
        }
    }
    let router = Router::Softmax { renormalise: true };
    let ffn = Ffn::Moe(MoeSpec {
        shared: Some(SharedSpec::added(mlp)),
        ..MoeSpec::of(chosen(config)?, mlp, router)
    });
    common.model(|_| (attention.clone(), ffn))
}

/// The rotary embedding that files call dynamic, with an `alpha`. Its base is scaled by `alpha`,
/// whatever the length of the text.
fn stretched(
    config: &FamilyConfig,
    (dim, context): (usize, usize),
    theta: f64,
) -> Result<Option<Rope>, ConfigError> {
    let given = rope::given(config)?.map(ConfigEntry::object).transpose()?;
    let Some(alpha) = entry_in(given, "alpha") else { return Ok(None) };
    let kinds = [entry_in(given, "rope_type"), entry_in(given, "type")];
    let mut kinds = kinds.into_iter().flatten();
    if dim < 4 || !kinds.any(|kind| kind.value.as_str() == Some("dynamic")) {
        return Err(config.unsupported(alpha, "with the type dynamic"));
    }
    // Null is no base, and is refused.
    let of_object = given.and_then(|given| given.get("rope_theta"));
    let of_object = of_object.map(|value| ConfigEntry { key: "rope_theta", value });
    let theta = positive_or(of_object.or(config.get("rope_theta")), theta)?;
    let power = dim as f64 / (dim as f64 - 2.0);
    let base = theta * pow64(alpha.positive()?, power);
    let rope = Rope::plain(base, dim);
    match base.is_finite() && rope.is_finite(context) {
        true => Ok(Some(rope)),
        false => Err(alpha.invalid(INFINITE)),
    }
}

/// Hunyuan 3: experts in every layer except the first.
fn v3(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    const KEYS: RankedKeys = RankedKeys {
        shared: ("num_shared_experts", 1),
        scale: ("router_scaling_factor", 2.826),
        renormalise: ("route_norm", true),
        ..RANKED
    };
    let defaults = FamilyDefaults {
        eps: 1e-5,
        theta: 11_158_840.0,
        kv_heads: Some(8),
        head_dim: Some(128),
        rotated: None,
        context: 131_072,
    };
    let always =
        ["qk_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias", "route_norm"];
    for key in always {
        switched_on(config, key)?;
    }
    for key in ["n_group", "topk_group"] {
        if let Some(entry) = config.get(key)
            && entry.value.as_u64() != Some(1)
        {
            return Err(config.unsupported(entry, "1, experts without groups"));
        }
    }
    switched_off(config, "mlp_bias")?;
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        ..common.attention.clone()
    };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, common.layers)?;
    common.model(|l| (attention.clone(), layers.ffn(l)))
}
