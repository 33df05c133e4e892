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

impl Verdict {
    /// Number of experts that have to be fetched.
    pub fn misses(&self) -> usize {
        match self {
            Verdict::Accept => 0,
            Verdict::Reject { missing, inexact } => missing.len() + inexact.len(),
        }
    }
}

/// How exact what is computed with has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Exactness {
    /// Only experts themselves.
    #[default]
    Exact,
    /// A stand-in may count where it changes the state by less than this share of its norm.
    Within(f64),
    /// So many stand-ins count unseen, then none. What the verifier is for can be shown by this alone.
    Unseen(u64),
}

/// Checks every layer, and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verifier {
    /// How exact it is.
    pub exactness: Exactness,
    /// Layers that could be computed with what was there or on its way.
    pub accepts: u64,
    /// Layers that could not.
    pub rejects: u64,
    /// Pieces for which layers were rejected.
    pub misses: u64,
    /// Stand-ins there were in place of experts, when their layer's router chose.
    pub offered: u64,
    /// How many of them did not count.
    pub caught: u64,
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
            // Counted apart from what is done about it.
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

    /// What is done about stand-ins that were found: takes those that are fetched at once out of
    /// `inexact`. The others may be computed with, and are judged then.
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

    /// Whether a stand-in that changes the state by such a share of its norm may count.
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
        let counts = Verifier { accepts: 2, rejects: 3, misses: 5, offered: 2, ..verifier };
        assert_eq!(verifier, counts);
    }

    #[test]
    fn stand_ins_count_only_where_somebody_said_so() {
        use Exactness::*;
        // Of three stand-ins, how many are caught at once; and whether shares are tolerated.
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
