//! Mixtral: w1 is the gate, w3 goes up, w2 goes down.

use sws_store::PieceKind;

use super::{ATTENTION, Family, NORMS, Rule, expert, small};

pub(super) const FAMILY: Family =
    Family { model_types: &["mixtral"], prefix: "model.", layer: &[NORMS, ATTENTION, MOE] };

const MOE: &[Rule] = &[
    small(PieceKind::Router, "block_sparse_moe.gate.weight"),
    expert("block_sparse_moe.experts.#.w1.weight"),
    expert("block_sparse_moe.experts.#.w3.weight"),
    expert("block_sparse_moe.experts.#.w2.weight"),
];
