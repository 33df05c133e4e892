//! The experts that a token used before. They allow forecasts for all layers before the first one
//! has run.

/// Number of rows in a set, in any of which a token may be kept.
const WAYS: usize = 4;

/// Weight of the prior, in counts.
const PRIOR: f32 = 4.0;

/// For the most frequent tokens, the experts that each used most often in each layer.
///
/// A row has room for twice the experts that a token uses, and tokens share sets of four rows. In
/// both, a newcomer lowers the count of the rarest entry by one, and replaces it once that count is
/// used up. Frequent entries therefore survive any number of entries that come only once.
#[derive(Clone, Debug)]
pub(super) struct FrequentTokens {
    layers: usize,
    /// Number of experts per layer in a row.
    slots: usize,
    sets: usize,
    /// The token of each row, plus 1; 0 for none.
    pub(super) ids: Vec<u32>,
    /// Number of times that the token of each row has occurred.
    pub(super) seen: Vec<u16>,
    /// [rows, layers, slots]
    pub(super) experts: Vec<u16>,
    pub(super) counts: Vec<u8>,
}

impl FrequentTokens {
    /// An empty table. `rows` is rounded down to whole sets.
    pub(super) fn new(layers: usize, top_k: usize, rows: usize) -> FrequentTokens {
        let slots = FrequentTokens::slots_for(top_k);
        let sets = rows / WAYS;
        let rows = sets * WAYS;
        let cells = rows * layers * slots;
        FrequentTokens {
            layers,
            slots,
            sets,
            ids: vec![0; rows],
            seen: vec![0; rows],
            experts: vec![0; cells],
            counts: vec![0; cells],
        }
    }

    pub(super) fn row_bytes(layers: usize, top_k: usize) -> usize {
        6 + layers * FrequentTokens::slots_for(top_k) * 3
    }

    fn slots_for(top_k: usize) -> usize {
        2 * top_k
    }

    #[cfg(test)]
    pub(super) fn rows(&self) -> usize {
        self.ids.len()
    }

    fn set(&self, token: u32) -> std::ops::Range<usize> {
        // Neighbouring ids tend to be equally frequent, so they should not share a set.
        let set = (u64::from(token.wrapping_mul(0x9e37_79b9)) * self.sets as u64) >> 32;
        set as usize * WAYS..(set as usize + 1) * WAYS
    }

    /// The row of a token, if there is one.
    pub(super) fn find(&self, token: u32) -> Option<usize> {
        if self.sets == 0 {
            return None;
        }
        self.set(token).find(|&row| self.ids[row] == token.wrapping_add(1))
    }

    /// Counts an occurrence of a token. Returns its row, if it has or gets one.
    pub(super) fn meet(&mut self, token: u32) -> Option<usize> {
        if let Some(row) = self.find(token) {
            if self.seen[row] == u16::from(u8::MAX) {
                self.seen[row] /= 2;
                let cells = self.cells(row);
                for count in &mut self.counts[cells] {
                    *count /= 2;
                }
            }
            self.seen[row] += 1;
            return Some(row);
        }
        if self.sets == 0 {
            return None;
        }
        let row = self.set(token).min_by_key(|&row| self.seen[row])?;
        if self.seen[row] > 0 {
            self.seen[row] -= 1;
            return None;
        }
        self.ids[row] = token.wrapping_add(1);
        self.seen[row] = 1;
        let cells = self.cells(row);
        self.counts[cells].fill(0);
        Some(row)
    }

    /// Copies a row of another table, if there is room for it.
    pub(super) fn put(&mut self, token: u32, seen: u16, experts: &[u16], counts: &[u8]) {
        if self.sets == 0 || self.find(token).is_some() {
            return;
        }
        if let Some(row) = self.set(token).find(|&row| self.ids[row] == 0) {
            self.ids[row] = token.wrapping_add(1);
            self.seen[row] = seen.min(u16::from(u8::MAX));
            let cells = self.cells(row);
            self.experts[cells.clone()].copy_from_slice(experts);
            self.counts[cells].copy_from_slice(counts);
        }
    }

    fn cells(&self, row: usize) -> std::ops::Range<usize> {
        let len = self.layers * self.slots;
        row * len..(row + 1) * len
    }

    /// Counts the experts of a layer that the token of a row has used.
    pub(super) fn note(&mut self, row: usize, layer: usize, experts: &[u32]) {
        let first = self.cells(row).start + layer * self.slots;
        let known = &mut self.experts[first..first + self.slots];
        let counts = &mut self.counts[first..first + self.slots];
        for &expert in experts {
            let expert = expert as u16;
            let known_at = (0..known.len()).find(|&i| counts[i] > 0 && known[i] == expert);
            if let Some(i) = known_at {
                counts[i] = counts[i].saturating_add(1);
                continue;
            }
            let Some(rarest) = (0..known.len()).min_by_key(|&i| counts[i]) else { return };
            if counts[rarest] > 1 {
                counts[rarest] -= 1;
            } else {
                known[rarest] = expert;
                counts[rarest] = 1;
            }
        }
    }

    /// Writes to `chances` the probability that the token of a row uses each expert of a layer.
    /// `prior` is the probability without any counts.
    pub(super) fn chances(&self, row: usize, layer: usize, prior: &[f32], chances: &mut [f32]) {
        let scale = 1.0 / (f32::from(self.seen[row]) + PRIOR);
        for (chance, prior) in chances.iter_mut().zip(prior) {
            *chance = PRIOR * scale * prior;
        }
        let first = self.cells(row).start + layer * self.slots;
        let known = self.experts[first..first + self.slots].iter();
        for (&expert, &count) in known.zip(&self.counts[first..first + self.slots]) {
            if let Some(chance) = chances.get_mut(usize::from(expert)) {
                *chance += scale * f32::from(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_tokens_keep_their_own_experts() {
        let mut tokens = FrequentTokens::new(2, 2, 64);
        for round in 0..200u32 {
            // Two tokens that come every round, and one that comes only once.
            for (token, experts) in [(5, [1, 2]), (6, [3, 0]), (1000 + round, [7, 6])] {
                if let Some(row) = tokens.meet(token) {
                    tokens.note(row, 0, &experts);
                    tokens.note(row, 1, &[experts[1], 4 + round % 3]);
                }
            }
        }
        let prior = [0.25; 8];
        let mut chances = [0.0; 8];
        for (token, experts) in [(5, [1, 2]), (6, [3, 0])] {
            let row = tokens.find(token).unwrap();
            tokens.chances(row, 0, &prior, &mut chances);
            for (expert, &chance) in chances.iter().enumerate() {
                let used = experts.contains(&expert);
                assert!(if used { chance > 0.95 } else { chance < 0.02 }, "{token}: {chances:?}");
            }
            tokens.chances(row, 1, &prior, &mut chances);
            assert!(chances[experts[1]] > 0.95 && chances[experts[0]] < 0.02, "{chances:?}");
            assert!((0.1..0.5).contains(&chances[5]), "{chances:?}");
        }
        assert!(tokens.ids.iter().filter(|&&id| id != 0).count() <= tokens.rows());
        assert_eq!(tokens.find(999_999), None);
    }

    #[test]
    fn table_without_rows_finds_nothing() {
        let mut tokens = FrequentTokens::new(3, 2, 3);
        assert_eq!((tokens.rows(), tokens.meet(1), tokens.find(1)), (0, None, None));
    }
}
