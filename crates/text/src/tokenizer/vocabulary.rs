//! The tokens of a vocabulary, by text and by id.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Tokens with their ids, in some twenty bytes each besides their texts. Two maps of strings, one for
/// each direction, take ten times as much.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Vocabulary {
    /// The texts of all entries, concatenated.
    texts: String,
    /// End of each entry's text in `texts`.
    ends: Vec<u32>,
    /// Id of each entry.
    ids: Vec<u32>,
    /// Entries by the hash of their texts.
    by_text: HashTable<u32>,
    /// Entries by ascending id; empty if that is their order.
    by_id: Vec<u32>,
    hasher: RandomState,
}

impl Vocabulary {
    /// Builds a vocabulary from entries. If a text occurs several times, its last entry counts. If
    /// an id occurs several times, its last text counts.
    pub(in super::super) fn new(entries: Entries) -> Vocabulary {
        let Entries { texts, ends, ids } = entries;
        let mut made = Vocabulary { texts, ends, ids, ..Vocabulary::default() };
        made.texts.shrink_to_fit();
        made.ends.shrink_to_fit();
        made.ids.shrink_to_fit();
        let mut by_text = HashTable::with_capacity(made.ids.len());
        for entry in 0..made.ids.len() as u32 {
            let text = made.entry(entry);
            let is_it = |&other: &u32| made.entry(other) == text;
            let rehash = |&other: &u32| made.hash(made.entry(other));
            match by_text.entry(made.hash(text), is_it, rehash) {
                Entry::Occupied(mut other) => *other.get_mut() = entry,
                Entry::Vacant(place) => {
                    place.insert(entry);
                }
            }
        }
        let is_ordered = by_text.len() == made.ids.len() && made.ids.is_sorted_by(|a, b| a < b);
        if !is_ordered {
            made.by_id = by_text.iter().copied().collect();
            made.by_id.sort_unstable_by_key(|&entry| (made.ids[entry as usize], entry));
        }
        made.by_text = by_text;
        made
    }

    /// The id of a token.
    pub(in super::super) fn id(&self, text: &str) -> Option<u32> {
        self.id_of_bytes(text.as_bytes())
    }

    /// The id of a token whose text has these bytes.
    pub(super) fn id_of_bytes(&self, text: &[u8]) -> Option<u32> {
        let is_it = |&entry: &u32| self.entry(entry) == text;
        let entry = self.by_text.find(self.hash(text), is_it)?;
        Some(self.ids[*entry as usize])
    }

    /// The token of an id.
    pub(in super::super) fn text(&self, id: u32) -> Option<&str> {
        // Most vocabularies have all ids, in order.
        if self.by_id.is_empty() && self.ids.get(id as usize) == Some(&id) {
            return Some(self.text_of(id));
        }
        let behind = match self.by_id.is_empty() {
            true => self.ids.partition_point(|&other| other <= id) as u32,
            false => self.by_id.partition_point(|&entry| self.ids[entry as usize] <= id) as u32,
        };
        let entry = self.nth(behind.checked_sub(1)?);
        (self.ids[entry as usize] == id).then(|| self.text_of(entry))
    }

    /// The largest id.
    pub(in super::super) fn last(&self) -> Option<u32> {
        let last = (self.len() as u32).checked_sub(1)?;
        Some(self.ids[self.nth(last) as usize])
    }

    /// Number of tokens.
    pub(in super::super) fn len(&self) -> usize {
        self.by_text.len()
    }

    /// All tokens with their ids, by ascending id.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        (0..self.len() as u32).map(|place| {
            let entry = self.nth(place);
            (self.text_of(entry), self.ids[entry as usize])
        })
    }

    /// The entry at this place in the order of ids.
    fn nth(&self, place: u32) -> u32 {
        if self.by_id.is_empty() { place } else { self.by_id[place as usize] }
    }

    fn text_of(&self, entry: u32) -> &str {
        &self.texts[self.place(entry)]
    }

    fn entry(&self, entry: u32) -> &[u8] {
        &self.texts.as_bytes()[self.place(entry)]
    }

    /// The place of the text of an entry in `texts`.
    fn place(&self, entry: u32) -> Range<usize> {
        let at = entry as usize;
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        start..self.ends[at] as usize
    }

    fn hash(&self, text: &[u8]) -> u64 {
        self.hasher.hash_one(text)
    }
}

/// Tokens of a vocabulary that is being read.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Entries {
    texts: String,
    ends: Vec<u32>,
    ids: Vec<u32>,
}

impl Entries {
    /// No entries, with room for `tokens` entries whose texts have `bytes` bytes in all.
    pub(in super::super) fn with_capacity(tokens: usize, bytes: usize) -> Entries {
        Entries {
            texts: String::with_capacity(bytes),
            ends: Vec::with_capacity(tokens),
            ids: Vec::with_capacity(tokens),
        }
    }

    /// Adds a token. Fails if all texts together exceed 4 GiB.
    pub(in super::super) fn push(&mut self, text: &str, id: u32) -> Option<()> {
        let end = u32::try_from(self.texts.len() + text.len()).ok()?;
        self.texts.push_str(text);
        self.ends.push(end);
        self.ids.push(id);
        Some(())
    }

    /// Sets the id of the newest token.
    pub(super) fn name(&mut self, id: u32) {
        if let Some(last) = self.ids.last_mut() {
            *last = id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[(&str, u32)]) -> Vocabulary {
        let mut entries = Entries::default();
        for &(text, id) in tokens {
            entries.push(text, id).unwrap();
        }
        Vocabulary::new(entries)
    }

    #[test]
    fn tokens_are_found_by_text_and_by_id() {
        let sorted = [("", 0), ("ab", 3), ("b", 7), ("é", u32::MAX)];
        let dense = [("b", 0), ("", 1), ("é", 2), ("ab", 3)];
        for (tokens, sorted) in [
            ([("b", 7), ("", 0), ("é", u32::MAX), ("ab", 3)], sorted),
            (sorted, sorted),
            (dense, dense),
        ] {
            let found = vocabulary(&tokens);
            assert_eq!(found.iter().collect::<Vec<_>>(), sorted);
            for (text, id) in found.iter() {
                assert_eq!((found.id(text), found.text(id)), (Some(id), Some(text)));
            }
            assert_eq!((found.id("a"), found.text(4), found.text(8)), (None, None, None));
            assert_eq!((found.len(), found.last()), (4, Some(sorted[3].1)));
        }
        assert_eq!(vocabulary(&sorted).text(1), None);
        let none = vocabulary(&[]);
        assert_eq!((none.id(""), none.text(0), none.last(), none.len()), (None, None, None, 0));
    }

    #[test]
    fn the_last_of_two_equal_entries_counts() {
        let found = vocabulary(&[("a", 1), ("b", 2), ("a", 4), ("c", 2)]);
        assert_eq!((found.id("a"), found.text(1), found.text(4)), (Some(4), None, Some("a")));
        assert_eq!((found.id("b"), found.id("c"), found.text(2)), (Some(2), Some(2), Some("c")));
        assert_eq!(found.len(), 3);
        let ordered = vocabulary(&[("a", 1), ("b", 2), ("a", 4)]);
        assert_eq!((ordered.text(1), ordered.text(4), ordered.len()), (None, Some("a"), 2));
    }
}
