//! A piece in its slot.

use std::sync::Arc;

use sws_format::PieceId;
use sws_kernels::{Encoding, Matrix};
use sws_model::{HeldTensor, Inventory, Role};
use sws_store::{PieceLayout, Slot};

use crate::stand_ins::StandIns;

/// A slot and the piece in it.
#[derive(Debug)]
pub struct LoadedSlot {
    pub(super) slot: Slot,
    /// None if the slot is empty.
    pub(super) layout: Option<Arc<PieceLayout>>,
}

impl LoadedSlot {
    pub(crate) fn empty(slot: Slot) -> LoadedSlot {
        LoadedSlot { slot, layout: None }
    }

    /// The length of a slot, and the slot, for a cache.
    pub(crate) fn with_len(slot: Slot) -> (usize, LoadedSlot) {
        (slot.len(), LoadedSlot::empty(slot))
    }

    /// A matrix or bias of the piece; `None` if the slot is empty. Tensors shared with a stand-in
    /// are stored only there.
    pub(crate) fn matrix<'s>(
        &'s self,
        held: &HeldTensor,
        stand_ins: &'s StandIns,
    ) -> Option<Matrix<'s>> {
        matrix(self.layout.as_ref()?, &self.slot, held, stand_ins)
    }

    pub(crate) fn parts<'s>(
        &'s self,
        held: &HeldTensor,
        stand_ins: &'s StandIns,
    ) -> Option<[&'s [u8]; Encoding::MOST_PARTS]> {
        parts(self.layout.as_ref()?, &self.slot, held, stand_ins)
    }
}

/// The parts of a tensor within a prefix of its slot, or in its stand-in. Parts that its encoding lacks
/// are empty.
fn parts<'s>(
    layout: &PieceLayout,
    slot: &'s [u8],
    held: &HeldTensor,
    stand_ins: &'s StandIns,
) -> Option<[&'s [u8]; Encoding::MOST_PARTS]> {
    let tensor = layout.tensors().get(held.index)?;
    let mut parts: [&[u8]; Encoding::MOST_PARTS] = [&[]; Encoding::MOST_PARTS];
    for ((number, kind), part) in held.encoding.parts().iter().enumerate().zip(&mut parts) {
        *part = match tensor.parts.get(number)? {
            Some(range) => slot.get(range.clone())?,
            None => stand_ins.part(layout.read().piece(), held.role, kind.suffix)?,
        };
    }
    Some(parts)
}

/// A matrix within a prefix of its slot, or in its stand-in.
pub(super) fn matrix<'s>(
    layout: &PieceLayout,
    slot: &'s [u8],
    held: &HeldTensor,
    stand_ins: &'s StandIns,
) -> Option<Matrix<'s>> {
    let parts = parts(layout, slot, held, stand_ins)?;
    let parts = &parts[..held.encoding.parts().len()];
    Matrix::new(held.encoding, held.rows, held.cols, parts).ok()
}

/// The tensor of a piece that has this role.
pub(crate) fn held_tensor(
    inventory: &Inventory,
    piece: PieceId,
    role: Role,
) -> Option<&HeldTensor> {
    inventory.piece(piece).iter().find(|held| held.role == role)
}

/// Rejects a request for a vector of an expert: its biases are requested as matrices of one row.
pub(crate) fn no_vector(piece: PieceId, role: Role) -> ! {
    panic!("{piece} has no {role:?} as f32: biases of routed experts are served as they are stored")
}
