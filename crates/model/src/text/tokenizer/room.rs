//! What encoding a text may take.

use std::cell::{Cell, OnceCell};

use super::TokenizerError;
use super::pattern::Deadline;

/// Bytes that encoding takes for each byte of text: the text, what a step makes of it, and for each
/// byte of both where it came from. A test measures that these hold.
const BYTE: usize = 80;
/// For each part that the text is split into: three allocations, and its place among the others.
const PART: usize = 320;
/// For each place that a pattern finds.
const FOUND: usize = 48;
/// For each byte of the longest word, of which a model may make a token.
const WORD: usize = 208;
/// Automata of patterns, which grow with what they meet.
pub(super) const FIXED: usize = 1 << 20;
/// For each token of a usual text: of some twenty bytes, in a word of its own.
pub(super) const POSITION: usize = 2 << 10;
/// What normalizing an added token may take.
pub(super) const ADDED: usize = FIXED + (4 << 20);

/// What encoding one text may take, and what it has taken.
#[derive(Debug)]
pub(super) struct Room {
    given: usize,
    most: Cell<usize>,
    deadline: OnceCell<Deadline>,
    /// Bytes of all parts of the text as they stand.
    bytes: Cell<usize>,
    parts: Cell<usize>,
}

impl Room {
    /// For a text of so many bytes, in so much memory.
    pub(super) fn new(given: usize, most: usize) -> Room {
        let (most, bytes, parts) = (Cell::new(most), Cell::new(given), Cell::new(1));
        Room { given, most, deadline: OnceCell::new(), bytes, parts }
    }

    /// For another text of so many bytes, in so much memory, and the time that is left.
    pub(super) fn restart(&self, bytes: usize, most: usize) {
        self.most.set(most);
        self.stands(bytes, 1);
    }

    /// Bytes of the text as it was given.
    pub(super) fn given(&self) -> usize {
        self.given
    }

    /// Of some bytes of text, so many are to become so many others, in so many more parts. An error if
    /// there is no room.
    pub(super) fn change(&self, from: usize, to: usize, more: usize) -> Result<(), TokenizerError> {
        let bytes = self.bytes.get().saturating_sub(from).saturating_add(to);
        let parts = self.parts.get().saturating_add(more);
        // While a step is at work both are there.
        self.check(bytes.max(self.bytes.get()), parts, 0)?;
        self.stands(bytes, parts);
        Ok(())
    }

    /// The text has become so many bytes in so many parts.
    pub(super) fn stands(&self, bytes: usize, parts: usize) {
        self.bytes.set(bytes);
        self.parts.set(parts);
    }

    /// A pattern has found so many places.
    pub(super) fn found(&self, places: usize) -> Result<(), TokenizerError> {
        self.check(self.bytes.get(), self.parts.get(), places.saturating_mul(FOUND))
    }

    /// A word of so many bytes is to become tokens.
    pub(super) fn word(&self, bytes: usize) -> Result<(), TokenizerError> {
        self.check(self.bytes.get(), self.parts.get(), bytes.saturating_mul(WORD))
    }

    fn check(&self, bytes: usize, parts: usize, more: usize) -> Result<(), TokenizerError> {
        let each = bytes.saturating_mul(BYTE).saturating_add(parts.saturating_mul(PART));
        let most = self.most.get();
        match each.saturating_add(more).saturating_add(FIXED) <= most {
            true => Ok(()),
            false if most >> 20 == 0 => Err(TokenizerError::NoRoom),
            false => Err(TokenizerError::Room { bytes: self.given, most }),
        }
    }

    /// True while patterns that are not on the list may go on.
    pub(super) fn has_time(&self) -> bool {
        !self.deadline.get_or_init(|| Deadline::of(self.given)).is_over()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Tokenizer;
    use super::*;

    /// A tokenizer of bytes that stand for themselves.
    fn tokenizer(normalizer: Value, pre_tokenizer: Value, words: &[&str]) -> Tokenizer {
        let letters = (0..128u8).map(|b| char::from(b).to_string());
        let tokens = letters.chain(words.iter().map(|word| (*word).to_owned()));
        let vocab: serde_json::Map<_, _> = tokens.zip((0..).map(Value::from)).collect();
        let json = json!({
            "version": "1.0", "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn encoding_takes_no_more_than_it_is_taken_to() {
        let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "bcdefghi"});
        let english =
            "It was the best of times, it was the worst of times; 12 of them.\n".repeat(1000);
        let cases = [
            ("words", tokenizer(Value::Null, bytes(true), &["Ġ", "Ċ"]), english.clone()),
            ("one word", tokenizer(Value::Null, bytes(false), &["Ġ", "Ċ"]), english.clone()),
            ("nothing", tokenizer(Value::Null, Value::Null, &[]), "a".repeat(50_000)),
            (
                "letters",
                tokenizer(Value::Null, json!({"type": "FixedLength", "length": 1}), &[]),
                "a".repeat(50_000),
            ),
            ("grown", tokenizer(replace, Value::Null, &[]), "a".repeat(10_000)),
            ("composed", tokenizer(json!({"type": "NFKC"}), bytes(true), &["Ġ", "Ċ"]), english),
        ];
        for (name, tokenizer, text) in cases {
            let encode = |most| tokenizer.encoded(&text, Room::new(text.len(), most));
            // Patterns grow their automata once.
            encode(usize::MAX).unwrap();
            let mut most = FIXED;
            while encode(most).is_err() {
                most += most / 16;
            }
            let taken = allocation_counter::measure(|| drop(encode(most))).bytes_max as usize;
            assert!(taken <= most, "{name}: {taken} of {most}");
            // No text is refused for much that it does not need.
            assert!(most - FIXED <= 8 * taken, "{name}: {taken} of {most}");
        }
    }
}
