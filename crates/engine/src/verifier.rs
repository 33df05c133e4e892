//! Compares what a router has chosen with what is in memory, before anything is computed with it.

/// What is in memory of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Nothing, and nothing is on its way.
    Absent,
    /// A stand-in.
    Inexact,
    /// It is being read: exact as soon as it has arrived.
    Coming,
    /// All of it, every byte verified.
    Exact,
}

/// Why a piece cannot be computed with, now or when what is being read has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// It is not there.
    Absent,
    /// What is there is a stand-in.
    Inexact,
}

/// Whether a piece that is needed has to be fetched.
pub fn detect_miss(presence: Presence) -> Option<Miss> {
    match presence {
        Presence::Absent => Some(Miss::Absent),
        Presence::Inexact => Some(Miss::Inexact),
        Presence::Coming | Presence::Exact => None,
    }
}

/// What the router of a layer really chose.
#[derive(Clone, Copy, Debug)]
pub struct RealPath<'a> {
    /// The number of the layer.
    pub layer: usize,
    /// The experts that any token uses, ascending.
    pub experts: &'a [u32],
}

/// Whether what was assembled is enough for what the router chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that is needed is in memory or on its way.
    Accept,
    /// These experts have to be fetched first.
    Reject {
        /// Of which there is nothing.
        missing: Vec<u32>,
        /// Of which there is a stand-in.
        inexact: Vec<u32>,
    },
}

/// Checks every layer, and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verifier {
    /// Layers that could be computed with what was there or on its way.
    pub accepts: u64,
    /// Layers that could not.
    pub rejects: u64,
    /// Pieces for which layers were rejected.
    pub misses: u64,
}

impl Verifier {
    /// Whether a layer can be computed with what is there. What is fetched because it cannot is
    /// checked in the same way once it has arrived.
    pub fn check(
        &mut self,
        real: RealPath<'_>,
        mut presence: impl FnMut(u32) -> Presence,
    ) -> Verdict {
        let (mut missing, mut inexact) = (Vec::new(), Vec::new());
        for &expert in real.experts {
            match detect_miss(presence(expert)) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_or_inexact_is_a_miss() {
        use Presence::*;
        // What is there of the experts 0, 1 and 2, which experts are missing, which inexact.
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
        assert_eq!(verifier, Verifier { accepts: 2, rejects: 3, misses: 5 });
    }
}
