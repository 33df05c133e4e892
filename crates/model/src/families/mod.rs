//! The supported families: tables of tensor names, and the interpretation of their configurations.
//! A new family is a new file and a line in [`ALL`].

mod common;
mod deepseek;
mod dense;
mod gpt_oss;
mod mixtral;
mod qwen_moe;

use sws_store::PieceKind;

use crate::config::{Config, ConfigError};
use crate::role::Role;
use crate::spec::ModelSpec;

/// Model types that share the same tensor names.
pub(crate) struct Family {
    /// Spellings in configurations.
    pub(crate) model_types: &'static [&'static str],
    /// The prefix of `layers.` and `embed_tokens`.
    pub(crate) prefix: &'static str,
    /// The tensors of a layer, in any order; [`Role`] defines the order in which they are stored.
    pub(crate) layer: &'static [&'static [Rule]],
    /// Converts a configuration to a specification.
    pub(crate) spec: fn(&Config) -> Result<ModelSpec, ConfigError>,
}

/// The place of one tensor in a layer.
pub(crate) struct Rule {
    /// The name after `layers.N.`, with `#` for the number of an expert.
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    /// Role of the tensor in its piece.
    pub(crate) role: Role,
    /// True if it may be re-encoded; routers, norms and biases may not.
    pub(crate) matrix: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// A piece of the layer.
    Kind(PieceKind),
    /// The expert whose number is in the name.
    Expert,
    /// All experts, stacked along the first dimension.
    Experts {
        /// True if the matrix of each is stored as [columns, rows] where it is of plain floats.
        transposed: bool,
    },
}

const ALL: [&Family; 6] = [
    &dense::FAMILY,
    &deepseek::LATENT,
    &deepseek::GLM,
    &gpt_oss::FAMILY,
    &mixtral::FAMILY,
    &qwen_moe::FAMILY,
];

/// The model types that are supported.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().flat_map(|family| family.model_types.iter().copied())
}

/// The family of a configuration.
pub(crate) fn of(config: &Config) -> Result<&'static Family, ConfigError> {
    let known = ALL.into_iter().find(|family| family.model_types.contains(&config.model_type()));
    known.ok_or_else(|| ConfigError::Unsupported {
        model_type: config.model_type().escape_debug().take(100).collect(),
        supported: supported().collect::<Vec<_>>().join(", "),
    })
}

/// The family of a model type.
pub(crate) fn find(model_type: &str) -> Option<&'static Family> {
    ALL.into_iter().find(|family| family.model_types.contains(&model_type))
}

impl Rule {
    /// The same tensor, stored with rows and columns exchanged.
    const fn transposed(self) -> Rule {
        Rule { target: Target::Experts { transposed: true }, ..self }
    }
}

impl Family {
    /// The rule for the tensor with `role` in a piece of this kind; all experts share one.
    pub(crate) fn rule(&self, kind: PieceKind, role: Role) -> Option<&'static Rule> {
        let fits = |rule: &&Rule| match (rule.target, kind) {
            (Target::Expert | Target::Experts { .. }, kind) => {
                matches!(kind, PieceKind::Expert(_)) && rule.role == role
            }
            (Target::Kind(of), kind) => of == kind && rule.role == role,
        };
        self.layer.iter().copied().flatten().find(fits)
    }
}

const fn matrix(kind: PieceKind, role: Role, name: &'static str) -> Rule {
    Rule { name, target: Target::Kind(kind), role, matrix: true }
}

const fn small(kind: PieceKind, role: Role, name: &'static str) -> Rule {
    Rule { name, target: Target::Kind(kind), role, matrix: false }
}

const fn expert(role: Role, name: &'static str) -> Rule {
    Rule { name, target: Target::Expert, role, matrix: true }
}

/// The tensors of one role of all experts of a layer in one.
const fn stacked(role: Role, name: &'static str) -> Rule {
    Rule { name, target: Target::Experts { transposed: false }, role, matrix: role.is_matrix() }
}

const NORMS: &[Rule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "input_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "post_attention_layernorm.weight"),
];

/// Grouped-query attention, with the biases and query and key norms that some families have.
const ATTENTION: &[Rule] = &[
    matrix(PieceKind::Attention, Role::Query, "self_attn.q_proj.weight"),
    small(PieceKind::Attention, Role::QueryBias, "self_attn.q_proj.bias"),
    matrix(PieceKind::Attention, Role::Key, "self_attn.k_proj.weight"),
    small(PieceKind::Attention, Role::KeyBias, "self_attn.k_proj.bias"),
    matrix(PieceKind::Attention, Role::Value, "self_attn.v_proj.weight"),
    small(PieceKind::Attention, Role::ValueBias, "self_attn.v_proj.bias"),
    small(PieceKind::Attention, Role::QueryNorm, "self_attn.q_norm.weight"),
    small(PieceKind::Attention, Role::KeyNorm, "self_attn.k_norm.weight"),
    matrix(PieceKind::Attention, Role::Output, "self_attn.o_proj.weight"),
    small(PieceKind::Attention, Role::OutputBias, "self_attn.o_proj.bias"),
];

const MLP: &[Rule] = &[
    matrix(PieceKind::Mlp, Role::Gate, "mlp.gate_proj.weight"),
    small(PieceKind::Mlp, Role::GateBias, "mlp.gate_proj.bias"),
    matrix(PieceKind::Mlp, Role::Up, "mlp.up_proj.weight"),
    small(PieceKind::Mlp, Role::UpBias, "mlp.up_proj.bias"),
    matrix(PieceKind::Mlp, Role::Down, "mlp.down_proj.weight"),
    small(PieceKind::Mlp, Role::DownBias, "mlp.down_proj.bias"),
];
