//! Which pairs of tokens become one token, and in which order.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::tokenizer::vocabulary::Vocabulary;

/// Maximum size of a merged token, if merges follow from scores.
const MAX_SCORED: usize = 256;
/// Place of a token that no pair becomes.
const NEVER: u32 = u32::MAX;

/// The merges of a vocabulary.
#[derive(Clone, Debug)]
pub(in super::super::super) enum Merges {
    Listed(MergeRanks),
    Scored(MergeScores),
}

impl Merges {
    /// Rank of the merge of two tokens, and the merged token. The lowest rank comes first.
    pub(super) fn get(&self, vocabulary: &Vocabulary, left: u32, right: u32) -> Option<(u64, u32)> {
        match self {
            Merges::Listed(ranks) => ranks.get(left, right),
            Merges::Scored(scores) => scores.get(vocabulary, left, right),
        }
    }
}

/// Merges by pair, best first.
#[derive(Clone, Debug, Default)]
pub(in super::super::super) struct MergeRanks {
    /// Ids of the left token, the right token, and the merged token.
    all: Vec<[u32; 3]>,
    /// Ranks, by the hash of the pair.
    ranks: HashTable<u32>,
    hasher: RandomState,
}

impl MergeRanks {
    /// Stores merges, given in the order of their ranks. If a pair occurs several times, its last
    /// merge counts.
    pub(in super::super::super) fn new(mut all: Vec<[u32; 3]>) -> MergeRanks {
        all.shrink_to_fit();
        let hasher = RandomState::new();
        let mut ranks = HashTable::with_capacity(all.len());
        let pair = |rank: u32| (all[rank as usize][0], all[rank as usize][1]);
        for rank in 0..all.len() as u32 {
            let hash = hasher.hash_one(pair(rank));
            match ranks.find_mut(hash, |&other| pair(other) == pair(rank)) {
                Some(other) => *other = rank,
                None => {
                    ranks.insert_unique(hash, rank, |&other| hasher.hash_one(pair(other)));
                }
            }
        }
        MergeRanks { all, ranks, hasher }
    }

    fn get(&self, left: u32, right: u32) -> Option<(u64, u32)> {
        let hash = self.hasher.hash_one((left, right));
        let is_it = |&rank: &u32| self.all[rank as usize][..2] == [left, right];
        self.ranks.find(hash, is_it).map(|&rank| (u64::from(rank), self.all[rank as usize][2]))
    }
}

/// Merges of a vocabulary with scores, as SentencePiece has them: any two tokens whose texts
/// together are a token, the one with the highest score first. A list of them would be several
/// times as large as the vocabulary.
#[derive(Clone, Debug)]
pub(in super::super::super) struct MergeScores {
    /// Place of each token in the order of scores, by id; [`NEVER`] for tokens that no pair becomes.
    places: Vec<u32>,
}

impl MergeScores {
    /// The merges of a vocabulary whose tokens have these scores, by id. Pairs become only tokens
    /// for which `is_made` is true.
    pub(in super::super::super) fn new(
        scores: &[f64],
        is_made: impl Fn(u32) -> bool,
    ) -> MergeScores {
        let mut order: Vec<u32> = (0..scores.len() as u32).filter(|&id| is_made(id)).collect();
        order.sort_unstable_by(|&a, &b| {
            scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b))
        });
        let mut places = vec![NEVER; scores.len()];
        for (place, &id) in (0..).zip(&order) {
            places[id as usize] = place;
        }
        MergeScores { places }
    }

    fn get(&self, vocabulary: &Vocabulary, left: u32, right: u32) -> Option<(u64, u32)> {
        let mut joined = [0; MAX_SCORED];
        let parts = [vocabulary.text(left)?, vocabulary.text(right)?].map(str::as_bytes);
        let joined = joined.get_mut(..parts[0].len() + parts[1].len())?;
        if parts.contains(&&[][..]) {
            return None;
        }
        let (before, behind) = joined.split_at_mut(parts[0].len());
        before.copy_from_slice(parts[0]);
        behind.copy_from_slice(parts[1]);
        let id = vocabulary.id_of_bytes(joined)?;
        let place = self.places.get(id as usize).filter(|&&place| place != NEVER)?;
        // Of the pairs that become the same token, the one with the lowest ids comes first. The left
        // token determines the right one.
        Some((u64::from(*place) << 32 | u64::from(left), id))
    }
}
