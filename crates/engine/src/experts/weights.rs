//! Cached experts, as the forward pass sees them.

use sws_cache::PredictiveCache;
use sws_format::PieceId;
use sws_kernels::Matrix;
use sws_model::{Contribution, Inventory, Role, SourceError, Weights};

use super::verifier::Verifier;
use crate::error::StreamError;
use crate::reads::{LoadedSlot, held_tensor, no_vector};
use crate::stand_ins::{ErrorBound, StandIns};

/// The experts in a cache, with stand-ins for absent ones.
pub(super) struct Assembled<'a> {
    pub(super) cache: &'a PredictiveCache<LoadedSlot>,
    pub(super) inventory: &'a Inventory,
    /// Stand-ins in memory. Slots lack the tensors that experts share with them.
    pub(super) stand_ins: &'a StandIns,
    /// True if stand-ins may serve for absent experts.
    pub(super) inexact: bool,
    /// Judges the results of stand-ins; `None` if the results are dropped.
    pub(super) verifier: Option<&'a Verifier>,
    /// Experts whose stand-ins were judged too inaccurate.
    pub(super) refused: Vec<PieceId>,
}

impl<'a> Assembled<'a> {
    /// Serves exact experts only.
    pub(super) fn exact(
        cache: &'a PredictiveCache<LoadedSlot>,
        inventory: &'a Inventory,
        stand_ins: &'a StandIns,
    ) -> Assembled<'a> {
        let inexact = false;
        let verifier = None;
        let refused = Vec::new();
        Assembled { cache, inventory, stand_ins, inexact, verifier, refused }
    }

    fn stand_in(&self, expert: PieceId) -> Option<&'a StandIns> {
        (self.inexact && self.cache.get(expert).is_none()).then_some(self.stand_ins)
    }

    /// Error bound of the stand-in that serves for an expert.
    fn bound(&self, expert: PieceId) -> Option<&'a ErrorBound> {
        self.stand_in(expert)?.bound(expert)
    }
}

/// Stand-ins of all experts.
pub(super) struct StandInWeights<'a>(pub(super) &'a StandIns);

impl Weights for StandInWeights<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        no_vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        self.0.matrix(piece, role)
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

impl Weights for Assembled<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        no_vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        if let Some(stand_ins) = self.stand_in(piece) {
            return stand_ins.matrix(piece, role);
        }
        let held = held_tensor(self.inventory, piece, role)?;
        self.cache.get(piece)?.matrix(held, self.stand_ins)
    }

    fn is_judged(&self, expert: PieceId) -> bool {
        self.verifier.is_some() && self.stand_in(expert).is_some()
    }

    fn judge(&mut self, expert: PieceId, contribution: &Contribution) -> bool {
        let share = match self.bound(expert) {
            Some(bound) => bound.share(contribution),
            None => f64::INFINITY,
        };
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
