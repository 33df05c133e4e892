//! The supported families: tables of tensor names, and the interpretation of their configurations.
//! A new family is a new file and a line in [`ALL`].

mod afmoe;
mod bailing;
mod cohere;
mod common;
mod deepseek;
mod deepseek_v4;
mod dense;
mod dots3;
mod entries;
mod ernie;
mod exaone;
mod flint;
mod gemma;
mod gemma4;
mod glm;
mod glm5_next;
mod gpt_oss;
mod granite;
mod hunyuan;
mod hy_v4;
mod inkling;
mod inkling2;
mod inkling2_loop;
mod kimi;
mod kimi_k3;
mod kimi_linear;
mod laguna;
mod lfm2;
mod lfm3;
mod ling;
mod llama4;
mod longcat;
mod mellum;
mod mimo;
mod minimax;
mod minimax_m3;
mod mistral;
mod mistral_large4;
mod mistral_rope;
mod mixtral;
mod muse;
mod nemotron;
mod ngrams;
mod packed;
mod per_layer;
mod phimoe;
mod quantised;
mod qwen4;
mod qwen_moe;
mod qwen_next;
mod ranked;
mod single_layers;
mod sparse;
mod state_space;
mod step;
mod tensor_names;
mod unsupported;

use sws_format::PieceKind;

use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::ModelSpec;

pub(crate) use tensor_names::{Names, names, of};
pub(crate) use unsupported::lacking;
pub use unsupported::{LACKING, Lacking};

pub(crate) use gemma4::layers_with_keys;
pub(crate) use ngrams::{layer_with_table, parts_of_tables};
pub(crate) use packed::packed;
pub(crate) use quantised::{check as check_quantised, has_blocks};

/// Model types that share the same tensor names.
pub(crate) struct Family {
    /// Spellings of the model type in configurations.
    pub(crate) model_types: &'static [&'static str],
    /// Prefix of all tensors except the head, in a language model without a wrapper.
    pub(crate) prefix: &'static str,
    /// The tensors outside layers.
    pub(crate) ends: Ends,
    /// The tensors of a layer, in any order; [`Role`] defines the order in which they are stored.
    pub(crate) layer: &'static [&'static [TensorRule]],
    /// Converts a configuration to a specification.
    pub(crate) spec: fn(&FamilyConfig) -> Result<ModelSpec, ConfigError>,
}

/// The names of the tensors outside layers.
pub(crate) struct Ends {
    /// Name of the embedding, after the prefix.
    pub(crate) embedding: &'static str,
    /// Name of the final norm, after the prefix.
    pub(crate) norm: &'static str,
    /// Name of the head, without a prefix.
    pub(crate) head: &'static str,
    /// Other tensors outside layers, after the prefix. [`Role::HeadBias`] has no prefix.
    pub(crate) others: &'static [(Role, &'static str)],
}

/// The names in most families.
const ENDS: Ends = Ends {
    embedding: "embed_tokens.weight",
    norm: "norm.weight",
    head: "lm_head.weight",
    others: &[],
};

/// The place of one tensor in a layer.
pub(crate) struct TensorRule {
    /// The name after `layers.N.`, or after the prefix alone, with `#` for the number of an expert or of a part of a table, and `@`
    /// for that of a layer within one of the checkpoint.
    pub(crate) name: &'static str,
    pub(crate) target: RuleTarget,
    /// Role of the tensor in its piece.
    pub(crate) role: Role,
    /// True if the tensor may be re-encoded. Routers, norms and biases may not.
    pub(crate) matrix: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum RuleTarget {
    /// A piece of the layer.
    Kind(PieceKind),
    /// A piece of a layer, of a tensor whose name is not among those of layers: it follows the
    /// prefix, and ends with the layer's number, counted from this layer.
    Numbered(PieceKind, u32),
    /// The expert with the number in the name.
    Expert,
    /// The part of a table with the number in the name.
    Part,
    /// All experts, stacked along the first dimension.
    Experts {
        /// True if plain-float matrices of each expert are stored as [columns, rows].
        transposed: bool,
    },
}

const ALL: [&Family; 49] = [
    &dense::FAMILY,
    &afmoe::FAMILY,
    &bailing::FAMILY,
    &cohere::FAMILY,
    &deepseek::LATENT,
    &deepseek::AXK,
    &deepseek::AXK2,
    &deepseek_v4::FAMILY,
    &dots3::FAMILY,
    &gemma::FAMILY,
    &gemma4::FAMILY,
    &glm::FAMILY,
    &glm5_next::FAMILY,
    &granite::FAMILY,
    &granite::HYBRID,
    &ernie::FAMILY,
    &exaone::FAMILY,
    &flint::FAMILY,
    &gpt_oss::FAMILY,
    &hunyuan::V1,
    &hunyuan::V3,
    &hy_v4::FAMILY,
    &inkling::FAMILY,
    &inkling2::FAMILY,
    &inkling2_loop::FAMILY,
    &kimi::FAMILY,
    &laguna::FAMILY,
    &lfm2::FAMILY,
    &lfm3::FAMILY,
    &ling::FAMILY,
    &llama4::FAMILY,
    &longcat::FAMILY,
    &mellum::FAMILY,
    &mimo::FAMILY,
    &minimax::FAMILY,
    &minimax_m3::FAMILY,
    &mistral::LATENT,
    &mistral_large4::FAMILY,
    &mixtral::FAMILY,
    &muse::GLIMMER,
    &muse::SPARK,
    &nemotron::FAMILY,
    &phimoe::FAMILY,
    &qwen_moe::FAMILY,
    &qwen4::FAMILY,
    &qwen_next::NEXT,
    &qwen_next::ROUTED,
    &qwen_next::DENSE,
    &step::FAMILY,
];

/// The model types that are supported.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().flat_map(|family| family.model_types.iter().copied())
}

/// The family of a model type.
pub(crate) fn find(model_type: &str) -> Option<&'static Family> {
    ALL.into_iter().find(|family| family.model_types.contains(&model_type))
}

impl TensorRule {
    /// The same tensor, stored with rows and columns exchanged.
    const fn transposed(self) -> TensorRule {
        TensorRule { target: RuleTarget::Experts { transposed: true }, ..self }
    }
}

impl Family {
    /// True for a tensor outside layers that few families have.
    pub(crate) fn has_outside(&self, role: Role) -> bool {
        self.ends.others.iter().any(|(of, _)| *of == role)
    }

    fn parts(&self) -> u32 {
        let in_parts = self.layer.iter().copied().flatten().any(|rule| rule.name.contains('@'));
        if in_parts { 2 } else { 1 }
    }

    /// The first rule for the tensor with `role` in a piece of this kind.
    pub(crate) fn rule(&self, kind: PieceKind, role: Role) -> Option<&'static TensorRule> {
        self.rules(kind, role).next()
    }

    /// The rules for the tensor with `role` in a piece of this kind. All experts share them.
    fn rules(
        &self,
        kind: PieceKind,
        role: Role,
    ) -> impl Iterator<Item = &'static TensorRule> + use<> {
        let fits = move |rule: &&TensorRule| match (rule.target, kind) {
            (RuleTarget::Expert | RuleTarget::Experts { .. }, kind) => {
                matches!(kind, PieceKind::Expert(_)) && rule.role == role
            }
            (RuleTarget::Part, kind) => matches!(kind, PieceKind::Table(_)) && rule.role == role,
            (RuleTarget::Kind(of) | RuleTarget::Numbered(of, _), kind) => {
                of == kind && rule.role == role
            }
        };
        self.layer.iter().copied().flatten().filter(fits)
    }
}

const fn matrix(kind: PieceKind, role: Role, name: &'static str) -> TensorRule {
    TensorRule { name, target: RuleTarget::Kind(kind), role, matrix: true }
}

const fn small(kind: PieceKind, role: Role, name: &'static str) -> TensorRule {
    TensorRule { name, target: RuleTarget::Kind(kind), role, matrix: false }
}

/// A rule for a tensor of the layers from `first` on, whose name is not among those of layers.
const fn numbered_from(first: u32, kind: PieceKind, role: Role, name: &'static str) -> TensorRule {
    TensorRule { name, target: RuleTarget::Numbered(kind, first), role, matrix: false }
}

const fn expert(role: Role, name: &'static str) -> TensorRule {
    TensorRule { name, target: RuleTarget::Expert, role, matrix: true }
}

/// A rule for tensors that stack one role of all experts of a layer.
const fn stacked(role: Role, name: &'static str) -> TensorRule {
    TensorRule {
        name,
        target: RuleTarget::Experts { transposed: false },
        role,
        matrix: role.is_matrix(),
    }
}

const NORMS: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "input_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "post_attention_layernorm.weight"),
];

/// Grouped-query attention, with the biases and query and key norms that some families have.
const ATTENTION: &[TensorRule] = &[
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

const MLP: &[TensorRule] = &[
    matrix(PieceKind::Mlp, Role::Gate, "mlp.gate_proj.weight"),
    small(PieceKind::Mlp, Role::GateBias, "mlp.gate_proj.bias"),
    matrix(PieceKind::Mlp, Role::Up, "mlp.up_proj.weight"),
    small(PieceKind::Mlp, Role::UpBias, "mlp.up_proj.bias"),
    matrix(PieceKind::Mlp, Role::Down, "mlp.down_proj.weight"),
    small(PieceKind::Mlp, Role::DownBias, "mlp.down_proj.bias"),
];

const EXPERTS: &[TensorRule] = &[
    expert(Role::Gate, "mlp.experts.#.gate_proj.weight"),
    expert(Role::Up, "mlp.experts.#.up_proj.weight"),
    expert(Role::Down, "mlp.experts.#.down_proj.weight"),
];
