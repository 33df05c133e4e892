//! Experts in slots, as the forward pass sees them.

use std::sync::Arc;

use sws_kernels::Matrix;
use sws_model::{
    Contribution, Held, Inventory, LoadError, Role, SourceError, Weights, WeightsError,
    first_not_finite,
};
use sws_store::{PieceId, PieceLayout, Slot};

use super::DynamicAssembler;
use crate::error::StreamError;
use crate::stand_ins::StandIns;
use crate::verifier::Verifier;
use sws_cache::PredictiveCache;

/// A slot, and what lies in it.
#[derive(Debug)]
pub struct Loaded {
    pub(super) slot: Slot,
    /// None if nothing does.
    pub(super) layout: Option<Arc<PieceLayout>>,
}

impl Loaded {
    pub(super) fn empty(slot: Slot) -> Loaded {
        Loaded { slot, layout: None }
    }

    fn parts(&self, held: &Held) -> Option<[&[u8]; 3]> {
        parts(self.layout.as_ref()?, &self.slot, held)
    }
}

/// The parts of a tensor in a slot of which there is so much; those that its encoding does not have are
/// empty.
fn parts<'s>(layout: &PieceLayout, slot: &'s [u8], held: &Held) -> Option<[&'s [u8]; 3]> {
    let tensor = layout.tensors().get(held.index)?;
    let mut parts: [&[u8]; 3] = [&[]; 3];
    for (number, part) in parts.iter_mut().take(held.encoding.parts().len()).enumerate() {
        *part = tensor.part(slot, number)?;
    }
    Some(parts)
}

/// A matrix in a slot of which there is so much.
pub(super) fn matrix<'s>(layout: &PieceLayout, slot: &'s [u8], held: &Held) -> Option<Matrix<'s>> {
    let parts = parts(layout, slot, held)?;
    let parts = &parts[..held.encoding.parts().len()];
    Matrix::new(held.encoding, held.rows, held.cols, parts).ok()
}

/// The experts in a cache, and stand-ins where it has none.
pub(super) struct Assembled<'a> {
    pub(super) cache: &'a PredictiveCache<Loaded>,
    pub(super) inventory: &'a Inventory,
    /// None where nothing but the experts themselves will do.
    pub(super) stand_ins: Option<&'a StandIns>,
    /// Who judges what they compute; none if it is forgotten.
    pub(super) verifier: Option<&'a Verifier>,
    /// Those that were judged to be too far off.
    pub(super) refused: Vec<PieceId>,
}

impl<'a> Assembled<'a> {
    /// Nothing but the experts themselves.
    pub(super) fn exact(
        cache: &'a PredictiveCache<Loaded>,
        inventory: &'a Inventory,
    ) -> Assembled<'a> {
        let (stand_ins, verifier, refused) = (None, None, Vec::new());
        Assembled { cache, inventory, stand_ins, verifier, refused }
    }

    fn stand_in(&self, expert: PieceId) -> Option<&'a StandIns> {
        let there = self.cache.get(expert).is_some();
        self.stand_ins.filter(|_| !there)
    }
}

impl Weights for Assembled<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        no_vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        if let Some(stand_ins) = self.stand_in(piece) {
            return stand_ins.matrix(piece, role);
        }
        let loaded = self.cache.get(piece)?;
        let held = self.inventory.piece(piece).iter().find(|held| held.role == role)?;
        matrix(loaded.layout.as_ref()?, &loaded.slot, held)
    }

    fn is_judged(&self, expert: PieceId) -> bool {
        self.verifier.is_some() && self.stand_in(expert).is_some()
    }

    fn judge(&mut self, expert: PieceId, contribution: &Contribution) -> bool {
        let bound = self.stand_in(expert).and_then(|stand_ins| stand_ins.bound(expert));
        let share = bound.map_or(f64::INFINITY, |bound| bound.share(contribution));
        let may_count = self.verifier.is_none_or(|verifier| verifier.tolerates(share));
        if !may_count && !self.refused.contains(&expert) {
            self.refused.push(expert);
        }
        may_count
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        _: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        Err(StreamError::not_resident(piece, role))
    }
}

pub(super) fn no_vector(piece: PieceId, role: Role) -> ! {
    panic!("{piece} has no {role:?}: routed experts are matrices")
}

impl DynamicAssembler {
    /// Looks at every number of a piece that has arrived, the first time it does: checksums see to it
    /// that the bytes are the same every other time.
    pub(super) fn look_at(&mut self, id: PieceId, loaded: &Loaded) -> Result<(), LoadError> {
        if self.looked_at.contains(&id) {
            return Ok(());
        }
        for held in self.inventory.piece(id) {
            let parts = loaded.parts(held).unwrap_or_default();
            let parts = &parts[..held.encoding.parts().len()];
            let tensor = self.store.manifest().piece(id).map(|piece| &piece.tensors[held.index]);
            let name = || tensor.map_or(String::new(), |tensor| tensor.name.clone());
            let matrix = Matrix::new(held.encoding, held.rows, held.cols, parts)
                .map_err(|cause| LoadError::Matrix { name: name(), cause })?;
            if let Some((row, col, value)) = first_not_finite(&matrix, parts) {
                return Err(WeightsError::NotFinite { name: name(), value, row, col }.into());
            }
        }
        self.looked_at.insert(id);
        Ok(())
    }
}
