//! The tokens of a vocabulary, by text and by id.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

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
    /// Entries by ascending id.
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
            let hash = made.hasher.hash_one(text);
            let found = by_text.find_mut(hash, |&other| made.entry(other) == text);
            match found {
                Some(other) => *other = entry,
                None => {
                    let rehash = |&other: &u32| made.hasher.hash_one(made.entry(other));
                    by_text.insert_unique(hash, entry, rehash);
                }
            }
        }
        made.by_id = by_text.iter().copied().collect();
        made.by_id.sort_unstable_by_key(|&entry| (made.ids[entry as usize], entry));
        made.by_text = by_text;
        made
    }

    /// The id of a token.
    pub(in super::super) fn id(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        let entry = self.by_text.find(hash, |&entry| self.entry(entry) == text)?;
        Some(self.ids[*entry as usize])
    }

    /// The token of an id.
    pub(in super::super) fn text(&self, id: u32) -> Option<&str> {
        let behind = self.by_id.partition_point(|&entry| self.ids[entry as usize] <= id);
        let entry = self.by_id[..behind].last()?;
        (self.ids[*entry as usize] == id).then(|| self.entry(*entry))
    }

    /// The largest id.
    pub(in super::super) fn last(&self) -> Option<u32> {
        self.by_id.last().map(|&entry| self.ids[entry as usize])
    }

    /// Number of tokens.
    pub(in super::super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All tokens with their ids, by ascending id.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.by_id.iter().map(|&entry| (self.entry(entry), self.ids[entry as usize]))
    }

    fn entry(&self, entry: u32) -> &str {
        let at = entry as usize;
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.texts[start..self.ends[at] as usize]
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
        let found = vocabulary(&[("b", 7), ("", 0), ("é", u32::MAX), ("ab", 3)]);
        assert_eq!(
            found.iter().collect::<Vec<_>>(),
            [("", 0), ("ab", 3), ("b", 7), ("é", u32::MAX)]
        );
        for (text, id) in found.iter() {
            assert_eq!((found.id(text), found.text(id)), (Some(id), Some(text)));
        }
        assert_eq!((found.id("a"), found.text(1), found.text(8)), (None, None, None));
        assert_eq!((found.len(), found.last()), (4, Some(u32::MAX)));
        let none = vocabulary(&[]);
        assert_eq!((none.id(""), none.text(0), none.last(), none.len()), (None, None, None, 0));
    }

    #[test]
    fn the_last_of_two_equal_entries_counts() {
        let found = vocabulary(&[("a", 1), ("b", 2), ("a", 4), ("c", 2)]);
        assert_eq!((found.id("a"), found.text(1), found.text(4)), (Some(4), None, Some("a")));
        assert_eq!((found.id("b"), found.id("c"), found.text(2)), (Some(2), Some(2), Some("c")));
        assert_eq!(found.len(), 3);
    }
}
