//! Byte pair encoding with the same ids as the `tokenizers` crate, in a tenth of its memory.

mod file;
mod merges;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tokenizers::Token;

use super::TokenizerError;
use super::vocabulary::Vocabulary;

pub(in super::super) use merges::{MergeRanks, MergeScores, Merges};

/// A model that splits words into characters and merges adjacent tokens, the best pair first.
#[derive(Clone, Debug)]
pub(in super::super) struct Bpe {
    vocabulary: Vocabulary,
    merges: Merges,
    options: BpeOptions,
    /// Ids of the tokens of single bytes, which spell unknown characters.
    bytes: Option<Box<[Option<u32>; 256]>>,
}

/// The options of a model.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct BpeOptions {
    /// Token for characters that the vocabulary lacks. Without it they are left out.
    pub(in super::super) unknown: Option<String>,
    /// True if consecutive unknown characters become a single token.
    pub(in super::super) fuses_unknown: bool,
    /// Suffix of the last character of a word.
    pub(in super::super) suffix: String,
    /// True if tokens of single bytes spell unknown characters.
    pub(in super::super) falls_back_to_bytes: bool,
    /// True if a word that is a token is never split.
    pub(in super::super) takes_whole_words: bool,
    /// True if the file asks to skip merges at random.
    pub(in super::super) is_random: bool,
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
    pub(in super::super) fn new(
        vocabulary: Vocabulary,
        merges: Merges,
        options: BpeOptions,
    ) -> Bpe {
        let byte = |byte: usize| vocabulary.id(&format!("<0x{byte:02X}>"));
        let bytes = options.falls_back_to_bytes.then(|| Box::new(std::array::from_fn(byte)));
        Bpe { vocabulary, merges, options, bytes }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub(super) fn is_random(&self) -> bool {
        self.options.is_random
    }

    /// Appends the ids of the tokens of a word.
    pub(super) fn ids(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        ids.extend(self.parts(word)?.iter().map(|part| part.id));
        Ok(())
    }

    /// The tokens of a word.
    pub(super) fn tokens(&self, word: &str) -> Result<Vec<Token>, TokenizerError> {
        let parts = self.parts(word)?;
        let mut tokens = Vec::with_capacity(parts.len());
        let mut start = 0;
        for part in parts {
            let text = self.vocabulary.text(part.id).unwrap_or_default().to_owned();
            let end = start + part.len;
            tokens.push(Token::new(part.id, text, (start, end)));
            start = end;
        }
        Ok(tokens)
    }

    fn parts(&self, word: &str) -> Result<Vec<WordPart>, TokenizerError> {
        if word.is_empty() {
            return Ok(Vec::new());
        }
        if self.options.takes_whole_words
            && let Some(id) = self.vocabulary.id(word)
        {
            return Ok(vec![WordPart { id, len: word.len(), before: NONE, behind: NONE }]);
        }
        let mut parts = self.characters(word)?;
        self.merge(&mut parts);
        parts.retain(|part| part.len != 0);
        Ok(parts)
    }

    /// The tokens of the characters of a word.
    fn characters(&self, word: &str) -> Result<Vec<WordPart>, TokenizerError> {
        let mut parts = Vec::with_capacity(word.len());
        // Id and length of the unknown characters before this one.
        let mut unknown: Option<(u32, usize)> = None;
        let mut characters = word.char_indices().peekable();
        while let Some((start, character)) = characters.next() {
            let end = start + character.len_utf8();
            let text = &word[start..end];
            let len = end - start;
            let ended;
            let text = match characters.peek() {
                None if !self.options.suffix.is_empty() => {
                    ended = format!("{text}{}", self.options.suffix);
                    &*ended
                }
                _ => text,
            };
            if let Some(id) = self.vocabulary.id(text) {
                if let Some((id, len)) = unknown.take() {
                    add_part(&mut parts, id, len);
                }
                add_part(&mut parts, id, len);
                continue;
            }
            // Unknown characters before this one come after its bytes, as in the published code.
            if let Some(ids) = self.bytes_of(text) {
                for id in ids {
                    add_part(&mut parts, id, 1);
                }
                continue;
            }
            let Some(token) = &self.options.unknown else { continue };
            unknown = match unknown {
                Some((id, before)) if self.options.fuses_unknown => Some((id, before + len)),
                before => {
                    if let Some((id, len)) = before {
                        add_part(&mut parts, id, len);
                    }
                    let Some(id) = self.vocabulary.id(token) else {
                        let why = format!("its vocabulary lacks its unk_token {token}");
                        return Err(TokenizerError::Encode(why));
                    };
                    Some((id, len))
                }
            };
        }
        if let Some((id, len)) = unknown {
            add_part(&mut parts, id, len);
        }
        Ok(parts)
    }

    /// The tokens of a text's bytes, if there is one for each byte.
    fn bytes_of(&self, text: &str) -> Option<impl Iterator<Item = u32>> {
        let table = self.bytes.as_ref()?;
        let ids = text.bytes().map(|byte| table[usize::from(byte)]);
        ids.clone().all(|id| id.is_some()).then(|| ids.flatten())
    }

    /// Merges the parts of a word: the pair with the lowest rank first, and on ties the leftmost.
    fn merge(&self, parts: &mut [WordPart]) {
        // Rank, position of the left part, and merged token.
        let mut queue: BinaryHeap<Reverse<(u64, usize, u32)>> =
            BinaryHeap::with_capacity(parts.len());
        for (at, pair) in parts.windows(2).enumerate() {
            if let Some((rank, id)) = self.merged(pair[0].id, pair[1].id) {
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
            if self.merged(left, right.id).is_none_or(|(_, now)| now != id) {
                continue;
            }
            parts[at] = WordPart { id, len: len + right.len, before, behind: right.behind };
            parts[next].len = 0;
            if right.behind != NONE {
                parts[right.behind].before = at;
                if let Some((rank, id)) = self.merged(id, parts[right.behind].id) {
                    queue.push(Reverse((rank, at, id)));
                }
            }
            if before != NONE
                && let Some((rank, id)) = self.merged(parts[before].id, id)
            {
                queue.push(Reverse((rank, before, id)));
            }
        }
    }

    /// Rank and id of the token that a pair becomes.
    fn merged(&self, left: u32, right: u32) -> Option<(u64, u32)> {
        self.merges.get(&self.vocabulary, left, right)
    }
}

fn add_part(parts: &mut Vec<WordPart>, id: u32, len: usize) {
    let at = parts.len();
    if let Some(last) = parts.last_mut() {
        last.behind = at;
    }
    parts.push(WordPart { id, len, before: at.wrapping_sub(1), behind: NONE });
}

#[cfg(test)]
mod tests;
