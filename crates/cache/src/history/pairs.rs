//! Counts of the experts that follow others.

use super::PRIOR;

/// Counts of how often the experts of one step were followed by those of a later one.
#[derive(Clone, Debug)]
pub struct ExpertPairs {
    /// Steps with expert `a` that had a successor.
    pub seen: Vec<u16>,
    /// By `a`, then by the expert that followed.
    ///
    /// A byte is enough: when a count is full, all counts of `a` are halved. The table then adapts
    /// to the text, and is small compared with the weights of a single expert.
    pub followed: Vec<u8>,
}

impl ExpertPairs {
    /// An empty table.
    pub fn new(experts: usize) -> ExpertPairs {
        ExpertPairs { seen: vec![0; experts], followed: vec![0; experts * experts] }
    }

    /// Memory of a table.
    pub fn bytes_for(experts: usize) -> usize {
        size_of::<ExpertPairs>() + experts * (experts + size_of::<u16>())
    }

    /// Records that the experts `after` followed `before`.
    pub fn note(&mut self, before: usize, after: &[u32]) {
        let experts = self.seen.len();
        let row = &mut self.followed[before * experts..][..experts];
        let full = self.seen[before] == u16::MAX
            || after.iter().any(|&expert| row[expert as usize] == u8::MAX);
        if full {
            for count in row.iter_mut() {
                *count /= 2;
            }
            self.seen[before] /= 2;
        }
        self.seen[before] += 1;
        for &expert in after {
            row[expert as usize] += 1;
        }
    }

    /// Writes to `chances` the probability of each expert after those of `last`. `prior` is the
    /// probability without any counts.
    pub fn chances(&self, last: &[u32], prior: &[f32], chances: &mut [f32]) {
        let experts = self.seen.len();
        let share = 1.0 / last.len() as f32;
        let mut rest = 0.0;
        chances.fill(0.0);
        for &before in last {
            let before = before as usize;
            let weight = share / (f32::from(self.seen[before]) + PRIOR);
            rest += PRIOR * weight;
            let row = &self.followed[before * experts..][..experts];
            for (chance, &count) in chances.iter_mut().zip(row) {
                *chance += weight * f32::from(count);
            }
        }
        for (chance, prior) in chances.iter_mut().zip(prior) {
            *chance += rest * prior;
        }
    }
}
