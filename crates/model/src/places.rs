//! Pieces of tensors outside layers, and numbers in the names of tensors.

use sws_format::{PieceId, PieceKind};

use crate::role::Role;

/// The piece of a tensor outside layers, and true if it may be re-encoded.
pub(crate) fn outside(role: Role) -> (PieceId, bool) {
    match role {
        Role::Head => (PieceId::LM_HEAD, true),
        Role::Embedding => (PieceId::EMBED, true),
        Role::Table => (PieceId::table(0, 0), true),
        Role::LayerInputs => (PieceId::new(0, PieceKind::LayerInput), true),
        Role::EmbeddingNorm
        | Role::Angles
        | Role::LayerInputsNorm
        | Role::Messages
        | Role::KvMessages => (PieceId::new(0, PieceKind::Norms), false),
        _ => (PieceId::FINAL_NORM, false),
    }
}

/// Numbers have one spelling, without sign or leading zero, so that a tensor has one name.
pub(crate) fn number_below(digits: &str, limit: u32) -> Option<u32> {
    let number: u32 = digits.parse().ok()?;
    (number < limit && number.to_string() == digits).then_some(number)
}
