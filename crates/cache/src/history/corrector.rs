//! The correction of a history's forecasts: fitted, or being learned.

use std::sync::Arc;

use super::HistoryShape;
use crate::correction::{Correction, Corrections, Learner};

/// A correction, and a flag that is true while it is active.
#[derive(Clone, Debug)]
pub(super) struct Corrector {
    source: CorrectionSource,
    pub(super) counts: bool,
}

#[derive(Clone, Debug)]
enum CorrectionSource {
    Fitted(Arc<Correction>),
    Learned(Box<Learner>),
}

impl Corrector {
    /// `None` without a correction, or with a correction for another shape. A learned correction is
    /// inactive at first.
    pub(super) fn new(corrections: Corrections, shape: HistoryShape) -> Option<Corrector> {
        let has_experts = shape.experts > 0;
        let (source, counts) = match corrections {
            Corrections::Fitted(correction) if correction.shape() == shape && has_experts => {
                (CorrectionSource::Fitted(correction), true)
            }
            Corrections::Learned { hidden } if has_experts => {
                (CorrectionSource::Learned(Box::new(Learner::new(shape, hidden))), false)
            }
            _ => return None,
        };
        Some(Corrector { source, counts })
    }

    pub(super) fn correction(&self) -> &Correction {
        match &self.source {
            CorrectionSource::Fitted(correction) => correction,
            CorrectionSource::Learned(learner) => learner.correction(),
        }
    }

    pub(super) fn learner(&self) -> Option<&Learner> {
        match &self.source {
            CorrectionSource::Fitted(_) => None,
            CorrectionSource::Learned(learner) => Some(learner),
        }
    }

    pub(super) fn learner_mut(&mut self) -> Option<&mut Learner> {
        match &mut self.source {
            CorrectionSource::Fitted(_) => None,
            CorrectionSource::Learned(learner) => Some(learner),
        }
    }

    /// Memory that the correction adds to a history of this many sequences.
    pub(super) fn bytes(&self, sequences: usize) -> usize {
        let corrections = match &self.source {
            CorrectionSource::Fitted(correction) => Corrections::Fitted(Arc::clone(correction)),
            CorrectionSource::Learned(learner) => {
                Corrections::Learned { hidden: learner.correction().hidden() }
            }
        };
        corrections.bytes(self.correction().shape(), sequences)
    }
}
