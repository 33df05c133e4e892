//! Granite's mixtures of experts: factors of embeddings, scores, branches and logits, and stacked
//! experts whose gates and ups are one matrix. Granite 4 has state spaces in most layers, and a
//! shared expert, which is the MLP of its smaller models.

use sws_format::PieceKind;

use super::common::{Common, FamilyDefaults, MAX_WIDTH, chosen, same_window, shared_width, width};
use super::entries::{positive_or, size_or};
use super::ranked::only;
use super::state_space::{BranchKind, StateSpaceKeys, kinds};
use super::{ATTENTION, ENDS, Family, NORMS, TensorRule, expert, matrix, small, stacked};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{
    AttentionSpec, Ffn, GateUp, Mixer, MlpSpec, ModelSpec, MoeSpec, Router, SharedSpec,
    StateSpaceSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["granitemoe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MOE],
    spec,
};

pub(super) const HYBRID: Family = Family {
    model_types: &["granitemoehybrid"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, STATE_SPACE, SHARED, MOE],
    spec: hybrid,
};

const STATE_SPACE: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::MixedGate, "mamba.in_proj.weight"),
    small(PieceKind::Attention, Role::MixedBias, "mamba.in_proj.bias"),
    small(PieceKind::Attention, Role::Conv, "mamba.conv1d.weight"),
    small(PieceKind::Attention, Role::ConvBias, "mamba.conv1d.bias"),
    small(PieceKind::Attention, Role::DecayRate, "mamba.A_log"),
    small(PieceKind::Attention, Role::DecayBias, "mamba.dt_bias"),
    small(PieceKind::Attention, Role::Skip, "mamba.D"),
    small(PieceKind::Attention, Role::MixedNorm, "mamba.norm.weight"),
    matrix(PieceKind::Attention, Role::Output, "mamba.out_proj.weight"),
    small(PieceKind::Attention, Role::OutputBias, "mamba.out_proj.bias"),
];

const SHARED: &[TensorRule] = &[
    matrix(PieceKind::Mlp, Role::GateUp, "shared_mlp.input_linear.weight"),
    matrix(PieceKind::Mlp, Role::Down, "shared_mlp.output_linear.weight"),
    // Names in GGUF files, which store gates and ups separately.
    matrix(PieceKind::Mlp, Role::Gate, "shared_mlp.gate_proj.weight"),
    matrix(PieceKind::Mlp, Role::Up, "shared_mlp.up_proj.weight"),
];

const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "block_sparse_moe.router.layer.weight"),
    stacked(Role::GateUp, "block_sparse_moe.input_linear.weight"),
    stacked(Role::Down, "block_sparse_moe.output_linear.weight"),
    // Names in GGUF files, which store gates and ups separately.
    expert(Role::Gate, "block_sparse_moe.experts.#.gate_proj.weight"),
    expert(Role::Up, "block_sparse_moe.experts.#.up_proj.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 2048,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = Common::read(config, &DEFAULTS)?;
    same_window(config, common.layers, None)?;
    let attention = with_factors(config, &mut common)?;
    let ffn = Ffn::Moe(experts(config, None)?);
    common.model(|_| (attention.clone(), ffn))
}

fn hybrid(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let rotated = match config.get("position_embedding_type") {
        None => false,
        Some(entry) => match entry.word()? {
            "nope" => false,
            "rope" => true,
            _ => return Err(config.unsupported(entry, "nope, rope")),
        },
    };
    let mut common = match rotated {
        true => Common::read(config, &DEFAULTS)?,
        false => Common::never_rotated(config, &DEFAULTS)?,
    };
    only(config, "normalization_function", "rmsnorm")?;
    let mut attention = with_factors(config, &mut common)?;
    attention.rope = rotated.then_some(0);
    let kinds = match kinds(config)? {
        Some(kinds) => kinds,
        None => vec![BranchKind::StateSpace; common.layers],
    };
    if let Some(entry) = config.any(&["layers_block_type", "layer_types"])
        && (kinds.contains(&BranchKind::Mlp) || kinds.contains(&BranchKind::Experts))
    {
        return Err(config.unsupported(entry, "mamba and attention"));
    }
    let space = match kinds.contains(&BranchKind::StateSpace) {
        true => Some(state_space(config, &common)?),
        false => None,
    };
    let mut mlp = halves(shared_width(config, "shared_intermediate_size", 1024)?);
    if config.is_gguf() {
        mlp.gate_up = GateUp::Separate;
    }
    let ffn = match config.experts()? {
        Some(0) => Ffn::Dense(mlp),
        _ => {
            Ffn::Moe(experts(config, Some(SharedSpec { is_mlp: true, ..SharedSpec::added(mlp) }))?)
        }
    };
    common.model(|l| match (kinds[l], space) {
        (BranchKind::StateSpace, Some(space)) => (Mixer::StateSpace(space), ffn),
        _ => (Mixer::Attention(attention.clone()), ffn),
    })
}

fn state_space(config: &FamilyConfig, common: &Common<'_>) -> Result<StateSpaceSpec, ConfigError> {
    let eps = common.decoder.norm.eps();
    let heads = size_or(config.get("mamba_n_heads"), 128, MAX_COUNT)?;
    let expand = size_or(config.get("mamba_expand"), 2, MAX_COUNT)?;
    let width = expand * config.size("hidden_size", MAX_WIDTH)?;
    let head_dim = match config.get("mamba_d_head") {
        Some(entry) if entry.value.as_str() != Some("auto") => entry.size(MAX_HEAD_DIM)?,
        _ => width / heads,
    };
    if heads * head_dim != width {
        let reason = format!("and {heads} heads of {head_dim} elements are not {width}");
        let entry = config.any(&["mamba_n_heads", "mamba_expand", "hidden_size"]);
        return Err(entry.ok_or(ConfigError::MissingKey("mamba_n_heads"))?.invalid(reason));
    }
    let keys = StateSpaceKeys {
        heads: ("mamba_n_heads", 128),
        groups: ("mamba_n_groups", 1),
        key_dim: ("mamba_d_state", 256),
        taps: "mamba_d_conv",
        conv_bias: "mamba_conv_bias",
        bias: "mamba_proj_bias",
    };
    keys.read(config, head_dim, eps)
}

/// Reads the factors, and returns the attention.
fn with_factors(
    config: &FamilyConfig,
    common: &mut Common<'_>,
) -> Result<AttentionSpec, ConfigError> {
    common.decoder.embedding_scale = positive_or(config.get("embedding_multiplier"), 1.0)? as f32;
    common.decoder.residual.scale = positive_or(config.get("residual_multiplier"), 1.0)? as f32;
    common.decoder.logit_scale = (1.0 / positive_or(config.get("logits_scaling"), 1.0)?) as f32;
    let bias = config.flag("attention_bias", false)?;
    Ok(AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        scale: positive_or(config.get("attention_multiplier"), 1.0)? as f32,
        ..common.attention.clone()
    })
}

fn experts(config: &FamilyConfig, shared: Option<SharedSpec>) -> Result<MoeSpec, ConfigError> {
    let expert = halves(width(config, "intermediate_size")?);
    let router = Router::SoftmaxOfChosen;
    Ok(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) })
}

/// An MLP with gates and ups in one matrix.
fn halves(width: usize) -> MlpSpec {
    MlpSpec { gate_up: GateUp::Halves, ..MlpSpec::silu(width) }
}
