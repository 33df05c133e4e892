//! A further tier of experts: copies that lie outside memory, and are computed there.

use std::fmt;

use serde::Serialize;
use sws_format::PieceId;
use sws_kernels::{Encoding, Matrix};
use sws_model::{ExpertBatch, ExpertExecutor, HeldTensor, Role, SourceError, Weights};

use crate::error::StreamError;
use crate::reads::no_vector;

/// Copies of experts outside memory, for example on a graphics card, with the executor that computes them.
///
/// A tier that fails holds no expert any more. What it was asked for is then read from the drive like any
/// other miss, so no result changes.
pub trait ExpertTier: fmt::Debug + Send {
    /// True if an expert is held.
    fn holds(&self, expert: PieceId) -> bool;

    /// True if another expert may be held.
    fn has_room(&self) -> bool;

    /// Copies an expert, whose bytes are verified. True if it is held afterwards.
    fn promote(&mut self, expert: PieceId, tensors: &[TierTensor<'_>]) -> bool;

    /// Forgets an expert, whose room is free then.
    fn demote(&mut self, expert: PieceId);

    /// The executor of the experts that are held. It returns the experts that it could not compute.
    fn executor(&mut self) -> &mut dyn ExpertExecutor;

    /// Its memory in use, and its state.
    fn usage(&self) -> TierUsage;
}

/// The memory of a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierUsage {
    /// Experts that it holds.
    pub held: u64,
    /// Experts that it has room for.
    pub slots: u64,
    /// Bytes of the experts that it holds.
    pub bytes: u64,
    /// Limit of all its bytes.
    pub limit: u64,
    /// The reason in one sentence why it is not used any more.
    pub failure: Option<String>,
}

/// A tensor of an expert.
#[derive(Clone, Copy, Debug)]
pub struct TierTensor<'a> {
    /// Its role, encoding and shape.
    pub held: HeldTensor,
    /// Its parts; those that its encoding lacks are empty.
    pub parts: [&'a [u8]; Encoding::MOST_PARTS],
}

/// Experts of the tier, as the forward pass sees them: through their executor alone.
pub(super) struct OnTier<'a> {
    pub(super) tier: &'a mut dyn ExpertTier,
    /// Experts that it could not compute.
    pub(super) refused: Vec<u32>,
}

impl Weights for OnTier<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        no_vector(piece, role)
    }

    fn matrix(&self, _: PieceId, _: Role) -> Option<Matrix<'_>> {
        None
    }

    fn executor(&mut self) -> Option<&mut dyn ExpertExecutor> {
        Some(self)
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

impl ExpertExecutor for OnTier<'_> {
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        let refused = self.tier.executor().compute(batch, outputs)?;
        self.refused.extend(&refused);
        Ok(refused)
    }
}
