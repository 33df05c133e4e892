//! Size of a draft: that of its tables, and their bytes of memory.

use super::learned::{DEPTH, FEATURES};
use super::tokens::FrequentTokens;
use super::{DraftShape, Learned, MAX_TOKENS, Pending};
use crate::blueprint::LayerBlueprint;
use sws_cache::history::{ExpertPairs, History};

/// Sizes of the tables of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftSize {
    /// The rank of corrections.
    pub rank: usize,
    /// Number of tokens whose experts are remembered.
    pub tokens: usize,
    /// Largest distance, in layers, at which experts used together are counted.
    pub distances: usize,
}

impl DraftSize {
    /// The best size that fits into `bytes`. Counts of experts used together come first, then a
    /// correction of rank `rank`, then tokens, up to `vocab` of them. `None` if not even a history
    /// fits.
    pub fn within(
        bytes: usize,
        shape: &DraftShape,
        rank: usize,
        vocab: usize,
    ) -> Option<DraftSize> {
        let mut size = DraftSize { rank: 0, tokens: 0, distances: 0 };
        if size.bytes(shape) > bytes {
            return None;
        }
        for distances in (1..=DEPTH).rev() {
            let counted = DraftSize { distances, ..size };
            if counted.bytes(shape) <= bytes {
                size = counted;
                break;
            }
        }
        let corrected = DraftSize { rank, ..size };
        if corrected.bytes(shape) <= bytes {
            size = corrected;
        }
        let row = FrequentTokens::row_bytes(shape.layers.len(), shape.top_k);
        size.tokens = ((bytes - size.bytes(shape)) / row).min(vocab.next_multiple_of(4));
        Some(size)
    }

    /// Bytes of memory of a draft of this size.
    pub fn bytes(&self, shape: &DraftShape) -> usize {
        let places = shape.layers.len();
        let experts = shape.experts;
        let known = History::bytes_for(shape.history(), shape.sequences)
            + places * (experts + 1) * 4
            + places * self.distances * ExpertPairs::bytes_for(experts)
            + self.tokens * FrequentTokens::row_bytes(places, shape.top_k);
        let pending = size_of::<Pending>() + 4 * (experts * (FEATURES + 1) + self.rank + 1);
        let pass = 4 * places * 2 * MAX_TOKENS * experts + (DEPTH + 1) * (DEPTH + 1) * pending;
        let said = places * (size_of::<LayerBlueprint>() + 8 * experts);
        let scratch = 4 * (MAX_TOKENS + 4) * experts + 4 * (shape.hidden + self.rank + 1);
        known + Learned::bytes_for(shape, self.rank) + pass + said + scratch
    }
}
