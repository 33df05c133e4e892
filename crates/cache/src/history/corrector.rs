//! What corrects the forecasts of a history.

use std::sync::Arc;

use super::Shape;
use crate::correction::{Correction, Corrections, Learner};

/// A correction, and whether it counts.
#[derive(Clone, Debug)]
pub(super) struct Corrector {
    source: Source,
    pub(super) counts: bool,
}

#[derive(Clone, Debug)]
enum Source {
    Fitted(Arc<Correction>),
    Learned(Box<Learner>),
}

impl Corrector {
    /// `None` without a correction, or with one for another shape. What is learned does not count at
    /// first.
    pub(super) fn new(corrections: Corrections, shape: Shape) -> Option<Corrector> {
        let has_experts = shape.experts > 0;
        let (source, counts) = match corrections {
            Corrections::Fitted(correction) if correction.shape() == shape && has_experts => {
                (Source::Fitted(correction), true)
            }
            Corrections::Learned { hidden } if has_experts => {
                (Source::Learned(Box::new(Learner::new(shape, hidden))), false)
            }
            _ => return None,
        };
        Some(Corrector { source, counts })
    }

    pub(super) fn correction(&self) -> &Correction {
        match &self.source {
            Source::Fitted(correction) => correction,
            Source::Learned(learner) => learner.correction(),
        }
    }

    pub(super) fn learner(&self) -> Option<&Learner> {
        match &self.source {
            Source::Fitted(_) => None,
            Source::Learned(learner) => Some(learner),
        }
    }

    pub(super) fn learner_mut(&mut self) -> Option<&mut Learner> {
        match &mut self.source {
            Source::Fitted(_) => None,
            Source::Learned(learner) => Some(learner),
        }
    }

    /// Memory that it adds to a history of so many sequences.
    pub(super) fn bytes(&self, sequences: usize) -> usize {
        let corrections = match &self.source {
            Source::Fitted(correction) => Corrections::Fitted(Arc::clone(correction)),
            Source::Learned(learner) => {
                Corrections::Learned { hidden: learner.correction().hidden() }
            }
        };
        corrections.bytes(self.correction().shape(), sequences)
    }
}
