//! Nemotron 3: layers of one branch each, which is a state space, attention without rotary
//! embedding, an MLP or experts. MLPs have no gates.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, MAX_WIDTH, chosen, switched_off, width};
use super::entries::{epsilon_or, optional_size, size_or};
use super::ranked::{RANKED, only, sigmoid};
use super::state_space::{BranchKind, StateSpaceKeys, check_count, kinds};
use super::{ENDS, Ends, Family, TensorRule, expert, matrix, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{
    AttentionSpec, Ffn, GateUp, Mixer, MlpSpec, ModelSpec, MoeSpec, Norm, Router, SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["nemotron_h"],
    prefix: "backbone.",
    ends: Ends { embedding: "embeddings.weight", norm: "norm_f.weight", ..ENDS },
    layer: &[LAYER],
    spec,
};

const LAYER: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "norm.weight"),
    // Layers without a mixer use the same tensor in another role.
    small(PieceKind::Norms, Role::FfnNorm, "norm.weight"),
    matrix(PieceKind::Attention, Role::Query, "mixer.q_proj.weight"),
    matrix(PieceKind::Attention, Role::Key, "mixer.k_proj.weight"),
    matrix(PieceKind::Attention, Role::Value, "mixer.v_proj.weight"),
    matrix(PieceKind::Attention, Role::Output, "mixer.o_proj.weight"),
    matrix(PieceKind::Attention, Role::MixedGate, "mixer.in_proj.weight"),
    small(PieceKind::Attention, Role::MixedBias, "mixer.in_proj.bias"),
    small(PieceKind::Attention, Role::Conv, "mixer.conv1d.weight"),
    small(PieceKind::Attention, Role::ConvBias, "mixer.conv1d.bias"),
    small(PieceKind::Attention, Role::DecayRate, "mixer.A_log"),
    small(PieceKind::Attention, Role::DecayBias, "mixer.dt_bias"),
    small(PieceKind::Attention, Role::Skip, "mixer.D"),
    small(PieceKind::Attention, Role::MixedNorm, "mixer.norm.weight"),
    matrix(PieceKind::Attention, Role::Output, "mixer.out_proj.weight"),
    small(PieceKind::Attention, Role::OutputBias, "mixer.out_proj.bias"),
    matrix(PieceKind::Mlp, Role::Up, "mixer.up_proj.weight"),
    matrix(PieceKind::Mlp, Role::Down, "mixer.down_proj.weight"),
    small(PieceKind::Router, Role::Router, "mixer.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mixer.gate.e_score_correction_bias"),
    matrix(PieceKind::SharedExpert, Role::Up, "mixer.shared_experts.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "mixer.shared_experts.down_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::ExpertsDown, "mixer.fc1_latent_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::ExpertsUp, "mixer.fc2_latent_proj.weight"),
    expert(Role::Up, "mixer.experts.#.up_proj.weight"),
    expert(Role::Down, "mixer.experts.#.down_proj.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 10_000.0,
    kv_heads: Some(8),
    head_dim: Some(128),
    rotated: None,
    context: 4096,
};

const STATE_SPACE: StateSpaceKeys = StateSpaceKeys {
    heads: ("mamba_num_heads", 128),
    groups: ("n_groups", 8),
    key_dim: ("ssm_state_size", 128),
    taps: "conv_kernel",
    conv_bias: "use_conv_bias",
    bias: "use_bias",
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = Common::never_rotated(config, &DEFAULTS)?;
    for key in ["attention_bias", "mlp_bias", "mamba_proj_bias"] {
        switched_off(config, key)?;
    }
    only(config, "mlp_hidden_act", "relu2")?;
    only(config, "mamba_hidden_act", "silu")?;
    if let Some(entry) = config.get("sliding_window") {
        return Err(config.unsupported(entry, "null"));
    }
    let eps = epsilon_or(config.get("layer_norm_epsilon"), 1e-5)? as f32;
    common.decoder.norm = Norm::Rms { eps, one_plus: false };
    let attention = AttentionSpec { rope: None, ..common.attention.clone() };
    let kinds = match kinds(config)? {
        Some(kinds) => kinds,
        None => by_letters(config)?,
    };
    let head_dim = size_or(config.get("mamba_head_dim"), 64, MAX_HEAD_DIM)?;
    let space = match kinds.contains(&BranchKind::StateSpace) {
        true => Some(STATE_SPACE.read(config, head_dim, eps)?),
        false => None,
    };
    let mlp = match kinds.contains(&BranchKind::Mlp) {
        true => Some(ups(width(config, "intermediate_size")?)),
        false => None,
    };
    let experts = match kinds.contains(&BranchKind::Experts) {
        true => Some(experts(config)?),
        false => None,
    };
    common.model(|l| match kinds[l] {
        BranchKind::StateSpace => (space.map_or(Mixer::None, Mixer::StateSpace), Ffn::None),
        BranchKind::Attention => (Mixer::Attention(attention.clone()), Ffn::None),
        BranchKind::Mlp => (Mixer::None, mlp.map_or(Ffn::None, Ffn::Dense)),
        BranchKind::Experts => (Mixer::None, experts.map_or(Ffn::None, Ffn::Moe)),
    })
}

/// The kinds of all layers from `hybrid_override_pattern`, one letter per layer.
fn by_letters(config: &FamilyConfig) -> Result<Vec<BranchKind>, ConfigError> {
    let entry = config.need("hybrid_override_pattern")?;
    let mut kinds = Vec::new();
    for letter in entry.word()?.chars() {
        kinds.push(match letter {
            'M' => BranchKind::StateSpace,
            '*' => BranchKind::Attention,
            '-' => BranchKind::Mlp,
            'E' => BranchKind::Experts,
            _ => return Err(config.unsupported(entry, "M, E, * and -")),
        });
    }
    check_count(entry, kinds.len(), config.layers()?)?;
    Ok(kinds)
}

/// down(relu(up(x))²).
fn ups(width: usize) -> MlpSpec {
    let activation = Activation::ReluSquared;
    let gate_up = GateUp::Ups;
    MlpSpec { activation, gate_up, ..MlpSpec::silu(width) }
}

/// The experts of DeepSeek V3 without gates, beside a shared expert with a width of its own.
fn experts(config: &FamilyConfig) -> Result<MoeSpec, ConfigError> {
    if let Some(entry) = config.get("n_shared_experts")
        && entry.value.as_u64() != Some(1)
    {
        return Err(config.unsupported(entry, "1"));
    }
    let latent = optional_size(config.get("moe_latent_size"), MAX_WIDTH)?;
    if let Some(entry) = config.get("moe_latent_size")
        && latent > Some(config.size("hidden_size", MAX_WIDTH)?)
    {
        return Err(entry.invalid("which is more than the elements of the hidden state"));
    }
    let key = "moe_shared_expert_intermediate_size";
    let shared = size_or(config.get(key), 7688, MAX_WIDTH)?;
    let expert = ups(width(config, "moe_intermediate_size")?);
    let router = Router::Ranked(sigmoid(config, &RANKED)?);
    let shared = Some(SharedSpec::added(ups(shared)));
    Ok(MoeSpec { shared, latent, ..MoeSpec::of(chosen(config)?, expert, router) })
}
