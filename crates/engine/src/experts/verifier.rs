//! Compares a router's choice with the experts in memory, before any of them is computed.

use sws_model::{LayerSpec, ModelSpec, Residual};

use crate::stand_ins::ErrorBound;

/// State of a piece in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Neither resident nor in flight.
    Absent,
    /// Only a stand-in is resident.
    Inexact,
    /// In flight, and exact once it has arrived.
    Coming,
    /// Resident, with every byte verified.
    Exact,
}

/// Reason why a piece has to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The piece is neither resident nor in flight.
    Absent,
    /// Only a stand-in is resident.
    Inexact,
}

/// Returns the reason why a needed piece has to be fetched, or `None` if it is exact or in flight.
pub fn detect_miss(presence: Presence) -> Option<Miss> {
    match presence {
        Presence::Absent => Some(Miss::Absent),
        Presence::Inexact => Some(Miss::Inexact),
        Presence::Coming | Presence::Exact => None,
    }
}

/// The actual choice of a layer's router.
#[derive(Clone, Copy, Debug)]
pub struct RealPath<'a> {
    /// Number of the layer.
    pub layer: usize,
    /// Experts that at least one token uses, ascending.
    pub experts: &'a [u32],
}

/// Result of comparing a router's choice with the experts in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All needed experts are resident or in flight.
    Accept,
    /// These experts have to be fetched first.
    Reject {
        /// Experts that are neither resident nor in flight.
        missing: Vec<u32>,
        /// Experts that have only a stand-in.
        inexact: Vec<u32>,
    },
}

impl Verdict {
    /// Number of experts that have to be fetched.
    pub fn misses(&self) -> usize {
        match self {
            Verdict::Accept => 0,
            Verdict::Reject { missing, inexact } => missing.len() + inexact.len(),
        }
    }
}

/// Required exactness of the experts that are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Exactness {
    /// Only exact experts count.
    #[default]
    Exact,
    /// A stand-in counts if the bound on its error is at most this share of the hidden state's
    /// norm.
    Within(f64),
    /// This many stand-ins count unchecked, then none: shows what would go wrong without the
    /// verifier.
    Unseen(u64),
}

/// A tolerance for a model whose stand-ins have no proven bound on their errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a tolerance needs a bound on the error of stand-ins, which is known for copies of experts gated by silu, and not for the stand-ins of this model; leave --tolerance out"
)]
pub struct NoBound;

impl Exactness {
    /// Checks that the bound on which it relies is proven for all experts of a model.
    pub fn check(self, spec: &ModelSpec) -> Result<(), NoBound> {
        match self {
            Exactness::Within(_) if !spec.layers.iter().all(is_bounded) => Err(NoBound),
            Exactness::Within(_) | Exactness::Exact | Exactness::Unseen(_) => Ok(()),
        }
    }
}

/// True if the bound is proven for the experts of a layer.
fn is_bounded(layer: &LayerSpec) -> bool {
    match layer.moe() {
        None => true,
        // A norm of the experts' sum could enlarge an error.
        Some(moe) => {
            ErrorBound::holds_for(&moe.expert)
                && moe.shared.is_none_or(|shared| !shared.averaged)
                && !moe.weighted_inputs
                && layer.residual == Residual::default()
        }
    }
}

/// Checks every layer, and keeps counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verifier {
    /// Required exactness.
    pub exactness: Exactness,
    /// Layers whose experts were all resident or in flight.
    pub accepts: u64,
    /// Layers with at least one miss.
    pub rejects: u64,
    /// Misses in all layers.
    pub misses: u64,
    /// Stand-ins found in place of experts when a router chose.
    pub offered: u64,
    /// Number of these that were too inaccurate to count.
    pub caught: u64,
}

impl Verifier {
    /// Checks whether all experts that a layer needs are resident or in flight. Pieces fetched
    /// after a rejection are checked in the same way once they have arrived.
    pub fn check(
        &mut self,
        real: RealPath<'_>,
        mut presence: impl FnMut(u32) -> Presence,
    ) -> Verdict {
        let mut missing = Vec::new();
        let mut inexact = Vec::new();
        for &expert in real.experts {
            // Stand-ins are counted whether or not they may count later.
            let presence = presence(expert);
            self.offered += u64::from(presence == Presence::Inexact);
            match detect_miss(presence) {
                None => {}
                Some(Miss::Absent) => missing.push(expert),
                Some(Miss::Inexact) => inexact.push(expert),
            }
        }
        let misses = missing.len() + inexact.len();
        self.misses += misses as u64;
        if misses == 0 {
            self.accepts += 1;
            return Verdict::Accept;
        }
        self.rejects += 1;
        Verdict::Reject { missing, inexact }
    }

    /// Removes from `inexact` and returns the stand-ins whose experts are fetched at once. The
    /// remaining ones may be computed, and are judged then.
    pub fn catch(&mut self, inexact: &mut Vec<u32>) -> Vec<u32> {
        let kept = match &mut self.exactness {
            Exactness::Exact => 0,
            Exactness::Within(_) => inexact.len(),
            Exactness::Unseen(left) => {
                let kept = usize::try_from(*left).unwrap_or(usize::MAX).min(inexact.len());
                *left -= kept as u64;
                kept
            }
        };
        let caught = inexact.split_off(kept);
        self.caught += caught.len() as u64;
        caught
    }

    /// True if a stand-in may count when its error is this share of the hidden state's norm.
    pub fn tolerates(&self, share: f64) -> bool {
        match self.exactness {
            Exactness::Exact => false,
            Exactness::Within(tolerance) => share <= tolerance,
            Exactness::Unseen(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_inexact_pieces_are_misses() {
        use Presence::*;
        // Presence of experts 0, 1 and 2; missing experts; inexact experts.
        let cases: [([Presence; 3], &[u32], &[u32]); 5] = [
            ([Exact, Exact, Exact], &[], &[]),
            ([Exact, Coming, Coming], &[], &[]),
            ([Absent, Exact, Coming], &[0], &[]),
            ([Exact, Inexact, Exact], &[], &[1]),
            ([Absent, Inexact, Absent], &[0, 2], &[1]),
        ];
        let mut verifier = Verifier::default();
        for (present, missing, inexact) in cases {
            let real = RealPath { layer: 0, experts: &[0, 1, 2] };
            let verdict = verifier.check(real, |expert| present[expert as usize]);
            let expected = match (missing, inexact) {
                ([], []) => Verdict::Accept,
                _ => Verdict::Reject { missing: missing.to_vec(), inexact: inexact.to_vec() },
            };
            assert_eq!(verdict, expected, "{present:?}");
        }
        let counts = Verifier { accepts: 2, rejects: 3, misses: 5, offered: 2, ..verifier };
        assert_eq!(verifier, counts);
    }

    #[test]
    fn stand_ins_count_only_as_exactness_allows() {
        use Exactness::*;
        // Exactness, number of three stand-ins that are caught at once, shares that are tolerated.
        let cases = [
            (Exact, 3, [false, false, false, false]),
            (Within(0.1), 0, [true, true, false, false]),
            (Unseen(2), 1, [true, true, true, true]),
            (Unseen(0), 3, [true, true, true, true]),
        ];
        for (exactness, caught, tolerated) in cases {
            let mut verifier = Verifier { exactness, ..Verifier::default() };
            let mut inexact = vec![1, 2, 3];
            let found = verifier.catch(&mut inexact);
            assert_eq!((found.len(), inexact.len()), (caught, 3 - caught), "{exactness:?}");
            assert_eq!(verifier.caught, caught as u64);
            let shares = [0.0, 0.1, 0.11, f64::NAN];
            assert_eq!(shares.map(|share| verifier.tolerates(share)), tolerated, "{exactness:?}");
        }
    }
}
