//! Qwen's mixtures of experts, and OLMoE, which names its tensors alike. Some layers may be dense.

use sws_store::PieceKind;

use super::{ATTENTION, Family, MLP, NORMS, Rule, expert, matrix, small};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen2_moe", "qwen3_moe", "olmoe"],
    prefix: "model.",
    layer: &[NORMS, ATTENTION, MLP, MOE],
};

const MOE: &[Rule] = &[
    small(PieceKind::Router, "mlp.gate.weight"),
    small(PieceKind::SharedExpert, "mlp.shared_expert_gate.weight"),
    matrix(PieceKind::SharedExpert, "mlp.shared_expert.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, "mlp.shared_expert.up_proj.weight"),
    matrix(PieceKind::SharedExpert, "mlp.shared_expert.down_proj.weight"),
    expert("mlp.experts.#.gate_proj.weight"),
    expert("mlp.experts.#.up_proj.weight"),
    expert("mlp.experts.#.down_proj.weight"),
];
