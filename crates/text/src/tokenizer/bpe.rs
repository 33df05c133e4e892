//! Byte pair encoding with the same ids as the `tokenizers` crate, in a tenth of its memory.

mod file;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use tokenizers::Token;

use super::TokenizerError;
use super::vocabulary::Vocabulary;

/// A model that splits words into characters and merges adjacent tokens, the best pair first.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    vocabulary: Vocabulary,
    merges: MergeRanks,
    /// Token for characters that the vocabulary lacks. Without it they are left out.
    unknown: Option<String>,
    /// True if consecutive unknown characters become a single token.
    fuses_unknown: bool,
    /// Suffix of the last character of a word.
    suffix: String,
    /// Ids of the tokens of single bytes, which spell unknown characters.
    bytes: Option<Box<[Option<u32>; 256]>>,
    /// True if a word that is a token is never split.
    takes_whole_words: bool,
    /// True if the file asks to skip merges at random.
    is_random: bool,
}

/// Merges by pair, best first.
#[derive(Clone, Debug, Default)]
struct MergeRanks {
    /// Ids of the left token, the right token, and the merged token.
    all: Vec<[u32; 3]>,
    /// Ranks, by the hash of the pair.
    ranks: HashTable<u32>,
    hasher: RandomState,
}

/// A token of a word during merging.
#[derive(Clone, Copy)]
struct WordPart {
    id: u32,
    /// Length in bytes; 0 once the part was merged into another.
    len: usize,
    /// Position of the previous part; [`NONE`] for the first.
    before: usize,
    /// Position of the next part; [`NONE`] for the last.
    behind: usize,
}

const NONE: usize = usize::MAX;

impl Bpe {
    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub(super) fn is_random(&self) -> bool {
        self.is_random
    }

    /// Appends the ids of the tokens of a word.
    pub(super) fn ids(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        ids.extend(self.parts(word)?.iter().map(|part| part.id));
        Ok(())
    }

    /// The tokens of a word.
    pub(super) fn tokens(&self, word: &str) -> Result<Vec<Token>, TokenizerError> {
        let mut start = 0;
        let token = |part: &WordPart| {
            let text = self.vocabulary.text(part.id).unwrap_or_default().to_owned();
            let offsets = (start, start + part.len);
            start = offsets.1;
            Token::new(part.id, text, offsets)
        };
        Ok(self.parts(word)?.iter().map(token).collect())
    }

    fn parts(&self, word: &str) -> Result<Vec<WordPart>, TokenizerError> {
        if word.is_empty() {
            return Ok(Vec::new());
        }
        if self.takes_whole_words
            && let Some(id) = self.vocabulary.id(word)
        {
            return Ok(vec![WordPart { id, len: word.len(), before: NONE, behind: NONE }]);
        }
        let mut parts = self.characters(word)?;
        self.merges.apply(&mut parts);
        parts.retain(|part| part.len != 0);
        Ok(parts)
    }

    /// The tokens of the characters of a word.
    fn characters(&self, word: &str) -> Result<Vec<WordPart>, TokenizerError> {
        let mut parts = Vec::with_capacity(word.len());
        let mut add = |id, len| {
            let at = parts.len();
            if let Some(last) = parts.last_mut() {
                let last: &mut WordPart = last;
                last.behind = at;
            }
            parts.push(WordPart { id, len, before: at.wrapping_sub(1), behind: NONE });
        };
        // Id and length of the unknown characters before this one.
        let mut unknown: Option<(u32, usize)> = None;
        let mut characters = word.char_indices().peekable();
        while let Some((start, character)) = characters.next() {
            let end = start + character.len_utf8();
            let text = &word[start..end];
            let len = end - start;
            let ended;
            let text = match characters.peek() {
                None if !self.suffix.is_empty() => {
                    ended = format!("{text}{}", self.suffix);
                    &*ended
                }
                _ => text,
            };
            if let Some(id) = self.vocabulary.id(text) {
                if let Some((id, len)) = unknown.take() {
                    add(id, len);
                }
                add(id, len);
                continue;
            }
            // Unknown characters before this one come after its bytes, as in the published code.
            if let Some(ids) = self.bytes_of(text) {
                ids.for_each(|id| add(id, 1));
                continue;
            }
            let Some(token) = &self.unknown else { continue };
            unknown = match unknown {
                Some((id, before)) if self.fuses_unknown => Some((id, before + len)),
                before => {
                    if let Some((id, len)) = before {
                        add(id, len);
                    }
                    let id = self.vocabulary.id(token).ok_or_else(|| {
                        TokenizerError::Encode(format!(
                            "its vocabulary lacks its unk_token {token}"
                        ))
                    })?;
                    Some((id, len))
                }
            };
        }
        if let Some((id, len)) = unknown {
            add(id, len);
        }
        Ok(parts)
    }

    /// The tokens of a text's bytes, if there is one for each byte.
    fn bytes_of(&self, text: &str) -> Option<impl Iterator<Item = u32>> {
        let table = self.bytes.as_ref()?;
        let ids = text.bytes().map(|byte| table[usize::from(byte)]);
        ids.clone().all(|id| id.is_some()).then(|| ids.flatten())
    }
}

impl MergeRanks {
    /// Stores merges, given in the order of their ranks. If a pair occurs several times, its last
    /// merge counts.
    fn new(mut all: Vec<[u32; 3]>) -> MergeRanks {
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

    /// Rank of the merge of two tokens, and the merged token.
    fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let hash = self.hasher.hash_one((left, right));
        let is_it = |&rank: &u32| self.all[rank as usize][..2] == [left, right];
        self.ranks.find(hash, is_it).map(|&rank| (rank, self.all[rank as usize][2]))
    }

    /// Merges the parts of a word: the pair with the lowest rank first, and on ties the leftmost.
    fn apply(&self, parts: &mut [WordPart]) {
        // Rank, position of the left part, and merged token.
        let mut queue: BinaryHeap<Reverse<(u32, usize, u32)>> =
            BinaryHeap::with_capacity(parts.len());
        for (at, pair) in parts.windows(2).enumerate() {
            if let Some((rank, id)) = self.get(pair[0].id, pair[1].id) {
                queue.push(Reverse((rank, at, id)));
            }
        }
        while let Some(Reverse((_, at, id))) = queue.pop() {
            let WordPart { id: left, len, before, behind: next } = parts[at];
            if len == 0 || next == NONE {
                continue;
            }
            let right = parts[next];
            // An older entry of the queue may refer to parts that have changed since.
            if self.get(left, right.id).is_none_or(|(_, now)| now != id) {
                continue;
            }
            parts[at] = WordPart { id, len: len + right.len, before, behind: right.behind };
            parts[next].len = 0;
            if right.behind != NONE {
                parts[right.behind].before = at;
                if let Some((rank, id)) = self.get(id, parts[right.behind].id) {
                    queue.push(Reverse((rank, at, id)));
                }
            }
            if before != NONE
                && let Some((rank, id)) = self.get(parts[before].id, id)
            {
                queue.push(Reverse((rank, before, id)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
