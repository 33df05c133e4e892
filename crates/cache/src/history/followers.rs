//! Counts of the experts used in the step after a token.

/// Maximum number of rows, and maximum bytes of all rows: a text uses few tokens often. With rows
/// for 500 tokens gpt-oss loses half of the table's gain, with 2000 a tenth.
const MAX_ROWS: usize = 2048;
const MAX_BYTES: usize = 2 << 20;

/// Number of rows in a set, each open to any token of the set, and the maximum number of contenders
/// that a token may outlast.
const WAYS: usize = 4;
const CREDIT: u8 = 3;

/// For the most frequent and most recent tokens, how often each expert of all layers was used one
/// step later.
#[derive(Clone, Debug, Default)]
pub(super) struct Followers {
    /// Experts per layer, and in all layers.
    experts: usize,
    width: usize,
    rows: Vec<TokenCounts>,
    /// [rows, layers, experts]. When a row has been seen 255 times, its counts are halved.
    counts: Vec<u8>,
}

/// A token with its own counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TokenCounts {
    token: Option<u32>,
    /// Steps after the token.
    seen: u8,
    /// Contenders for the row that the token still outlasts.
    credit: u8,
}

impl TokenCounts {
    fn of(token: u32, seen: u8) -> TokenCounts {
        TokenCounts { token: Some(token), seen, credit: 0 }
    }
}

impl Followers {
    pub(super) fn new(layers: usize, experts: usize) -> Followers {
        let width = layers.saturating_mul(experts);
        let rows = Followers::rows_for(width);
        // A row is cleared when it gets a token. Until then it is non-zero, so that all memory is
        // committed at once and the process does not grow from answer to answer.
        let counts = vec![u8::MAX; rows * width];
        Followers { experts, width, rows: vec![TokenCounts::default(); rows], counts }
    }

    pub(super) fn bytes_for(layers: usize, experts: usize) -> usize {
        let width = layers.saturating_mul(experts);
        Followers::rows_for(width) * width.saturating_add(size_of::<TokenCounts>())
    }

    pub(super) fn bytes(&self) -> usize {
        self.counts.len() + size_of_val(&self.rows[..])
    }

    fn rows_for(width: usize) -> usize {
        MAX_BYTES.checked_div(width).unwrap_or(0).min(MAX_ROWS) / WAYS * WAYS
    }

    /// Number of tokens that the table has room for.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The tokens with counts: the token, the number of steps after it, and its counts.
    pub(super) fn known(&self) -> Vec<(u32, u8, &[u8])> {
        let mut known = Vec::new();
        for (row, counts) in self.rows.iter().zip(self.counts.chunks_exact(self.width.max(1))) {
            if let Some(token) = row.token
                && row.seen > 0
            {
                known.push((token, row.seen, counts));
            }
        }
        known
    }

    /// Restores an entry of [`known`](Self::known), if there is a row for it.
    pub(super) fn put(&mut self, token: u32, seen: u8, counts: &[u8]) {
        self.admit(token);
        if let Some(row) = self.find(token) {
            self.rows[row].seen = seen;
            self.counts[row * self.width..][..self.width].copy_from_slice(counts);
        }
    }

    /// Gives a token that is about to be seen a row, unless every row of its set is worth more.
    pub(super) fn admit(&mut self, token: u32) {
        let Some(ways) = self.ways(token) else { return };
        let rows = &mut self.rows[ways.clone()];
        if let Some(row) = rows.iter_mut().find(|row| row.token == Some(token)) {
            row.credit = (row.credit + 1).min(CREDIT);
            return;
        }
        let free = (0..WAYS).filter(|&way| rows[way].token.is_none() || rows[way].credit == 0);
        if let Some(way) = free.min_by_key(|&way| (rows[way].token.is_some(), rows[way].seen)) {
            rows[way] = TokenCounts::of(token, 0);
            self.counts[(ways.start + way) * self.width..][..self.width].fill(0);
        } else {
            for row in rows.iter_mut() {
                row.credit -= 1;
            }
        }
    }

    /// Counts the experts of a layer used one step after a token, each listed once.
    pub(super) fn note(&mut self, token: u32, layer: usize, experts: &[u32]) {
        let Some(row) = self.find(token) else { return };
        let counts = &mut self.counts[row * self.width..][..self.width];
        if layer == 0 {
            let seen = &mut self.rows[row].seen;
            if *seen == u8::MAX {
                *seen /= 2;
                for count in counts.iter_mut() {
                    *count /= 2;
                }
            }
            *seen += 1;
        }
        let counts = &mut counts[layer * self.experts..][..self.experts];
        for &expert in experts {
            let count = &mut counts[expert as usize];
            *count = count.saturating_add(1);
        }
    }

    /// The number of steps after a token, and of those that used each expert of a layer. `None` for
    /// a token without counts.
    pub(super) fn after(&self, token: u32, layer: usize) -> Option<(u8, &[u8])> {
        let row = self.find(token)?;
        let seen = self.rows[row].seen;
        let counts = &self.counts[row * self.width + layer * self.experts..][..self.experts];
        if seen > 0 { Some((seen, counts)) } else { None }
    }

    fn find(&self, token: u32) -> Option<usize> {
        self.ways(token)?.find(|&row| self.rows[row].token == Some(token))
    }

    fn ways(&self, token: u32) -> Option<std::ops::Range<usize>> {
        let sets = self.rows.len() / WAYS;
        let spread = u64::from(token).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let set = (spread as usize).checked_rem(sets)?;
        Some(set * WAYS..(set + 1) * WAYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_tokens_keep_their_rows() {
        // Each row takes half a mebibyte, so there are four.
        let mut followers = Followers::new(16, 1 << 15);
        assert_eq!(followers.rows.len(), WAYS);
        for step in 0u32..200 {
            for token in [1, 2, 3, 1000 + step] {
                followers.admit(token);
                followers.note(token, 0, &[token]);
            }
        }
        for token in [1, 2, 3] {
            let (seen, counts) = followers.after(token, 0).unwrap();
            assert_eq!((seen, counts[token as usize], counts[4]), (200, 200, 0));
            assert!(followers.after(token, 1).is_some_and(|(_, counts)| counts[1] == 0));
        }
        assert_eq!(followers.after(1000, 0), None);
    }

    #[test]
    fn full_counts_are_halved() {
        let mut followers = Followers::new(2, 8);
        followers.admit(7);
        for _ in 0..300 {
            followers.note(7, 0, &[1]);
            followers.note(7, 1, &[2, 3]);
        }
        let of =
            |layer: usize| followers.after(7, layer).map(|(seen, counts)| (seen, counts.to_vec()));
        let half = 127 + 300 - 255;
        assert_eq!(of(0), Some((half as u8, vec![0, half as u8, 0, 0, 0, 0, 0, 0])));
        let (seen, second) = of(1).unwrap();
        // The counts of layer 1 may be off by one: they are halved together with those of layer 0,
        // whose step is counted first.
        assert!(second[2] == second[3] && second[2].abs_diff(seen) <= 1, "{second:?} of {seen}");
    }
}
