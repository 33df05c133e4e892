//! How each family names its tensors, as tables: a new family is a new file and a line in [`ALL`].

mod dense;
mod mixtral;
mod qwen;

use sws_store::PieceKind;

/// Families whose tensors have the same names.
pub(crate) struct Family {
    /// As `config.json` spells them.
    pub(crate) model_types: &'static [&'static str],
    /// What stands before `layers.` and `embed_tokens`.
    pub(crate) prefix: &'static str,
    /// The tensors of a layer. Within a piece they are stored in the order of this table, which is
    /// the order of computing.
    pub(crate) layer: &'static [&'static [Rule]],
}

/// Where one tensor of a layer belongs.
pub(crate) struct Rule {
    /// The name behind `layers.N.`, with `#` for the number of an expert.
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    /// Whether it may be re-encoded: routers, norms and biases may not.
    pub(crate) matrix: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// A piece of the layer.
    Kind(PieceKind),
    /// The expert in the name.
    Expert,
    /// All experts, stacked along the first dimension.
    #[expect(dead_code, reason = "published by families that are not in the table yet")]
    Experts,
}

const ALL: [&Family; 3] = [&dense::FAMILY, &mixtral::FAMILY, &qwen::FAMILY];

/// The model types that are supported.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().flat_map(|family| family.model_types.iter().copied())
}

pub(crate) fn find(model_type: &str) -> Option<&'static Family> {
    ALL.into_iter().find(|family| family.model_types.contains(&model_type))
}

const fn matrix(kind: PieceKind, name: &'static str) -> Rule {
    Rule { name, target: Target::Kind(kind), matrix: true }
}

const fn small(kind: PieceKind, name: &'static str) -> Rule {
    Rule { name, target: Target::Kind(kind), matrix: false }
}

const fn expert(name: &'static str) -> Rule {
    Rule { name, target: Target::Expert, matrix: true }
}

const NORMS: &[Rule] = &[
    small(PieceKind::Norms, "input_layernorm.weight"),
    small(PieceKind::Norms, "post_attention_layernorm.weight"),
];

/// Grouped heads, with the biases and the norms of queries and keys that some families have.
const ATTENTION: &[Rule] = &[
    matrix(PieceKind::Attention, "self_attn.q_proj.weight"),
    small(PieceKind::Attention, "self_attn.q_proj.bias"),
    matrix(PieceKind::Attention, "self_attn.k_proj.weight"),
    small(PieceKind::Attention, "self_attn.k_proj.bias"),
    matrix(PieceKind::Attention, "self_attn.v_proj.weight"),
    small(PieceKind::Attention, "self_attn.v_proj.bias"),
    small(PieceKind::Attention, "self_attn.q_norm.weight"),
    small(PieceKind::Attention, "self_attn.k_norm.weight"),
    matrix(PieceKind::Attention, "self_attn.o_proj.weight"),
    small(PieceKind::Attention, "self_attn.o_proj.bias"),
];

const MLP: &[Rule] = &[
    matrix(PieceKind::Mlp, "mlp.gate_proj.weight"),
    small(PieceKind::Mlp, "mlp.gate_proj.bias"),
    matrix(PieceKind::Mlp, "mlp.up_proj.weight"),
    small(PieceKind::Mlp, "mlp.up_proj.bias"),
    matrix(PieceKind::Mlp, "mlp.down_proj.weight"),
    small(PieceKind::Mlp, "mlp.down_proj.bias"),
];
