//! Experts on a device as a tier of the engine's cache.

use sws_engine::{ExpertTier, TierTensor, TierUsage};
use sws_format::PieceId;
use sws_model::ExpertExecutor;

use crate::experts::{ExpertTensor, VramExperts};
use crate::matrix::MatrixBytes;

impl ExpertTier for VramExperts {
    fn holds(&self, expert: PieceId) -> bool {
        VramExperts::holds(self, expert)
    }

    fn has_room(&self) -> bool {
        self.free_slots() > 0
    }

    fn takes(&self, tensors: &[TierTensor<'_>]) -> bool {
        let Some(tensors) = tensors_of(tensors) else { return false };
        VramExperts::takes(self, &tensors)
    }

    fn promote(&mut self, expert: PieceId, tensors: &[TierTensor<'_>]) -> bool {
        let Some(tensors) = tensors_of(tensors) else { return false };
        VramExperts::promote(self, expert, &tensors)
    }

    fn demote(&mut self, expert: PieceId) {
        VramExperts::demote(self, expert);
    }

    fn executor(&mut self) -> &mut dyn ExpertExecutor {
        self
    }

    fn usage(&self) -> TierUsage {
        TierUsage {
            held: self.len() as u64,
            slots: self.slots(),
            bytes: self.held_bytes(),
            limit: self.ledger().limit(),
            failure: self.failure().map(ToString::to_string),
        }
    }
}

fn tensors_of<'a>(tensors: &[TierTensor<'a>]) -> Option<Vec<ExpertTensor<'a>>> {
    let tensors = tensors.iter().map(|TierTensor { held, parts }| {
        let parts = &parts[..held.encoding.parts().len()];
        let bytes = MatrixBytes::new(held.encoding, held.rows, held.cols, parts).ok()?;
        Some(ExpertTensor { role: held.role, bytes })
    });
    tensors.collect()
}
